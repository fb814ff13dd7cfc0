"""Built-in verification engine: one Hugging Face prefill per batch of claimed sequences.

It runs Hugging Face's own module, not the generation engine's decode loop, so a bug in the loop
shows as a rejected rollout; the validator does not repeat it. Sampling from the states is defined
by the protocol, and one module computes it for both engines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from protocol.core.containers import BoundedDict
from protocol.core.types import Version
from protocol.rollout.statistics import Measurement, Recomputed, measured, unmeasured
from protocol.rollout.witness import WitnessValue
from protocol.run.recipe import ModelSection, ToplocSection
from protocol.toploc.layout import Variant
from protocol.toploc.proof import proof_fault, verify_proofs_batch
from roles.engines.architectures.architecture import scales_of
from roles.engines.builtin.engine import BuiltinEngine, computed, computed_telling
from roles.engines.builtin.generation import as_states
from roles.engines.builtin.head import Head
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.ports.engines import Policy, VerificationEngine, VerificationRequest

SCORES_PER_BLOCK = 1 << 24
"""Logits (positions x vocabulary) in a GPU's memory at once: 64 MB in float32."""


@dataclass(frozen=True, slots=True)
class _Policy:
    """A policy's model and its separate output layer."""

    model: torch.nn.Module
    head: Head


