"""What a validator decides about a rollout body, cheapest checks first.

The order is fixed: format and limits, assignment (by construction: prompts and seeds are
recomputed, never read), rewards, termination, then what one prefill shows: proofs, the loose limits
of single values, the statistics of this rollout, and those of its worker's last ones. The first
failure is the verdict's reason.

A lie that cannot be an accident ends a worker's standing. What is only improbable, a rollout that
is too far from ours, is rejected; when many of them add up to what an honest worker does not come
to once in ``1 / slash_rate`` tries, that is a lie, too.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from protocol.crypto import digest
from protocol.faults import Fault
from protocol.manifest import RunManifest
from protocol.messages import RolloutCommit, Verdict
from protocol.rollout import RolloutSequence, decode_body
from protocol.statistics import (
    Extremes,
    Measurement,
    Sums,
    added,
    beyond,
    compared_extremes,
    of_rollout,
    stated,
)
from protocol.types import Digest

ACCEPTED = "accepted"

LIES = frozenset({"format", "reward", "termination", "computation", "history"})
"""Reasons of a rejection that end a worker's standing; the others cost it the rollout."""

_REASONS = ("computation", "computation", "computation", "logprobs", "sampling")
"""What a value beyond its limit shows, in the order of ``Extremes``."""

HISTORY_ROLLOUTS_MIN = 4
"""Fewer rollouts are no history: one of a broken machine may be as far off as it likes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict in the making; ``sums`` and ``extremes`` are there if something was measured."""

    reason: str
    detail: str = ""
    sums: Sums | None = None
    extremes: Extremes | None = None

    @property
    def accept(self) -> bool:
        """Whether nothing was found."""
        return self.reason == ACCEPTED

    def verdict(self, commit: Digest) -> Verdict:
        """Return what a validator signs."""
        return Verdict(
            commit=commit,
            accept=self.accept,
            reason=self.reason,
            detail=self.detail[:200],
            chunks=0 if self.sums is None else self.sums.chunks,
            means=() if self.sums is None else stated(self.sums.means),
            extremes=stated(self.extremes or ()),
        )


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
    end_tokens, vocabulary_size = manifest.model.end_tokens, manifest.model.vocabulary_size
    for index, item in enumerate(sequences):
        if any(not 0 <= token < vocabulary_size for token in item.tokens):
            return Finding("format", f"sequence {index}: a token is not in the vocabulary")
        if any(token in end_tokens for token in item.tokens[:-1]):
            return Finding("format", f"sequence {index}: tokens after an end token")
    for index, (item, own) in enumerate(zip(sequences, rewards, strict=True)):
        if item.reward != own:
            detail = f"sequence {index}: claimed {item.reward / 1e6:g}, recomputed {own / 1e6:g}"
            return Finding("reward", detail)
    limit = manifest.sampling.tokens_max
    for index, item in enumerate(sequences):
        if item.tokens[-1] not in end_tokens and len(item.tokens) < limit:
            return Finding("termination", f"sequence {index} stops without an end token")
    return None


def decide(
    manifest: RunManifest,
    measurements: Sequence[Measurement],
    claims: Sequence[Hashable],
    history: Sequence[Sums],
) -> Finding:
    """Decide about measured sequences; ``history`` are the worker's last rollouts.

    ``claims`` are prompt and tokens of each: what its states follow from.
    """
    rules = manifest.toploc
    for index, measurement in enumerate(measurements):
        if measurement.proof_fault is not None:
            return Finding("format", f"sequence {index}: {measurement.proof_fault}")
    sums = of_rollout(measurements, claims)
    extremes = Extremes(*map(max, zip(*(item.extremes for item in measurements), strict=True)))

    def finding(reason: str, detail: str = "") -> Finding:
        return Finding(reason, detail, sums, extremes)

    limits = zip(_REASONS, compared_extremes(rules, extremes), strict=True)
    outside = {reason: str(one) for reason, one in limits if one.outside}
    if "computation" in outside:
        return finding("computation", outside["computation"])
    rollouts = [*history[-(rules.history_rollouts - 1) :], sums]
    if len(rollouts) >= HISTORY_ROLLOUTS_MIN:
        excess = beyond(rules, added(rollouts), rules.slash_rate)
        if excess is not None:
            return finding("history", f"{excess} on average over {len(rollouts)} rollouts")
    if outside:
        return finding(*next(iter(outside.items())))
    excess = beyond(rules, sums, rules.false_reject_rate)
    return finding(ACCEPTED) if excess is None else finding("statistics", f"{excess} on average")
