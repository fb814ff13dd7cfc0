"""Fit of a run's thresholds to its workers; repeated rejections slash only while they fit.

Thresholds of another model, machine or scoring runtime reject honest workers exactly as they reject
quantised weights. The other workers separate the two cases. A cheating worker deviates from them;
wrongly rejected workers deviate together, in the same direction. Any number of improbable rollouts
therefore slashes a worker only while another worker is within the same thresholds and these are not
in doubt. The rollouts are rejected in any case.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from protocol.core.types import PeerId
from protocol.rollout.statistics import Sums, added, directions
from protocol.run.recipe import ToplocSection

REWARD, REWARD_HISTORY = "reward", "reward-history"
"""Reasons for a differing reward, in one rollout and in too many."""

REWARDS = frozenset({REWARD, REWARD_HISTORY})

LIMITS = frozenset({"proofs", "logprobs", "sampling"})
"""Reasons for a single value beyond its limit, of claims that are plausible otherwise."""

STATISTICS, HISTORY = "statistics", "history"
"""Reasons for means beyond their bounds, in one rollout and in many."""

IMPROBABLE = LIMITS | REWARDS | {STATISTICS, HISTORY}
"""Reasons that honest workers also have: rarely if thresholds fit, always if they do not."""

ROLLOUTS_MIN = 2
"""Decided rollouts from which a worker counts: fewer than make a history."""

WORKERS_MIN = 2
"""Workers deviating in the same direction before thresholds are in doubt."""


class Decided(NamedTuple):
    """A rollout with a certificate: outcome, reason, and the values that the verdicts agree on."""

    accepted: bool
    reason: str
    measured: Sums | None


@dataclass(frozen=True, slots=True)
class WorkerFit:
    """Directions in which the last rollouts of a worker deviate; none if it fits.

    A direction is a statistic, with a minus sign for a negative shift, or a limit exceeded in half
    of the rollouts: ``reward``, ``proofs``, ``logprobs``, ``sampling``.
    """

    worker: PeerId
    directions: AbstractSet[str] = frozenset()
    earned: bool = False
    """True if more of these rollouts were certified than rejected: keys are free, work is not."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A direction in which enough workers deviate to put the thresholds in doubt."""

    direction: str
    workers: int
    of: int
    """All workers that count, including those that fit."""

    def __str__(self) -> str:
        who = f"{self.workers} of {self.of} workers"
        if self.direction == REWARD:
            return f"rewards of {who} differ from those of the validators: compare scoring runtimes"
        return (
            f"{who} are beyond {self.direction} in the same direction and exact otherwise: "
            "the thresholds may not fit this run; see `prime-node run recalibrate`"
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Evidence for and against a run's thresholds in the last rollouts of all workers."""

    workers: tuple[WorkerFit, ...] = ()

    @property
    def misfits(self) -> list[Misfit]:
        """The directions in doubt, the one of most workers first.

        At least two workers deviate in each: half of all that count, or two that are ``earned``.
        """
        count = len(self.workers)
        off = Counter(name for one in self.workers for name in one.directions)
        earned = Counter(name for one in self.workers if one.earned for name in one.directions)
        doubtful = (
            Misfit(name, workers, count)
            for name, workers in off.items()
            if workers >= WORKERS_MIN and (2 * workers >= count or earned[name] >= WORKERS_MIN)
        )
        return sorted(doubtful, key=lambda one: (-one.workers, one.direction))

    def ends(self, worker: PeerId, off: AbstractSet[str]) -> bool:
        """Return whether repeated deviations ``off`` slash ``worker``.

        Some other worker must fit: with a single worker, wrong thresholds look like a wrong worker.
        """
        shown = any(one.worker != worker and not one.directions for one in self.workers)
        return shown and off.isdisjoint({one.direction for one in self.misfits})


def fit_of(rules: ToplocSection, decided: Mapping[PeerId, Sequence[Decided]]) -> Fit:
    """Return the fit of the thresholds to each worker's decided rollouts, oldest first.

    A worker with a rollout rejected for any other reason does not count.
    """
    return Fit(
        tuple(
            _worker_fit(rules, worker, rollouts[-rules.history_rollouts :])
            for worker, rollouts in decided.items()
            if len(rollouts) >= ROLLOUTS_MIN
            and all(one.accepted or one.reason in IMPROBABLE for one in rollouts)
        )
    )


def _worker_fit(rules: ToplocSection, worker: PeerId, rollouts: Sequence[Decided]) -> WorkerFit:
    reasons = Counter(
        REWARD if one.reason in REWARDS else one.reason for one in rollouts if not one.accepted
    )
    often = {name for name in (*LIMITS, REWARD) if 2 * reasons[name] >= len(rollouts)}
    sums = added(one.measured for one in rollouts if one.measured is not None)
    return WorkerFit(
        worker,
        often | directions(rules, sums, rules.false_reject_rate),
        2 * reasons.total() < len(rollouts),
    )
