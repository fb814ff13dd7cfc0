"""Generate honest sequences and lies on one device, and recompute them.

A lie is a realistic cheat: generating with other weights, or changing tokens after the proofs were
made. The validator knows only the true policy.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import RunId, Version
from protocol.rollout.statistics import Recomputed
from protocol.run.recipe import ModelSection, Recipe, ToplocSection
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import shapes_of
from roles.engines.builtin.cache import Cache
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.calibration.measurement import ClaimRecording
from roles.engines.files.policy import read_policy, write_policy
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import (
    Generation,
    GenerationRequest,
    Policy,
    TrainingSequence,
    VerificationRequest,
    claims_of,
)

Say = Callable[[str], None]

SEQUENCES_PER_ROW = 8
"""Minimum batches of every size; small batches are slower, so they get fewer sequences."""

PREFILL_TOKENS = 1 << 14
"""Tokens of a prefill of many sequences; the default of the verification engine."""

LIAR_SEQUENCES = 64
STALE_STEPS = (1, 10)
SHIFTS = (-0.05, -0.45)
CHOICES = 4
WEIGHT_NOISE = 1e-3
KNUTH_MULTIPLIER = 2_654_435_761
"""Multiplicative hashing decides which weights are raised and which lowered."""

INT8_LEVELS, INT4_LEVELS = 127, 7
"""Levels above zero; there are as many below."""

TRAINED_SEQUENCES = 16

ANY_RUN = RunId(bytes(32))
"""Any run id: rounding errors do not depend on which run's thresholds round."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Test setup: a model, its policy, and the sampling of sequences.

    Another ``lot`` has other prompts and other noise.
    """

    model: ModelSection
    policy: Policy
    recipe: Recipe
    prompts: Sequence[tuple[int, ...]]
    tokens_max: int
    device: str
    directory: Path
    lot: str = ""

    @property
    def toploc(self) -> ToplocSection:
        """Settings of the proofs."""
        return self.recipe.toploc

    @property
    def temperature(self) -> float:
        """The sampling temperature."""
        return self.recipe.sampling.temperature


async def honest_pairs(
    bench: Bench, batches: Sequence[int], attentions: Sequence[str], say: Say
) -> list[ClaimRecording]:
    """Record every pair of a worker's batch size and a validator's prefill and attention."""
    recordings = []
    for batch in batches:
        rows = max(SEQUENCES_PER_ROW, len(bench.prompts) // max(batches))
        fewer = replace(bench, prompts=bench.prompts[: rows * batch])
        for recording in await pairs_of_batch(fewer, batch, attentions, asyncio.Semaphore(1)):
            say(f"{recording.name}: {recording.tokens} tokens")
            recordings.append(recording)
    return recordings


async def pairs_of_batch(
    bench: Bench, batch: int, attentions: Sequence[str], engines: asyncio.Semaphore
) -> list[ClaimRecording]:
    """Record the pairs of a worker that decodes ``batch`` sequences at once.

    Validators differ in attention kernel and in sequences per prefill: one, or many. At most
    ``engines`` compute at a time.
    """
    async with engines:
        claims = await _claims(bench, bench.policy, batch)

    async def pair(attention: str, prefill_tokens: int) -> ClaimRecording:
        async with engines:
            own = await _recomputed(
                bench, bench.policy, claims, attention=attention, batch_tokens=prefill_tokens
            )
        return _recording(
            bench, f"decode {batch}, prefill {prefill_tokens} {attention}", claims, own
        )

    prefills = (bench.tokens_max, PREFILL_TOKENS)
    return await asyncio.gather(
        *(pair(attention, tokens) for attention in attentions for tokens in prefills)
    )


async def lies(bench: Bench, batch: int, say: Say) -> list[ClaimRecording]:
    """Record every lie, on the first ``LIAR_SEQUENCES`` prompts."""
    bench = replace(bench, prompts=bench.prompts[:LIAR_SEQUENCES])
    honest = await _claims(bench, bench.policy, batch)
    truth = bench.policy
    false: dict[str, tuple[Policy, list[VerificationRequest]]] = {}
    for name, change in WEIGHTS.items():
        other = _changed(bench, name, change)
        false[name] = truth, await _claims(bench, other, batch)
    for steps, newer in (await _trained(bench, honest)).items():
        false[f"{steps} steps stale"] = newer, honest
    false["int8 KV cache"] = (
        truth,
        await _claims(bench, truth, batch, engine_type=QuantisedCacheEngine),
    )
    altered = replace(bench, prompts=[_altered(prompt, bench) for prompt in bench.prompts])
    false["altered prompt"] = (
        truth,
        [
            replace(claim, prompt=prompt)
            for claim, prompt in zip(
                await _claims(altered, truth, batch), bench.prompts, strict=True
            )
        ],
    )
    for name, place in (("first", 0), ("middle", 0.5), ("last", 1.0)):
        false[f"edited {name} token"] = truth, [_edited(one, place, bench) for one in honest]
    others = [await _claims(bench, truth, batch, draw=draw) for draw in range(1, CHOICES)]
    false[f"best of {CHOICES}"] = truth, _longest(honest, others)
    halves = [max(1, len(one.tokens) // 2) for one in honest]
    cut = await _claims(bench, truth, batch, tokens_max=halves)
    false["early stop"] = truth, [_stopped(one, bench) for one in cut]
    for shift in SHIFTS:
        shifted = [replace(c, logprobs=tuple(v + shift for v in c.logprobs)) for c in honest]
        false[f"log-probabilities {shift:+g}"] = truth, shifted
    recordings = []
    for name, (policy, claims) in false.items():
        own = await _recomputed(bench, policy, claims)
        recordings.append(_recording(bench, name, claims, own))
        say(f"{recordings[-1].name}: {recordings[-1].tokens} tokens")
    return recordings


async def _claims(
    bench: Bench,
    policy: Policy,
    batch: int,
    *,
    draw: int = 0,
    tokens_max: Sequence[int] | None = None,
    engine_type: type[TransformersGenerationEngine] = TransformersGenerationEngine,
) -> list[VerificationRequest]:
    """Return the claims of a worker with ``policy``; ``draw`` selects other sampling noise."""
    engine = engine_type(bench.model, bench.toploc, device=bench.device, batch_sequences_max=batch)
    limits = tokens_max or [bench.tokens_max] * len(bench.prompts)
    requests = [
        GenerationRequest(prompt, seed, limit)
        for prompt, seed, limit in zip(bench.prompts, _seeds(bench, draw), limits, strict=True)
    ]
    try:
        await engine.load(policy)
        made: list[Generation] = await engine.generate(requests, bench.temperature)
    finally:
        engine.close()
    asked = [
        replace(request, seed=seed)
        for request, seed in zip(requests, _seeds(bench, 0), strict=True)
    ]
    return claims_of(asked, made)


def _seeds(bench: Bench, draw: int) -> list[int]:
    names = [f"calibration/{draw}/{index}{bench.lot}" for index in range(len(bench.prompts))]
    return [Rng(name.encode()).bits64() for name in names]


async def _recomputed(
    bench: Bench,
    policy: Policy,
    claims: Sequence[VerificationRequest],
    *,
    attention: str = "sdpa",
    batch_tokens: int = PREFILL_TOKENS,
) -> list[Recomputed]:
    engine = TransformersVerificationEngine(
        bench.model,
        bench.toploc,
        device=bench.device,
        batch_tokens_max=batch_tokens,
        attention=attention,
    )
    try:
        await engine.load(policy)
        found = await engine.recompute(policy.version, claims, bench.temperature)
    finally:
        engine.close()
    computed_ones = [own for own in found if isinstance(own, Recomputed)]
    if len(computed_ones) < len(found):
        raise ValueError(next(own for own in found if isinstance(own, str)))
    return computed_ones


def _recording(
    bench: Bench,
    name: str,
    claims: Sequence[VerificationRequest],
    own: Sequence[Recomputed],
) -> ClaimRecording:
    return ClaimRecording(f"{bench.model.name}: {name}", [claim.logprobs for claim in claims], own)


async def _trained(bench: Bench, claims: Sequence[VerificationRequest]) -> dict[int, Policy]:
    """Return the policies after training steps on ``claims`` with arbitrary rewards."""
    # A warm-up would make the first steps smaller than the run's.
    loss = bench.recipe.grpo.loss.model_copy(update={"kl_coefficient": 0.0})  # 0 at the reference
    changes = {"warmup_steps": 0, "updates_per_version": 1, "loss": loss}
    grpo = bench.recipe.grpo.model_copy(update=changes)
    engine = TorchTrainingEngine(
        bench.model, bench.recipe.sampling, grpo, run=ANY_RUN, device=bench.device
    )
    batch = [
        TrainingSequence(number // 2, one.prompt, one.tokens, one.logprobs, float(number % 2))
        for number, one in enumerate(claims[:TRAINED_SEQUENCES])
    ]
    found: dict[int, Policy] = {}
    try:
        await engine.load_policy(bench.policy)
        for step in range(1, max(STALE_STEPS) + 1):
            await engine.step(batch)
            if step in STALE_STEPS:
                path = bench.directory / f"step-{step}.safetensors"
                found[step] = Policy(Version(step), await engine.write_policy(path), path)
    finally:
        engine.close()
    return found


def _changed(bench: Bench, name: str, change: Callable[[Tensor], Tensor]) -> Policy:
    """Return the policy with every matrix changed."""
    shapes = shapes_of(configuration(bench.model.architecture, bench.model.config))
    tensors = read_policy(bench.policy.path, bench.policy.digest, shapes)
    changed = {
        key: change(value.float()).to(value.dtype) if value.ndim == 2 else value
        for key, value in tensors.items()
    }
    path = bench.directory / f"{name.replace(' ', '-')}.safetensors"
    return Policy(bench.policy.version, write_policy(changed, path), path)


def _noisy(weight: Tensor) -> Tensor:
    places = torch.arange(weight.numel()).view(weight.shape)
    signs = 1 - 2 * (places * KNUTH_MULTIPLIER >> 16 & 1)
    return weight * (1 + WEIGHT_NOISE * signs)


def _rounded(values: Tensor, levels: int) -> Tensor:
    """Quantise ``values`` to ``2 * levels + 1`` levels, scaled per row."""
    scale = values.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / levels
    rounded: Tensor = (values / scale).round() * scale
    return rounded


class QuantisedCacheDecoder(Decoder):
    """Decoder with an 8-bit key-value cache, one scale per head and column."""

    @override
    def _forward(self, tokens: Tensor, caches: Sequence[Cache]) -> Tensor:
        states = super()._forward(tokens, caches)
        for cache in caches:
            for kept in (*cache.keys, *cache.values):
                new = kept[:, :, cache.filled - tokens.shape[1] : cache.filled]
                new.copy_(_rounded(new.float(), INT8_LEVELS))
        return states


class QuantisedCacheEngine(TransformersGenerationEngine):
    """Generation engine with a quantised cache."""

    @override
    def _made(self, policy: Policy) -> Decoder:
        return QuantisedCacheDecoder(
            self._config, self._read(policy), self._dtype, self._device, self._head_precision
        )


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "noisy weights": _noisy,
    "int8 weights": partial(_rounded, levels=INT8_LEVELS),
    "int4 weights": partial(_rounded, levels=INT4_LEVELS),
}
"""Changed copies of the weights by name; quantised per row."""


def _altered(prompt: tuple[int, ...], bench: Bench) -> tuple[int, ...]:
    """Replace the middle token of a prompt."""
    place = len(prompt) // 2
    return (
        *prompt[:place],
        (prompt[place] + 1) % bench.model.vocabulary_size,
        *prompt[place + 1 :],
    )


def _edited(claim: VerificationRequest, share: float, bench: Bench) -> VerificationRequest:
    place = round(share * (len(claim.tokens) - 1))
    other = (claim.tokens[place] + 1) % bench.model.vocabulary_size
    return replace(claim, tokens=(*claim.tokens[:place], other, *claim.tokens[place + 1 :]))


def _longest(
    honest: Sequence[VerificationRequest], others: Sequence[Sequence[VerificationRequest]]
) -> list[VerificationRequest]:
    """Return for each sequence the most probable of several draws, claimed as the assigned one."""
    return [
        max(drawn, key=lambda one: sum(one.logprobs) / len(one.logprobs))
        for drawn in zip(honest, *others, strict=True)
    ]


def _stopped(claim: VerificationRequest, bench: Bench) -> VerificationRequest:
    """Claim that a sequence ended early."""
    return replace(claim, tokens=(*claim.tokens[:-1], bench.model.end_tokens[0]))
