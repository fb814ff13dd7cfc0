"""Backpressure: usable rollouts for the trainer, and the backlog that limits the workers.

Every node computes the same from the ledger, so there is no queue and no scheduler. Evaluation
rollouts are excluded from both, because no version learns from them.
"""

from collections import Counter
from collections.abc import Iterable

from protocol.core.types import Digest, PeerId
from protocol.ledger.chain import Chain
from protocol.ledger.commits import CommitChange, CommitState, Entry
from protocol.ledger.worker_stats import WorkerTable
from protocol.run.manifest import RunManifest


class Backpressure:
    """Commits that are certified or may still be, and that no version has learned from."""

    def __init__(self, manifest: RunManifest, chain: Chain, workers: WorkerTable) -> None:
        self._manifest = manifest
        self._chain = chain
        self._workers = workers
        self._unlearned: dict[Digest, Entry] = {}
        grpo = manifest.grpo
        batch = grpo.rollouts_per_step * grpo.batch_steps()
        self._awaited_max = int(batch * (1 + grpo.async_level + grpo.rollouts_ahead))

    def apply(self, change: CommitChange) -> None:
        """Follow a change of a commit."""
        entry, after = change.entry, change.after
        awaited = after.state is CommitState.COMMITTED and entry.timely
        waits = (awaited or after.state is CommitState.CERTIFIED) and after.trained_in is None
        waits = waits and not entry.overturned  # its policy is old by then
        if waits and change.is_held and not entry.is_evaluation:
            self._unlearned[entry.commit.digest] = entry
        else:
            self.forget(entry.commit.digest)

    def forget(self, commit: Digest) -> None:
        """Remove a commit."""
        self._unlearned.pop(commit, None)

    def _is_current(self, entry: Entry) -> bool:
        return self._chain.is_current(entry.version, entry.checkpoint)

    def awaited(self, entries: Iterable[Entry]) -> set[Digest]:
        """Return the commits that a version which is still missing may have learned from.

        They are the certified ones, oldest first, in the order of trainers: as many as the versions
        within ``async_level`` of a policy take, and as workers produce ahead. Without them no node
        could accept a version that it first receives after its batch has expired.
        """
        certified = CommitState.CERTIFIED
        waiting = [
            one
            for one in entries
            if one.state is certified and one.trained_in is None and not one.is_evaluation
        ]
        oldest = sorted(filter(self._is_current, waiting), key=_age)[: self._awaited_max]
        return {entry.commit.digest for entry in oldest}

    def usable(self) -> list[Entry]:
        """Return certified commits that the next version may learn from, oldest first."""
        certified = CommitState.CERTIFIED
        entries = [
            entry
            for entry in self._unlearned.values()
            if entry.state is certified
            and self._is_current(entry)
            and entry.version <= self._chain.version
        ]
        return sorted(entries, key=_age)

    def backlog(self, epoch: int) -> int:
        """Return the number of fresh commits that are certified or pending and not learned from.

        Only fresh ones count, so that commits which the trainer cannot use never stall the workers.
        Pending commits count up to the credit of their worker.
        """
        oldest = epoch - self._manifest.committee.expire_after_epochs
        certified, done, waiting = 0, CommitState.CERTIFIED, Counter[PeerId]()
        for entry in self._unlearned.values():
            if entry.epoch >= oldest and self._is_current(entry):
                if entry.state is done:
                    certified += 1
                else:
                    waiting[entry.commit.signer] += 1
        counts, slashed = self._workers.counts, self._workers.is_slashed
        unslashed = ((counts[who], n) for who, n in waiting.items() if not slashed(who))
        return certified + sum(min(n, stats.credit) for stats, n in unslashed)

    def wanted(self, epoch: int) -> int:
        """Return the number of rollouts that all workers should make now, from the backlog."""
        grpo = self._manifest.grpo
        backlog_max = grpo.rollouts_per_step * grpo.batch_steps() * grpo.rollouts_ahead
        waits = self._chain.version < grpo.steps
        return max(0, backlog_max - self.backlog(epoch)) if waits else 0


def _age(entry: Entry) -> tuple[int, int, Digest]:
    return entry.version, entry.epoch, entry.commit.digest