class TransformersVerificationEngine(BuiltinEngine, VerificationEngine):
    """Verify on a CPU or one GPU, computing in the precision of the proofs.

    A prefill holds at most ``batch_tokens_max`` tokens, padding included, unless a single sequence
    is longer. All probabilities are at the sampling temperature.
    """

    def __init__(
        self,
        model: ModelSection,
        toploc: ToplocSection,
        *,
        device: str = "cpu",
        policies_kept: int = 4,
        batch_tokens_max: int = 1 << 14,
        attention: str = "sdpa",
    ) -> None:
        super().__init__(model, toploc.precision, device, attention)
        self._noise = NoiseSource(self._config.vocab_size, device)
        self._toploc = toploc
        self._batch_tokens_max = batch_tokens_max
        self._head_precision = model.head
        self._models = BoundedDict[Version, _Policy](policies_kept)

    @override
    @computed_telling(ValueError)
    def load(self, policy: Policy) -> None:
        model = self._model_of(self._read(policy), self._dtype)
        self._models.pop(policy.version, None)
        head = Head(model.lm_head.weight, self._head_precision, scales_of(self._config).logits)
        self._models[policy.version] = _Policy(model.model, head)

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        if not temperature > 0:
            raise ValueError("the temperature must be positive")
        if version not in self._models:
            raise LookupError(f"the policy of version {version} is not kept")
        return await self._measure(version, requests, temperature)

    @computed
    @torch.inference_mode()
    def _measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        return [
            unmeasured(own) if isinstance(own, str) else measured(self._toploc, one.logprobs, own)
            for one, own in zip(
                requests, self._recompute(version, requests, temperature), strict=True
            )
        ]

    @computed
    @torch.inference_mode()
    def recompute(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Recomputed | str]:
        """Return the inputs of ``measure``, or the reason why they could not be computed."""
        return self._recompute(version, requests, temperature)

    def _recompute(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Recomputed | str]:
        model = self._models[version]
        faults = [self._fault(request) for request in requests]
        results: dict[int, Recomputed | str] = {
            index: fault for index, fault in enumerate(faults) if fault is not None
        }
        computable = [index for index, fault in enumerate(faults) if fault is None]
        for batch in self._batches(requests, computable):
            members = [requests[index] for index in batch]
            results.update(
                zip(batch, self._recompute_batch(model, members, temperature), strict=True)
            )
        return [results[index] for index in range(len(requests))]

    def _fault(self, request: VerificationRequest) -> str | None:
        """Return why a request is invalid, before computing anything."""
        if not request.prompt or not request.tokens:
            return "empty sequence"
        if len(request.logprobs) != len(request.tokens):
            return "the numbers of log-probabilities and tokens differ"
        ids = request.prompt + request.tokens
        if min(ids) < 0 or max(ids) >= self._config.vocab_size:
            return "token outside the vocabulary"
        if any(point.position >= len(request.tokens) for point in request.points):
            return "witness point outside the sequence"
        fault = proof_fault(
            request.proofs,
            len(request.tokens),
            hidden=self._config.hidden_size,
            variant=Variant(self._toploc.precision),
            chunk_tokens=self._toploc.chunk_tokens,
            top_k=self._toploc.top_k,
        )
        return None if fault is None else str(fault)

    def _batches(
        self, requests: Sequence[VerificationRequest], indices: Sequence[int]
    ) -> Iterator[list[int]]:
        """Yield the indices in batches of similar length, to limit padding."""
        lengths = {i: len(requests[i].prompt) + len(requests[i].tokens) for i in indices}
        batch: list[int] = []
        for index in sorted(indices, key=lengths.__getitem__):
            if batch and (len(batch) + 1) * lengths[index] > self._batch_tokens_max:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _recompute_batch(
        self, model: _Policy, requests: Sequence[VerificationRequest], temperature: float
    ) -> Sequence[Recomputed | str]:
        states = self._prefill(model, requests)
        if not bool(states.isfinite().all()):
            return ["the policy's own states are not finite"] * len(requests)
        bounds = [0, *np.cumsum([len(request.tokens) for request in requests]).tolist()]
        own = states.cpu()
        chunks = verify_proofs_batch(
            [as_states(own[start:end]) for start, end in pairwise(bounds)],
            [request.proofs for request in requests],
            chunk_tokens=self._toploc.chunk_tokens,
            top_k=self._toploc.top_k,
        )
        replayed = self._replay(model, requests, states, temperature)
        logprobs, gaps = (values.tolist() for values in replayed)
        witness = iter(self._witness(model, requests, states, bounds, temperature))
        return [
            Recomputed(
                compared,
                logprobs[start:end],
                gaps[start:end],
                tuple(islice(witness, len(request.points))),
            )
            for request, (start, end), compared in zip(
                requests, pairwise(bounds), chunks, strict=True
            )
        ]

    def _prefill(self, model: _Policy, requests: Sequence[VerificationRequest]) -> Tensor:
        """Return the states that produced each claimed token, all sequences joined ``[n, h]``.

        Padding is on the right, which causal attention never reads, so no mask is needed.
        """
        # The last token produces no claimed token.
        rows = [request.prompt + request.tokens[:-1] for request in requests]
        width = max(len(row) for row in rows)
        tokens = torch.tensor([row + (0,) * (width - len(row)) for row in rows])
        states = model.model(input_ids=tokens.to(self._device), use_cache=False).last_hidden_state
        own = zip(states, requests, rows, strict=True)
        return torch.cat([state[len(one.prompt) - 1 : len(row)] for state, one, row in own])

    def _replay(
        self,
        model: _Policy,
        requests: Sequence[VerificationRequest],
        states: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Draw again; return the log-probabilities and gaps of the claimed tokens, ``[n]``."""
        counts = [len(request.tokens) for request in requests]
        seeds = np.repeat(np.array([r.seed for r in requests], dtype=np.uint64), counts)
        positions = np.concatenate([np.arange(count) for count in counts])
        tokens = torch.tensor([t for r in requests for t in r.tokens], device=self._device)
        logprobs, gaps = [], []
        rows_per_block = max(1, SCORES_PER_BLOCK // self._config.vocab_size)
        for start in range(0, len(seeds), rows_per_block):
            block = slice(start, start + rows_per_block)
            draws = self._noise.at(seeds[block], positions[block])
            sampled = model.head.sample(states[block], temperature, draws, tokens[block])
            logprobs.append(sampled.logprobs)
            gaps.append(sampled.gaps)
        return torch.cat(logprobs).cpu(), torch.cat(gaps).cpu()

    def _witness(
        self,
        model: _Policy,
        requests: Sequence[VerificationRequest],
        states: Tensor,
        bounds: Sequence[int],
        temperature: float,
    ) -> list[WitnessValue]:
        """Return the values at the points of all requests, whose rows begin at ``bounds``."""
        starts = zip(bounds, requests, strict=False)
        placed = [(start + point.position, point) for start, one in starts for point in one.points]
        if not placed:
            return []
        points = [point for _, point in placed]
        draws = self._noise.at(
            np.array([point.seed for point in points], dtype=np.uint64),
            np.array([point.position for point in points], dtype=np.int64),
        )
        tokens = torch.tensor([point.token for point in points], device=self._device)
        rows = states[[row for row, _ in placed]]
        sampled = model.head.sample(rows, temperature, draws, tokens)
        pairs = zip(sampled.logprobs.tolist(), sampled.tokens.tolist(), strict=True)
        return [WitnessValue(logprob, token) for logprob, token in pairs]
