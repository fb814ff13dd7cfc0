"""What a ledger remembers of workers, and of how many: keys are free, and each may commit."""

from collections.abc import Collection
from itertools import islice

from protocol.audit import LIES
from protocol.ledger.counts import Counts
from protocol.types import MEMBERS_MAX, Digest, PeerId

UNCERTIFIED_MAX = 4096
"""Keys without a certified rollout that are remembered when none of their commits is here any more:
18 MB where each has signed two commits for one slot. Whoever is forgotten, a liar too, is what a
new key is. Who has had a rollout certified has its place beside them."""


class Workers:
    """The workers of one ledger."""

    def __init__(self) -> None:
        self.counts: dict[PeerId, Counts] = {}
        """In the order in which they were first heard of."""
        self.forks: dict[PeerId, tuple[Digest, Digest]] = {}
        """Workers that signed two commits for one slot, with the evidence."""
        self._lies: dict[PeerId, Digest] = {}
        self._judged_from: dict[PeerId, int] = {}
        """The oldest version for which a committee has judged a worker."""
        self.uncertified = 0
        """Remembered keys without a certified rollout of which no commit is here."""

    def of(self, worker: PeerId) -> Counts:
        """Return the counts of a worker, new ones if there are none."""
        return self.counts.setdefault(worker, Counts())

    def judged(self, worker: PeerId, version: int) -> None:
        """Note that a committee has judged a commit for a version."""
        self._judged_from[worker] = min(version, self._judged_from.get(worker, version))

    def was_judged(self, worker: PeerId, version: int) -> bool:
        """Tell whether a committee has judged ``worker`` for a version, or an older one."""
        return self._judged_from.get(worker, version + 1) <= version

    def rejected(self, worker: PeerId, commit: Digest, reason: str) -> None:
        """Note a rejected commit: a lie is kept as long as its worker is."""
        if reason in LIES:
            self._lies.setdefault(worker, commit)

    def is_proof(self, worker: PeerId, commit: Digest) -> bool:
        """Tell whether a commit proves a fault of its worker."""
        return commit == self._lies.get(worker) or commit in self.forks.get(worker, ())

    def is_guilty(self, worker: PeerId) -> bool:
        """Tell whether a worker has lied, or signed two commits for one slot."""
        counts = self.counts.get(worker)
        lied = counts is not None and counts.rejected and not LIES.isdisjoint(+counts.reasons)
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
