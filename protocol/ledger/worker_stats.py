"""Statistics of workers: commits by outcome, measured rollouts, and evidence of faults.

Memory is bounded: keys are free, and each may commit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from protocol.core.containers import DecayingSum, SizeGauge, Table
from protocol.core.types import MEMBERS_MAX, Digest, PeerId
from protocol.ledger.commits import CommitChange, CommitState, CommitStatus, Entry
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.rollout.fit import Decided, Fit, fit_of
from protocol.run.manifest import RunManifest
from protocol.run.recipe import ToplocSection

CREDIT_MAX = 8
"""Pending commits of one worker that count as backlog: as many as an honest worker has. Half of the
ledger's limit, because some certificates have not arrived everywhere. A guess."""


HALF_LIFE_EPOCHS = 1440
"""Half-life of reputation: a day of one-minute epochs. A guess: a worker keeps its rank after a
night's absence, but not after a week's."""

EARNED_MAX = 64.0
"""Maximum positive part of reputation, in rollouts; without it a long-serving worker could waste as
many before it counts. A guess: some hundred of its commits may fail."""

EXPIRED_COST, REJECTED_COST = 0.5, 1.0
"""In certified rollouts. A commit expires if its body is withheld, and sometimes because no
validator had time to check it."""


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
    # The last digits of these two depend on the order of arrival of outcomes.
    earned: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)
    wasted: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)

    @property
    def credit(self) -> int:
        """Pending commits that are expected to succeed; capped, because making them is free."""
        return max(0, min(CREDIT_MAX, self.certified - self.expired - self.rejected))

    def worth(self, epoch: int) -> float:
        """Return the reputation of a worker in this epoch, in certified rollouts."""
        earned = self.earned.value_at(epoch, HALF_LIFE_EPOCHS)
        return min(EARNED_MAX, earned) - self.wasted.value_at(epoch, HALF_LIFE_EPOCHS)

    def apply(self, change: CommitChange) -> None:
        """Count a change of a commit."""
        entry, before, after = change.entry, change.before, change.after
        self.committed += before is None
        self.trained += after.trained_in is not None
        if before is not None:
            self.trained -= before.trained_in is not None
            if change.is_outcome:
                self._count_outcome(entry, before, -1)
                self._count_outcome(entry, after, 1)

    def _count_outcome(self, entry: Entry, status: CommitStatus, sign: int) -> None:
        """Count the outcome of a commit; ``sign`` -1 reverses it."""
        epoch = entry.epoch
        match status.state:
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
                self.reasons[status.reason] += sign


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decided rollouts of the commits still held, each worker's oldest first."""

    workers: dict[PeerId, list[Decided]] = field(default_factory=dict)
    fit: Fit = field(default_factory=Fit)

    @classmethod
    def of(cls, rules: ToplocSection, entries: Mapping[Digest, Entry]) -> "Decisions":
        """Return the decisions in a ledger's ``entries``."""
        outcomes = [(one.epoch, key, one) for key, one in entries.items() if one.certificate]
        workers: dict[PeerId, list[Decided]] = {}
        for _, _, entry in sorted(outcomes, key=lambda item: item[:2]):
            accepted = entry.state is CommitState.CERTIFIED
            rollout = Decided(accepted, entry.reason, entry.measured)
            workers.setdefault(entry.commit.signer, []).append(rollout)
        return cls(workers, fit_of(rules, workers))


UNCERTIFIED_MAX = 4096
"""Remembered keys without a certified rollout and without a commit in the ledger: 18 MB if each has
signed two commits for one slot. A forgotten key, even a slashed one, counts as new. Workers with a
certified rollout have their own limit."""


class WorkerTable:
    """The workers of one ledger."""

    def __init__(
        self, manifest: RunManifest, slashed_by_page: Callable[[PeerId], bool] = lambda _: False
    ) -> None:
        self._slash, self._slashed_by_page = manifest.credit.slash, slashed_by_page
        self.totals = WorkerStats()
        self.counts: dict[PeerId, WorkerStats] = {}
        """In the order of their first message."""
        self.forks: dict[PeerId, tuple[Digest, Digest]] = {}
        """Workers that signed two commits for one slot, with the evidence."""
        self._lies: dict[PeerId, Digest] = {}
        self._judged_from: dict[PeerId, int] = {}
        """Oldest version for which a committee has judged each worker."""
        self.uncertified = 0
        """Remembered keys without a certified rollout and without a commit in the ledger."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("uncertified_workers", UNCERTIFIED_MAX, lambda: self.uncertified),
        )

    def apply(self, change: CommitChange) -> None:
        """Record a change of a commit; one that proves a fault is kept as long as its worker."""
        entry = change.entry
        worker, digest = entry.commit.signer, entry.commit.digest
        self.totals.apply(change)
        self.counts.setdefault(worker, WorkerStats()).apply(change)
        if change.first is not None:
            self.forks[worker] = (change.first, digest)
        if change.is_outcome and entry.certificate is not None:
            version = entry.version
            self._judged_from[worker] = min(version, self._judged_from.get(worker, version))
            if change.after.reason in SLASHABLE_REASONS and not entry.certificate.message.accepted:
                self._lies.setdefault(worker, digest)
            elif self._lies.get(worker) == digest:
                del self._lies[worker]

    def was_judged(self, worker: PeerId, version: int) -> bool:
        """Return whether a committee has judged ``worker`` for ``version`` or an older one."""
        return self._judged_from.get(worker, version + 1) <= version

    def is_proof(self, worker: PeerId, commit: Digest) -> bool:
        """Return whether a commit proves a fault of its worker."""
        return commit == self._lies.get(worker) or commit in self.forks.get(worker, ())

    def is_slashed(self, worker: PeerId) -> bool:
        """Return whether a worker is slashed: a slashable offence, or two commits for one slot.

        A final page shows it to nodes that have never held, or have forgotten, the evidence.
        Its commits are no longer checked, but still accepted: some nodes may have received them
        before.
        """
        if not self._slash:
            return False
        counts = self.counts.get(worker)
        lied = (
            counts is not None
            and counts.rejected
            and not SLASHABLE_REASONS.isdisjoint(+counts.reasons)
        )
        return bool(lied) or worker in self.forks or self._slashed_by_page(worker)

    def forget(self, busy: Collection[PeerId]) -> None:
        """Evict the oldest workers outside ``busy`` where there are too many.

        Workers without a certified rollout never displace those with one.
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
