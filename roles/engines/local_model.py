"""A model that answers outside of any swarm: for a terminal chat and for evaluation.

It computes in this process with the built-in engine's decoder and makes no proofs.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch

from protocol.core.types import Digest
from protocol.run.recipe import ModelSection
from roles.engines.architectures.architecture import Config
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import shapes_of
from roles.engines.bootstrap.huggingface_import import read_directory
from roles.engines.builtin.batching import Continuation, DecodeBatch, Lengths, Noise
from roles.engines.builtin.cache import cache_bytes
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.engine import prepare_thread
from roles.engines.builtin.generation import STEPS_PER_LOOK, STEPS_PER_LOOK_ELSEWHERE
from roles.engines.factory import device_of
from roles.engines.files.policy import DTYPES, Precision, read_policy
from roles.engines.files.safetensors import THREADS
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.ports.engines import EngineError, GenerationRequest

ROWS_MAX = 256

STEPS_PER_DROP = 256
"""Tokens per row after which hidden states are dropped; only proofs need them."""


class LocalModel:
    """A model on one device; temperature 0 is greedy decoding.

    On a CPU it uses half of the cores, or torch's thread count if that is lower: a node may run on
    the same machine.
    """

    def __init__(self, decoder: Decoder) -> None:
        threads = min(torch.get_num_threads(), THREADS)
        prepare_thread()
        torch.set_num_threads(threads)
        self._decoder = decoder
        self._noise = NoiseSource(decoder.config.vocab_size, decoder.device)

    @classmethod
    def of_policy(
        cls, model: ModelSection, precision: Precision, path: Path, digest: Digest, device: str
    ) -> "LocalModel":
        """Load a policy file; raises ``ValueError`` unless it holds the policy ``digest``."""
        config = configuration(model.architecture, model.config)
        tensors = read_policy(path, digest, shapes_of(config))
        made = Decoder(config, tensors, DTYPES[precision], device_of(device), model.head)
        return cls(made)

    @classmethod
    def of_directory(
        cls,
        directory: Path,
        precision: Precision | None,
        head: Literal["fp32", "model"],
        device: str,
    ) -> "LocalModel":
        """Load a Hugging Face directory, by default in the precision in which it was saved.

        Raises ``ValueError`` for a model that the engines do not support.
        """
        precision = precision or _saved_precision(directory)
        config, tensors = read_directory(directory, precision)
        return cls(Decoder(config, tensors, DTYPES[precision], device_of(device), head))

    @property
    def config(self) -> Config:
        """The model's configuration."""
        return self._decoder.config

    @property
    def positions(self) -> int:
        """The maximum tokens of a prompt and its answer together."""
        return int(self.config.max_position_embeddings)

    def has_ended(self, tokens: Sequence[int]) -> bool:
        """Return whether an answer ended with an end token, not at its limit."""
        return bool(tokens) and tokens[-1] in self._decoder.end_tokens

    def stream(self, request: GenerationRequest, temperature: float) -> Iterator[int]:
        """Yield the tokens of one answer as they are computed, the end token included."""
        one = Continuation(request.prompt, request.seed, request.tokens_max)
        for _ in self._computed([one], temperature, steps=1):
            yield one.tokens[-1]

    def answers(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the index and tokens of each answer as it ends."""
        waiting = {
            place: Continuation(one.prompt, one.seed, one.tokens_max)
            for place, one in enumerate(requests)
        }
        steps = STEPS_PER_LOOK.get(self._decoder.device, STEPS_PER_LOOK_ELSEWHERE)
        for _ in self._computed([*waiting.values()], temperature, steps):
            for place in [place for place, one in waiting.items() if one.ended]:
                yield place, tuple(waiting.pop(place).tokens)

    def _computed(
        self, sequences: Sequence[Continuation], temperature: float, steps: int
    ) -> Iterator[None]:
        """Compute until all answers have ended; pause after each step.

        Raises ``EngineError``.
        """
        noise: Noise = self._noise.at if temperature else _no_noise
        batch = DecodeBatch(
            self._decoder,
            noise,
            Lengths(),
            cache_bytes_max=cache_bytes(self._decoder.device),
            rows_max=ROWS_MAX,
            steps=steps,
        )
        batch.add(sequences)
        while len(batch):
            try:
                batch.advance(temperature or 1.0)
            except (RuntimeError, MemoryError) as error:  # such as of a device without memory
                raise EngineError.of(error) from None
            if batch.uncollected_steps >= STEPS_PER_DROP:
                batch.collect()
                for one in sequences:
                    one.parts.clear()
            yield


def _no_noise(_seeds: object, _positions: object) -> None:
    return None


def _saved_precision(directory: Path) -> Precision:
    """Return the precision for a directory, from its ``config.json``."""
    values = json.loads((directory / "config.json").read_bytes())
    saved = values.get("dtype") or values.get("torch_dtype")
    return "bf16" if saved == "bfloat16" else "fp32"
