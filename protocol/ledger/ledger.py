"""Ledger of all rollouts: commits, certificates and the versions that learned from them.

A grow-only set of signed messages and its pure consequences: the same on every node that holds the
same messages, in any order. The ledger draws no committees: ``replica`` has checked each
certificate before. Between two contradicting certificates the same one always wins
(``Entry.is_outranked_by``). A version that learned from a commit rejected later remains valid.

``Chain`` owns the versions, ``CommitTable`` the commits. Worker statistics and backpressure follow
from the changes of commits.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from protocol.core.containers import Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.backpressure import Backpressure
from protocol.ledger.branches import Branches
from protocol.ledger.chain import Chain, Lead
from protocol.ledger.commits import CommitChange, CommitTable, Entry
from protocol.ledger.worker_stats import Decisions, WorkerTable
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed, Verdict
from protocol.run.manifest import RunManifest


class Ledger:
    """The state machine; every ``offer_*`` either changes it or returns a reason."""

    def __init__(
        self, manifest: RunManifest, slashed_by_page: Callable[[PeerId], bool] = lambda _: False
    ) -> None:
        self._manifest = manifest
        self.chain = Chain(manifest)
        self.branches = Branches(self.chain)
        self.commits = CommitTable(manifest, self.chain)
        self.workers = WorkerTable(manifest, slashed_by_page)
        self.backpressure = Backpressure(manifest, self.chain, self.workers)
        self.epoch = 0
        self.batch_since: int | None = None
        """Epoch since which the commits of a whole batch have been usable; None: they are not."""
        self._decisions, self._decided_in = Decisions(), (-1, 0, 0, 0)
        self._tidied: tuple[int, int] | None = None
        """Epoch and newest version at the last cleanup of old commits and slots."""
        self.tables: tuple[Table, ...] = (
            *self.commits.tables,
            *self.workers.tables,
            self.branches,
        )

    # Commits and their outcomes

    def offer_commit(
        self,
        commit: Signed[RolloutCommit],
        epoch: int,
        *,
        anti_entropy: bool = False,
        counts: bool = True,
        is_listed: bool = False,
    ) -> Fault | bool:
        """Accept a commit in our ``epoch``; False if it is known or expired.

        A late commit, or one of a worker that does not count yet, is accepted only through
        ``anti_entropy``: it is not checked here, but may get an outcome. One that a page lists is
        accepted beyond its worker's limit.
        """
        change = self.commits.offer(
            commit, epoch, anti_entropy=anti_entropy, counts=counts, is_listed=is_listed
        )
        return change if isinstance(change, Fault) else self._apply_new(change)

    def restore_commit(self, commit: Signed[RolloutCommit]) -> None:
        """Restore a commit accepted before a restart, regardless of the pending limit."""
        self._apply_new(self.commits.restore(commit))

    def _apply_new(self, change: CommitChange | None) -> bool:
        if change is None:
            return False
        entry = change.entry
        if entry.epoch < self.epoch or not self.chain.is_current(entry.version, entry.checkpoint):
            self._tidied = None  # otherwise the next cleanup would skip it
        self._apply(change)
        return True

    def offer_certificate(
        self, certificate: Signed[Certificate], verdicts: Sequence[Signed[Verdict]], rank: bytes
    ) -> bool:
        """Accept a checked certificate of a known commit; False if a known one outranks it."""
        change = self.commits.decide(certificate, verdicts, rank, self.epoch)
        if change is not None:
            self._apply(change)
        return change is not None

    def overturn(self, commit: Digest, reason: str) -> None:
        """Overturn the outcome of a commit, as a final page does; no effect if it is unknown."""
        change = self.commits.overturn(commit, reason)
        if change is not None:
            self._apply(change)

    def _apply(self, change: CommitChange) -> None:
        self.workers.apply(change)
        self.backpressure.apply(change)

    def _apply_all(self, changes: Iterable[CommitChange]) -> None:
        for change in changes:
            self._apply(change)

    def proofs(self) -> list[Entry]:
        """Return the old commits that prove a fault of their worker."""
        is_proof, kept = self.workers.is_proof, self.commits.kept
        return [entry for key, entry in kept.items() if is_proof(entry.commit.signer, key)]

    def decisions(self) -> Decisions:
        """Return the certified and rejected rollouts, sorted once per change of outcomes."""
        totals, entries = self.workers.totals, self.commits.entries
        state = self.epoch, totals.certified, totals.rejected, len(entries)
        if state != self._decided_in:
            self._decided_in = state
            self._decisions = Decisions.of(self._manifest.toploc, entries)
        return self._decisions

    # Versions

    def offer_checkpoint(
        self, manifest: Signed[CheckpointManifest], now: float, lead: Lead, final_epoch: int = -1
    ) -> Fault | bool:
        """Accept a version on its trainer's signature; False if it is known or must wait.

        It waits for its parent, for the certificates of all commits in its batch, and for the final
        page that lets its trainer ``lead``. A node that accepts it knows those commits, so no
        honest node accepts a version that learned from a policy that was too old. ``final_epoch``:
        epoch of the newest final page.
        """
        taken = self.chain.fits(manifest)
        if taken is True:
            fault = self.commits.batch_fault(manifest) or _date_fault(manifest, now)
            taken = fault or self.chain.takes_word_for(manifest, lead)
        if taken is not True:
            return taken
        if not self.commits.are_certified(manifest):
            return False
        self._take_versions([manifest], now, final_epoch)
        return True

    def follow(self, lead: Lead, now: float) -> list[Signed[CheckpointManifest]]:
        """Adopt the pending branch that ends with the final version; return what is accepted.

        Our own branch is dropped if it differs, and so are the versions after the final one that a
        former leader has published. Honest members name a version after the one before: a branch
        that takes a final version back is refused, and the node remains behind.
        """
        branch = self.branches.to(Digest(lead.head))
        is_sound = branch and self.chain.extends_final(branch)
        if is_sound and self.chain.branch_fault(branch) is None:
            self._take_versions(branch, now)
            for manifest in branch:
                self.branches.remove(manifest.digest)
        else:
            branch = []
        outdated = self.chain.outdated(lead)
        if outdated is not None:
            self._apply_all(self.commits.follow(self.chain.drop_from(outdated), ()))
            self.batch_since = None
        self.chain.note_final(lead)
        return branch

    def named(self) -> dict[Digest, None]:
        """Return the commits that the newest versions, and pending ones after them, learned from.

        A node that missed such a version accepts it only with their certificates, however old.
        A trainer alone publishes at most ``async_level`` + 1 versions: then its rollouts are stale.
        """
        newest = self.chain.checkpoints[-1 - self._manifest.grpo.async_level :]
        versions = [entry.manifest for entry in newest] + self.branches.candidates()
        return dict.fromkeys(Digest(commit) for one in versions for commit in one.message.batch)

    def restore_checkpoint(self, manifest: Signed[CheckpointManifest]) -> None:
        """Restore a version accepted before a restart; its batch is not checked again."""
        if self.chain.fits(manifest) is True:
            self._take_versions([manifest], float("-inf"))

    def _take_versions(
        self, branch: Sequence[Signed[CheckpointManifest]], now: float, final_epoch: int = -1
    ) -> None:
        self.batch_since = None
        removed = self.chain.replace(branch, now, final_epoch)
        self._apply_all(self.commits.follow(removed, branch))

    # Time

    def advance(self, epoch: int, needed: Callable[[], Collection[Digest]] = tuple) -> None:
        """Expire commits that waited too long, and forget old ones that are not ``needed``."""
        expire_after = self._manifest.committee.expire_after_epochs
        if epoch != self.epoch:
            self._note_batch(epoch)
        self.epoch = epoch
        self._apply_all(self.commits.expire(epoch - expire_after))
        state = epoch, self.chain.version
        if self._tidied != state:
            for digest in self.commits.retire(epoch - 4 * expire_after, needed()):
                self.backpressure.forget(digest)
            self.workers.forget({entry.commit.signer for entry in self.commits.entries.values()})
            awaited = self.backpressure.awaited(self.commits.kept.values())
            self.commits.drop_kept(awaited | self.named().keys(), self.workers.is_proof)
            self._tidied = state

    def _note_batch(self, epoch: int) -> None:
        grpo = self._manifest.grpo
        if len(self.backpressure.usable()) < grpo.rollouts_per_step * grpo.batch_steps():
            self.batch_since = None
        elif self.batch_since is None:
            self.batch_since = epoch


def _date_fault(manifest: Signed[CheckpointManifest], now: float) -> Fault | None:
    """Check the date of a version: from a later one more keys would count as old enough."""
    ahead_seconds = manifest.message.created_at / 1000 - now
    if ahead_seconds <= CLOCK_SKEW_SECONDS_MAX:
        return None
    return Fault(FaultCode.CLOCK_SKEW, f"made {ahead_seconds:.1f} s ahead of our clock")
