"""What became of the commits of one worker, or of all of them, in numbers.

The rollouts with a certificate, by worker, and what they say of the run's thresholds.

What a ledger remembers of workers, and of how many: keys are free, and each may commit.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from protocol.core.containers import DecayingSum
from protocol.core.types import MEMBERS_MAX, Digest, PeerId
from protocol.ledger.commits import CommitState, Entry
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.rollout.fit import Decided, Fit, fit_of
from protocol.run.recipe import ToplocSection

CREDIT_MAX = 8
"""Unsettled commits of one worker that hold back the others: as many as an honest one has. Half of
what a ledger takes, because the certificates of some are still on their way to others. A guess."""


HALF_LIFE_EPOCHS = 1440
"""After which work counts half as much, in standing: a day of epochs of a minute. A guess: a worker
that was away for a night comes back to its place, one that was away for a week does not."""

EARNED_MAX = 64.0
"""Rollouts that speak for a worker, however many were certified: else who has done a lot could
waste as much before it counts. A guess: some hundred of its commits may come to nothing."""

EXPIRED_COST, REJECTED_COST = 0.5, 1.0
"""Of a certified rollout. A commit expires when its body is withheld, and at times because nobody
found the time to check it."""


@dataclass(slots=True)
class WorkerStats:
    """Commits by outcome; ``committed`` counts all of them."""

    committed: int = 0
    certified: int = 0
    rejected: int = 0
    expired: int = 0
    trained: int = 0
    tokens_certified: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    # The last digits of these two depend on the order in which outcomes came.
    earned: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)
    wasted: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)

    @property
    def credit(self) -> int:
        """How many unsettled commits are believed to come to something: they are free to make."""
        return max(0, min(CREDIT_MAX, self.certified - self.expired - self.rejected))

    def worth(self, epoch: int) -> float:
        """Return what speaks for a worker, in certified rollouts of this epoch."""
        earned = self.earned.value_at(epoch, HALF_LIFE_EPOCHS)
        return min(EARNED_MAX, earned) - self.wasted.value_at(epoch, HALF_LIFE_EPOCHS)

    def add_state(self, entry: Entry, sign: int = 1) -> None:
        """Count the state of a commit, or with ``sign`` -1 take it out again."""
        epoch = entry.epoch
        match entry.state:
            case CommitState.COMMITTED:
                pass
            case CommitState.EXPIRED:
                self.expired += sign
                self.wasted.add(sign * EXPIRED_COST, epoch, HALF_LIFE_EPOCHS)
            case CommitState.CERTIFIED:
                self.certified += sign
                self.earned.add(sign, epoch, HALF_LIFE_EPOCHS)
                self.tokens_certified += sign * entry.commit.message.tokens
            case CommitState.REJECTED:
                self.rejected += sign
                self.wasted.add(sign * REJECTED_COST, epoch, HALF_LIFE_EPOCHS)
                self.reasons[entry.reason] += sign


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decided rollouts of the commits that are not forgotten, the oldest of a worker first."""

    workers: dict[PeerId, list[Decided]] = field(default_factory=dict)
    fit: Fit = field(default_factory=Fit)

    @classmethod
    def of(cls, rules: ToplocSection, entries: Mapping[Digest, Entry]) -> "Decisions":
        """Return those of a ledger's ``entries``."""
        outcomes = [(one.epoch, key, one) for key, one in entries.items() if one.certificate]
        workers: dict[PeerId, list[Decided]] = {}
        for _, _, entry in sorted(outcomes, key=lambda item: item[:2]):
            accepted = entry.state is CommitState.CERTIFIED
            rollout = Decided(accepted, entry.reason, entry.measured)
            workers.setdefault(entry.commit.signer, []).append(rollout)
        return cls(workers, fit_of(rules, workers))


UNCERTIFIED_MAX = 4096
"""Keys without a certified rollout that are remembered when none of their commits is here any more:
18 MB where each has signed two commits for one slot. Whoever is forgotten, a liar too, is what a
new key is. Who has had a rollout certified has its place beside them."""


class WorkerTable:
    """The workers of one ledger."""

    def __init__(self) -> None:
        self.counts: dict[PeerId, WorkerStats] = {}
        """In the order in which they were first heard of."""
        self.forks: dict[PeerId, tuple[Digest, Digest]] = {}
        """Workers that signed two commits for one slot, with the evidence."""
        self._lies: dict[PeerId, Digest] = {}
        self._judged_from: dict[PeerId, int] = {}
        """The oldest version for which a committee has judged a worker."""
        self.uncertified = 0
        """Remembered keys without a certified rollout of which no commit is here."""

    def of(self, worker: PeerId) -> WorkerStats:
        """Return the counts of a worker, new ones if there are none."""
        return self.counts.setdefault(worker, WorkerStats())

    def judged(self, worker: PeerId, version: int) -> None:
        """Note that a committee has judged a commit for a version."""
        self._judged_from[worker] = min(version, self._judged_from.get(worker, version))

    def was_judged(self, worker: PeerId, version: int) -> bool:
        """Return whether a committee has judged ``worker`` for a version, or an older one."""
        return self._judged_from.get(worker, version + 1) <= version

    def rejected(self, worker: PeerId, commit: Digest, reason: str) -> None:
        """Note a rejected commit: a lie is kept as long as its worker is."""
        if reason in SLASHABLE_REASONS:
            self._lies.setdefault(worker, commit)

    def is_proof(self, worker: PeerId, commit: Digest) -> bool:
        """Return whether a commit proves a fault of its worker."""
        return commit == self._lies.get(worker) or commit in self.forks.get(worker, ())

    def is_guilty(self, worker: PeerId) -> bool:
        """Return whether a worker has lied, or signed two commits for one slot."""
        counts = self.counts.get(worker)
        lied = (
            counts is not None
            and counts.rejected
            and not SLASHABLE_REASONS.isdisjoint(+counts.reasons)
        )
        return bool(lied) or worker in self.forks

    def forget(self, busy: Collection[PeerId]) -> None:
        """Forget who was heard of first, of those that are not ``busy``, where there are too many.

        Who has never had a rollout certified takes no place of who has.
        """
        idle = [worker for worker in self.counts if worker not in busy]
        certified = [worker for worker in idle if self.counts[worker].certified]
        others = [worker for worker in idle if not self.counts[worker].certified]
        surplus = len(certified) - MEMBERS_MAX, len(others) - UNCERTIFIED_MAX
        for workers, count in zip((certified, others), surplus, strict=True):
            for worker in islice(workers, max(0, count)):
                for table in (self.counts, self.forks, self._lies, self._judged_from):
                    table.pop(worker, None)
        self.uncertified = min(len(others), UNCERTIFIED_MAX)
