"""What a validator decides about a rollout body, cheapest checks first.

The order is fixed: format and limits, assignment (by construction: prompts and seeds are
recomputed, never read), rewards, termination, then what one prefill shows: proofs,
log-probabilities, sampling. The first failure is the verdict's reason; the margins say how close
everything measured came.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.crypto import digest
from protocol.faults import Fault
from protocol.manifest import RunManifest, ToplocSection
from protocol.messages import Margin, RolloutCommit
from protocol.rollout import RolloutSequence, decode_body
from protocol.toploc.proof import ChunkResult
from protocol.types import Digest

ACCEPTED = "accepted"
_MILLIONTHS_MAX = 2**53


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one prefill says of a claimed sequence.

    ``proof_fault`` is None when the proofs are well formed, and then ``chunks`` holds one entry per
    chunk. ``sampling_gap_max``: nats by which a token's perturbed score falls below the best one,
    worst over positions. ``end_probability``: the model's probability of the last token. Anything
    that could not be computed is infinite and so fails its limit.
    """

    proof_fault: str | None
    chunks: tuple[ChunkResult, ...]
    logprob_error_max: float
    sampling_gap_max: float
    end_probability: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict in the making."""

    reason: str
    detail: str = ""
    margins: tuple[Margin, ...] = ()

    @property
    def accept(self) -> bool:
        """Whether nothing was found."""
        return self.reason == ACCEPTED


def audited(beacon: Digest, commit: Digest, count: int, share: float) -> list[int]:
    """Return which of ``count`` sequences the prefill covers; at least one.

    The worker could not know them: the beacon is of a later epoch than the commit.
    """
    if share >= 1:
        return list(range(count))
    ranked = sorted(
        range(count), key=lambda index: digest(beacon + commit + index.to_bytes(4, "big"))
    )
    return sorted(ranked[: max(1, math.ceil(count * share))])


def read_body(
    manifest: RunManifest, commit: RolloutCommit, body: bytes
) -> list[RolloutSequence] | Finding:
    """Return what a body claims, or why it is none of what its commit promised.

    ``body_bytes`` is the exact length: a number that a worker could choose would let it look for a
    commit whose committee and audit it likes.
    """
    if len(body) != commit.body_bytes:
        return Finding("format", f"{len(body)} bytes, its commit says {commit.body_bytes}")
    sequences = decode_body(body, manifest)
    return Finding("format", str(sequences)[:200]) if isinstance(sequences, Fault) else sequences


def check_claims(
    manifest: RunManifest,
    commit: RolloutCommit,
    sequences: Sequence[RolloutSequence],
    rewards: Sequence[int],
) -> Finding | None:
    """Check what needs no model; ``rewards`` are our own, in millionths."""
    if sum(len(item.tokens) for item in sequences) != commit.tokens:
        return Finding("format", "token count differs from the commit")
    end_token = manifest.model.end_token
    for index, item in enumerate(sequences):
        if any(not 0 <= token < manifest.model.vocabulary_size for token in item.tokens):
            return Finding("format", f"sequence {index}: a token is not in the vocabulary")
        if end_token in item.tokens[:-1]:
            return Finding("format", f"sequence {index}: tokens after the end token")
    for index, (item, own) in enumerate(zip(sequences, rewards, strict=True)):
        if item.reward != own:
            detail = f"sequence {index}: claimed {item.reward / 1e6:g}, recomputed {own / 1e6:g}"
            return Finding("reward", detail)
    limit = manifest.sampling.tokens_max
    for index, item in enumerate(sequences):
        if item.tokens[-1] != end_token and len(item.tokens) < limit:
            return Finding("termination", f"sequence {index} stops without an end token")
    return None


def decide(
    manifest: RunManifest,
    sequences: Sequence[RolloutSequence],
    measurements: Sequence[Measurement],
) -> Finding:
    """Decide about the measured ``sequences`` (those audited, in the same order)."""
    rules = manifest.toploc
    for index, measurement in enumerate(measurements):
        if measurement.proof_fault is not None:
            return Finding("proof-malformed", f"sequence {index}: {measurement.proof_fault}"[:200])
    margins = _computation(rules, measurements)
    ends = [
        measurement.end_probability
        for item, measurement in zip(sequences, measurements, strict=True)
        if item.tokens[-1] == manifest.model.end_token
        and len(item.tokens) < manifest.sampling.tokens_max
    ]
    logprob_error = _worst([item.logprob_error_max for item in measurements], max)
    sampling_gap = _worst([item.sampling_gap_max for item in measurements], max)
    end_probability = _worst([1.0, *ends], min)
    checks = [
        ("termination", "end-probability", end_probability, rules.end_probability_min),
        *(("computation", *margin) for margin in margins),
        ("logprobs", "logprob-error-max", logprob_error, rules.logprob_error_max),
        ("sampling", "sampling-gap-max", sampling_gap, rules.sampling_gap_max),
    ]
    shown = tuple(
        Margin(name=name, value=_millionths(value), limit=_millionths(limit))
        for _, name, value, limit in checks
    )
    for reason, name, value, limit in checks:
        kept = value >= limit if reason == "termination" else value <= limit
        if not kept:  # a NaN keeps no limit
            return Finding(reason, f"{name} {value:.6g}, limit {limit:g}"[:200], shown)
    return Finding(ACCEPTED, margins=shown)


def _computation(
    rules: ToplocSection, measurements: Sequence[Measurement]
) -> list[tuple[str, float, float]]:
    """Return the name, the worst value over all chunks and the limit of each statistic."""
    chunks = [chunk for item in measurements for chunk in item.chunks]
    if not chunks:
        raise ValueError("no chunk was measured")
    mismatches = [float(chunk.exponent_mismatches) for chunk in chunks]
    means = [chunk.mantissa_error_mean for chunk in chunks]
    medians = [chunk.mantissa_error_median for chunk in chunks]
    return [
        ("exponent-mismatches", _worst(mismatches, max), rules.exponent_mismatches_max),
        ("mantissa-error-mean", _worst(means, max), rules.mantissa_error_mean_max),
        ("mantissa-error-median", _worst(medians, max), rules.mantissa_error_median_max),
    ]


def _worst(values: Sequence[float], worst: Callable[[Sequence[float]], float]) -> float:
    """Return the worst value; a NaN is worse than any, where ``max`` would keep what came first."""
    return math.nan if any(map(math.isnan, values)) else worst(values)


def _millionths(value: float) -> int:
    if math.isnan(value):
        return _MILLIONTHS_MAX
    return round(max(-_MILLIONTHS_MAX, min(_MILLIONTHS_MAX, value * 1_000_000)))
