"""The built-in generation engine: Hugging Face weights, our decode loop, replayable sampling."""

from collections.abc import Sequence

import numpy as np
import torch
from typing_extensions import override

from protocol.recipe import ModelSection, ToplocSection
from protocol.toploc.proof import States, build_proofs_batch
from roles.engines.builtin.decoder import Decoded, Decoder
from roles.engines.builtin.engine import BuiltinEngine, computed, computed_telling
from roles.engines.noise import Draws, NoiseSource
from roles.ports.engines import Generation, GenerationEngine, GenerationRequest, Policy


class TransformersGenerationEngine(BuiltinEngine, GenerationEngine):
    """Generates on a CPU or one GPU, computing in the precision of the proofs.

    ``batch_sequences_max`` are decoded together, with a cache for the longest of them.
    """

    def __init__(
        self,
        model: ModelSection,
        toploc: ToplocSection,
        *,
        device: str = "cpu",
        batch_sequences_max: int = 256,
    ) -> None:
        super().__init__(model, toploc.precision, device)
        self._noise = NoiseSource(self._config.vocab_size, device)
        self._head_precision = model.head
        self._toploc = toploc
        self._batch_sequences_max = batch_sequences_max
        self._decoder: Decoder | None = None
        self._tokens_sampled = 0

    @property
    @override
    def tokens_sampled(self) -> int:
        return self._tokens_sampled

    @override
    @computed_telling(ValueError)
    def load(self, policy: Policy) -> None:
        self._decoder = Decoder(
            self._config, self._read(policy), self._dtype, self._device, self._head_precision
        )

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        check_requests(requests, temperature)
        return await self._generate(requests, temperature)

    @computed
    def _generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        generations: list[Generation] = []
        for start in range(0, len(requests), self._batch_sequences_max):
            batch = requests[start : start + self._batch_sequences_max]
            decoded = self._decode(batch, temperature)
            self._tokens_sampled += sum(len(row.tokens) for row in decoded)
            generations += self._prove(decoded)
        return generations

    def _decode(self, batch: Sequence[GenerationRequest], temperature: float) -> list[Decoded]:
        if self._decoder is None:
            raise RuntimeError("no policy is loaded")
        seeds = np.array([request.seed for request in batch], dtype=np.uint64)

        def noise(rows: Sequence[int], position: int) -> Draws:
            return self._noise.at(seeds[rows], position)

        return self._decoder.decode(
            [request.prompt for request in batch],
            [request.tokens_max for request in batch],
            temperature,
            noise,
        )

    def _prove(self, decoded: Sequence[Decoded]) -> list[Generation]:
        proofs = build_proofs_batch(
            [as_states(row.states) for row in decoded],
            chunk_tokens=self._toploc.chunk_tokens,
            top_k=self._toploc.top_k,
        )
        return [
            Generation(tuple(row.tokens.tolist()), tuple(row.logprobs.tolist()), tuple(own))
            for row, own in zip(decoded, proofs, strict=True)
        ]


def check_requests(requests: Sequence[GenerationRequest], temperature: float) -> None:
    """Raise the ``ValueError`` that ``GenerationEngine.generate`` documents."""
    for request in requests:
        if not request.prompt or request.tokens_max < 1:
            raise ValueError("a request needs a prompt and at least one token to emit")
    if not temperature > 0:
        raise ValueError("the temperature must be positive")


def as_states(states: torch.Tensor) -> States:
    """Return states on the CPU in the form that ``protocol.toploc`` takes."""
    if states.dtype == torch.bfloat16:
        bits: States = states.contiguous().view(torch.uint16).numpy()
        return bits
    floats: States = states.float().contiguous().numpy()
    return floats
