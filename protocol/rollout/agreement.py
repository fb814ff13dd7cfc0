"""Agreement of verdicts: honest members of a committee state nearly the same witness values.

Every node decides by the same integers which verdicts agree, because a certificate proves nothing
otherwise. The limits follow from the calibration of honest engines in the manifest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from operator import ne, sub
from typing import Self

from protocol.messages import WITNESSES, Verdict
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.rollout.fit import HISTORY, REWARD_HISTORY, REWARDS
from protocol.rollout.statistics import SCALE, disagreements_max
from protocol.run.recipe import ToplocSection

WITNESS_SIGMAS = 8
"""Limit of the mean difference of two verdicts' witness values, in units of ``gap_sigma``.

``gap_sigma`` is the error of sampled tokens; other tokens have larger ones. The mean difference of
two honest verdicts exceeded 1.7 to 4.2 ``gap_sigma`` once in 1,000 (four models and precisions,
``benchmarks/trust/witnesses.py``). A guess is off by 50 ``gap_sigma`` and more.
"""

DISAGREEMENT_RATE = 1e-3
"""Largest probability that honest engines differ in more replays than allowed. With 1e-6 the limit
of the bf16 recipes would be six of eight, which many verdicts without a replay stay within."""

CERTAIN_REASONS = SLASHABLE_REASONS - {HISTORY, REWARD_HISTORY}
"""Reasons of a rejection on which no two honest validators differ with an acceptance. ``history``
and ``reward-history`` depend on the certificates that a node holds, the others on rounding."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Limits on the differences of two honest verdicts about one commit."""

    witness_sum_max: int
    """Sum of the differences of all witness values, in billionths of a nat."""
    replays_max: int
    """Number of replays that differ."""

    @classmethod
    def of(cls, rules: ToplocSection) -> Self:
        """Return the limits of a run; the arithmetic is exact."""
        sums = WITNESS_SIGMAS * WITNESSES * SCALE * Fraction(rules.gap_sigma)
        share = rules.honest.replay_mismatches.mean
        return cls(int(sums), disagreements_max(min(1.0, share), WITNESSES, DISAGREEMENT_RATE))

    def agrees(self, one: Verdict, other: Verdict) -> bool:
        """Return whether two verdicts with the same result support the same outcome.

        Without witness values on both sides the reasons decide.
        """
        if one.witness and other.witness:
            return not self._differ(one, other)
        return _kind(one.reason) == _kind(other.reason)

    def contradicts(self, one: Verdict, other: Verdict) -> bool:
        """Return whether at least one of two verdicts cannot be honest.

        Their witness values differ too much, or one accepts what the other rejects with certainty.
        """
        if one.witness and other.witness and self._differ(one, other):
            return True
        rejecting = other if one.accept else one
        return one.accept is not other.accept and rejecting.reason in CERTAIN_REASONS

    def _differ(self, one: Verdict, other: Verdict) -> bool:
        differences = starmap(sub, zip(one.witness, other.witness, strict=True))
        is_far = sum(map(abs, differences)) > self.witness_sum_max
        return is_far or differing(one.replays, other.replays) > self.replays_max


def agreed_reason(verdicts: Sequence[Verdict]) -> str:
    """Return the reason that most verdicts give; ties go to the first in the alphabet."""
    reasons = sorted(verdict.reason for verdict in verdicts)
    return max(reasons, key=reasons.count, default="")


def differing(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of places at which two sequences of equal length differ."""
    return sum(starmap(ne, zip(one, other, strict=True)))


def _kind(reason: str) -> str:
    """Return the reason that honest members share: their histories may be of different length."""
    return "reward" if reason in REWARDS else reason
