"""The protocol's sampling as a vLLM logits processor: token = argmax(logits / T + noise).

vLLM's own noise is not specified and changed between versions. Requests are greedy for vLLM: it
takes the argmax of the output of ``apply``, the one token that was drawn here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.engines.sampling.sampling import sample_blocks, sample_whole
from roles.engines.vllm.records import Records
from roles.ports.engines import GenerationRequest

OPTIONS = "prime-node"
"""Key of vLLM's ``additional_config`` for the processor's settings of the run."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A request in vLLM's batch; vLLM appends its tokens to ``drawn``."""

    number: int
    seed: int
    temperature: float
    drawn: list[int]


class ReplayableSampling(LogitsProcessor):  # type: ignore[misc]
    """Draw the tokens of vLLM's batch; record the tokens and their states."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del is_pin_memory
        model = vllm_config.model_config
        options = vllm_config.additional_config[OPTIONS]
        self._noise = NoiseSource(model.get_vocab_size(), str(device))
        self._rows: dict[int, _Row] = {}
        self.records = Records(
            model.get_hidden_size(),
            model.dtype,
            device,
            options["chunk_tokens"],
            options["top_k"],
        )
        self.states: Tensor | None = None
        """Inputs ``[n, hidden]`` of the next logits; set by the worker's hook."""

    @override
    def is_argmax_invariant(self) -> bool:
        return False

    @override
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _row)

    @override
    def apply(self, logits: Tensor) -> Tensor:
        states, self.states = self.states, None
        if states is None or len(states) != len(logits):
            raise RuntimeError("vLLM's logits do not belong to the recorded states")
        rows = [self._rows[index] for index in range(len(logits))]
        positions = [len(row.drawn) for row in rows]
        temperatures = torch.tensor([row.temperature for row in rows], device=logits.device)
        scaled = logits.div_(temperatures[:, None])
        draws = self._noise.at(
            np.array([row.seed for row in rows], dtype=np.uint64), np.array(positions)
        )
        if logits.device.type == "cpu":
            count, vocabulary = scaled.shape
            sampled = sample_blocks(lambda block: scaled[:, block], count, vocabulary, draws)
        else:
            sampled = sample_whole(scaled, draws)
        numbers = [row.number for row in rows]
        self.records.add(numbers, positions, states, sampled.tokens, sampled.logprobs)
        return logits.zero_().scatter_(1, sampled.tokens[:, None], 1.0)


def parameters(
    request: GenerationRequest, temperature: float, number: int, end_tokens: tuple[int, ...]
) -> SamplingParams:
    """Return vLLM's parameters of a request; ``number`` identifies it in the records."""
    return SamplingParams(
        temperature=0.0,
        top_p=1.0,
        top_k=-1,
        max_tokens=request.tokens_max,
        stop_token_ids=list(end_tokens),
        ignore_eos=True,
        detokenize=False,
        extra_args={"number": number, "seed": request.seed, "temperature": temperature},
    )


def _row(params: SamplingParams, _prompt: list[int] | None, drawn: list[int]) -> _Row:
    given: dict[str, Any] = params.extra_args
    return _Row(given["number"], given["seed"], given["temperature"], drawn)
