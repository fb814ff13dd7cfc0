"""Backpressure: usable rollouts for the trainer, and the backlog that limits the workers.

Every node computes the same from the ledger, so there is no queue and no scheduler. Evaluation
rollouts are excluded from both, because no version learns from them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from protocol.core.types import Digest, PeerId
from protocol.ledger.chain import Chain
from protocol.ledger.commits import CommitState, Entry
from protocol.ledger.worker_stats import WorkerStats
from protocol.rollout.assignment import is_evaluation
from protocol.run.manifest import RunManifest


class Backpressure:
    """Commits that are certified or may still be, and that no version has learned from."""

    def __init__(self, manifest: RunManifest, chain: Chain) -> None:
        self._manifest = manifest
        self._chain = chain
        self._unlearned: dict[Digest, Entry] = {}
        grpo = manifest.grpo
        self._awaited_max = int(
            grpo.rollouts_per_step * (1 + grpo.async_level + grpo.rollouts_ahead)
        )

    def file(self, entry: Entry) -> None:
        """Update a commit of the ledger after a change of its state or training."""
        awaited = entry.state is CommitState.COMMITTED and entry.timely
        done = entry.state is CommitState.CERTIFIED
        if (awaited or done) and entry.trained_in is None and not self._is_evaluation(entry):
            self._unlearned[entry.commit.digest] = entry
        else:
            self.forget(entry.commit.digest)

    def _is_evaluation(self, entry: Entry) -> bool:
        return is_evaluation(self._manifest, entry.version, entry.commit.message.slot)

    def forget(self, commit: Digest) -> None:
        """Remove a commit."""
        self._unlearned.pop(commit, None)

    def is_current(self, entry: Entry) -> bool:
        """Return whether the next version or a later one may learn from such a commit."""
        return self._chain.is_current(entry.version, entry.commit.message.checkpoint)

    def awaited(self, entries: Iterable[Entry]) -> set[Digest]:
        """Return the commits that a version which is still missing may have learned from.

        They are the certified ones, oldest first, in the order of trainers: as many as the versions
        within ``async_level`` of a policy take, and as workers produce ahead. Without them no node
        could accept a version that it first receives after its batch has expired.
        """
        certified, current = CommitState.CERTIFIED, self.is_current
        waiting = [
            one
            for one in entries
            if one.state is certified and one.trained_in is None and not self._is_evaluation(one)
        ]
        oldest = sorted(filter(current, waiting), key=_age)[: self._awaited_max]
        return {entry.commit.digest for entry in oldest}

    def usable(self) -> list[Entry]:
        """Return certified commits that the next version may learn from, oldest first."""
        certified = CommitState.CERTIFIED
        entries = [
            entry
            for entry in self._unlearned.values()
            if entry.state is certified
            and self.is_current(entry)
            and entry.version <= self._chain.version
        ]
        return sorted(entries, key=_age)

    def backlog(
        self, epoch: int, workers: Mapping[PeerId, WorkerStats], slashed: Callable[[PeerId], bool]
    ) -> int:
        """Return the number of fresh commits that are certified or pending and not learned from.

        Only fresh ones count, so that commits which the trainer cannot use never stall the workers.
        Pending commits count up to the credit of their worker.
        """
        oldest = epoch - self._manifest.committee.expire_after_epochs
        certified, done, waiting = 0, CommitState.CERTIFIED, Counter[PeerId]()
        for entry in self._unlearned.values():
            if entry.epoch >= oldest and self.is_current(entry):
                if entry.state is done:
                    certified += 1
                else:
                    waiting[entry.commit.signer] += 1
        unslashed = ((workers[who], n) for who, n in waiting.items() if not slashed(who))
        return certified + sum(min(n, counts.credit) for counts, n in unslashed)


def _age(entry: Entry) -> tuple[int, int, Digest]:
    return entry.version, entry.epoch, entry.commit.digest
