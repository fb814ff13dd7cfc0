"""Audit of a rollout body by a validator, cheapest checks first.

The order is fixed: format, limits and termination, assignment (by construction: prompts and seeds
are recomputed, never read), rewards. Then follow the results of one prefill: proofs, the loose
limits of single values, the statistics of this rollout, and those of its worker's last ones. The
first failure is the verdict's reason, except for differing rewards. Honest machines may disagree
about a score, so the other checks run first, and a rollout is rejected for its reward only if it is
exact otherwise.

A result that no accident explains slashes the worker. An improbable result, a rollout that is too
far from ours or has another score here, is only rejected. An honest worker accumulates more of them
than allowed once in ``1 / slash_rate`` tries. A worker with more is slashed too, as long as the
run's thresholds fit other workers (``protocol.rollout.fit``).
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from protocol.messages import ACCEPTED, RolloutCommit, Verdict
from protocol.rollout.body import RolloutSequence, decode_body
from protocol.rollout.fit import (
    HISTORY,
    REWARD,
    REWARD_HISTORY,
    REWARDS,
    STATISTICS,
    Decided,
    Fit,
    WorkerFit,
)
from protocol.rollout.statistics import (
    Extremes,
    Measurement,
    Sums,
    added,
    beyond,
    compared_extremes,
    directions,
    disagreements_max,
    of_rollout,
    stated,
)
from protocol.rollout.witness import WitnessValue
from protocol.run.manifest import RunManifest

SLASHABLE_REASONS = frozenset({"format", "termination", "computation", HISTORY, REWARD_HISTORY})
"""Slashable reasons of a rejection; the others cost the worker only the rollout."""

_REASONS = ("proofs", "proofs", "proofs", "logprobs", "sampling")
"""Reason of each of the ``Extremes`` beyond its limit, in their order."""

UNRELATED_SHARE = 0.75
"""Share of a chunk's values with differing exponents if states are unrelated. 127 of 128 were
measured for another model; of honest engines one chunk in some thousands exceeds 38."""

HISTORY_ROLLOUTS_MIN = 4
"""Fewer rollouts are no history: a single one of a broken machine may deviate by any amount."""


@dataclass(frozen=True, slots=True)
class Past:
    """Decided rollouts at an audit: the worker's last ones, and those of all workers."""

    worker: PeerId
    rollouts: Sequence[Decided] = ()
    """Its rollouts with a certificate, oldest first."""
    fit: Fit = field(default_factory=Fit)

    @classmethod
    def of(cls, history: Iterable[Sums]) -> Self:
        """Return the past of a worker with accepted rollouts, beside another worker that fits."""
        accepted = [Decided(accepted=True, reason=ACCEPTED, measured=sums) for sums in history]
        return cls(PeerId("worker"), accepted, Fit((WorkerFit(PeerId("another worker")),)))


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Result of an audit; the other fields are present if something was measured."""

    reason: str
    detail: str = ""
    sums: Sums | None = None
    extremes: Extremes | None = None
    witness: tuple[WitnessValue, ...] = ()
    """Values at the witness points, in the order of their draw."""

    @property
    def accept(self) -> bool:
        """True if every check passed."""
        return self.reason == ACCEPTED

    def verdict(self, commit: Digest, page: bytes, nonce: bytes) -> Verdict:
        """Return the verdict for a validator to sign; ``page`` drew the committee."""
        return Verdict(
            commit=commit,
            page=page,
            nonce=nonce,
            accept=self.accept,
            reason=self.reason,
            detail=self.detail[:200],
            chunks=0 if self.sums is None else self.sums.chunks,
            means=() if self.sums is None else stated(self.sums.means),
            extremes=stated(self.extremes or ()),
            witness=stated(value.logprob for value in self.witness),
            replays=tuple(value.replay for value in self.witness),
        )


def audited(manifest: RunManifest, lot: bytes, rewards: Sequence[int]) -> list[int]:
    """Return the indices of the sequences that the prefill covers, at least one of each group.

    ``lot`` is the beacon of a page followed by the digest of the commit: the worker could not
    predict it, as the page is later than the commit. ``rewards`` are the claimed ones of all
    sequences. A trainer learns nothing from a group of equal rewards, so fewer of its sequences are
    covered. Of a group that its worker invented every one shows that.
    """
    rules, size = manifest.toploc, manifest.sampling.group_size
    chosen: list[int] = []
    for first in range(0, len(rewards), size):
        group = range(first, first + size)
        is_uniform = len({rewards[index] for index in group}) == 1
        share = rules.uniform_audit_share if is_uniform else rules.audit_share
        ranked = sorted(group, key=lambda index: digest(lot + index.to_bytes(4, "big")))
        chosen += sorted(ranked[: max(1, math.ceil(size * share))])
    return chosen


def read_body(
    manifest: RunManifest, commit: RolloutCommit, body: bytes
) -> list[RolloutSequence] | AuditResult:
    """Return the sequences of a body, or the reason why it does not match its commit.

    ``body_bytes`` is the exact length: with a free number a worker could search for a commit with a
    committee and audit that it likes.
    """
    if len(body) != commit.body_bytes:
        return AuditResult("format", f"{len(body)} bytes, its commit says {commit.body_bytes}")
    sequences = decode_body(body, manifest)
    return (
        AuditResult("format", str(sequences)[:200]) if isinstance(sequences, Fault) else sequences
    )


def check_claims(
    manifest: RunManifest,
    commit: RolloutCommit,
    sequences: Sequence[RolloutSequence],
) -> AuditResult | None:
    """Check everything that needs neither a model nor the task."""
    if sum(len(item.tokens) for item in sequences) != commit.tokens:
        return AuditResult("format", "token count differs from the commit")
    end_tokens, vocabulary_size = manifest.model.end_tokens, manifest.model.vocabulary_size
    for index, item in enumerate(sequences):
        if any(not 0 <= token < vocabulary_size for token in item.tokens):
            return AuditResult("format", f"sequence {index}: a token is not in the vocabulary")
        if any(token in end_tokens for token in item.tokens[:-1]):
            return AuditResult("format", f"sequence {index}: tokens after an end token")
    limit = manifest.sampling.tokens_max
    for index, item in enumerate(sequences):
        if item.tokens[-1] not in end_tokens and len(item.tokens) < limit:
            return AuditResult("termination", f"sequence {index} stops without an end token")
    return None


def check_rewards(
    manifest: RunManifest, sequences: Sequence[RolloutSequence], rewards: Sequence[int], past: Past
) -> AuditResult | None:
    """Compare claimed rewards with our own ``rewards``, in millionths.

    Any number of differing sequences is one disagreement: answers to one problem share their cause,
    and a machine with one differing score may have others.
    """
    pairs = enumerate(zip(sequences, rewards, strict=True))
    differing = [(index, item.reward, own) for index, (item, own) in pairs if item.reward != own]
    if not differing:
        return None
    index, claimed, own = differing[0]
    detail = f"sequence {index}: claimed {claimed / 1e6:g}, recomputed {own / 1e6:g}"
    if len(differing) > 1:
        detail += f"; {len(differing)} of {len(rewards)} differ"
    rules = manifest.toploc
    last = past.rollouts[-(rules.history_rollouts - 1) :]
    found, count = 1 + sum(map(_is_disagreement, last)), 1 + len(last)
    share = manifest.credit.reward_disagreement_rate
    many = found > disagreements_max(share, count, rules.slash_rate)
    if many and past.fit.ends(past.worker, {REWARD}):
        return AuditResult(REWARD_HISTORY, f"in {found} of {count} rollouts; {detail}")
    return AuditResult(REWARD, detail)


def _is_disagreement(rollout: Decided) -> bool:
    return not rollout.accepted and rollout.reason in REWARDS


def decide(
    manifest: RunManifest,
    measurements: Sequence[Measurement],
    claims: Sequence[Hashable],
    past: Past,
    rewards: AuditResult | None = None,
) -> AuditResult:
    """Decide on measured sequences; ``rewards`` is a finding of ``check_rewards``, if any.

    ``claims`` are prompt and tokens of each sequence, which determine its states.
    """
    rules = manifest.toploc
    for index, measurement in enumerate(measurements):
        if measurement.proof_fault is not None:
            return AuditResult("format", f"sequence {index}: {measurement.proof_fault}")
    sums = of_rollout(measurements, claims)
    extremes = Extremes(*map(max, zip(*(item.extremes for item in measurements), strict=True)))

    def finding(reason: str, detail: str = "") -> AuditResult:
        return AuditResult(reason, detail, sums, extremes)

    unrelated = _unrelated(manifest, measurements)
    if 2 * unrelated > len(measurements):
        return finding("computation", f"{unrelated} of {len(measurements)} sequences: other states")
    limits = zip(_REASONS, compared_extremes(rules, extremes), strict=True)
    outside = {reason: str(one) for reason, one in limits if one.outside}
    last = [one.measured for one in past.rollouts if one.measured is not None]
    rollouts = [*last[-(rules.history_rollouts - 1) :], sums]
    every = added(rollouts) if len(rollouts) >= HISTORY_ROLLOUTS_MIN else Sums(0, 0)
    lasting = beyond(rules, every, rules.slash_rate)
    many = f"{lasting} on average over {len(rollouts)} rollouts"
    if lasting is not None:
        off = directions(rules, every, rules.slash_rate)
        if past.fit.ends(past.worker, off):
            return finding(HISTORY, many)
    if outside:
        return finding(*next(iter(outside.items())))
    excess = beyond(rules, sums, rules.false_reject_rate)
    if excess is not None:
        return finding(STATISTICS, f"{excess} on average")
    if lasting is not None:
        return finding(STATISTICS, many)
    return finding(ACCEPTED) if rewards is None else replace(rewards, sums=sums, extremes=extremes)


def _unrelated(manifest: RunManifest, measurements: Sequence[Measurement]) -> int:
    """Return the number of sequences with a chunk proof of unrelated states."""
    least = UNRELATED_SHARE * manifest.toploc.top_k
    return sum(item.extremes.exponent_mismatches_max > least for item in measurements)
