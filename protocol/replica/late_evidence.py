"""Old commits from synchronisation: evidence against workers, and batches of missed versions.

A node forgets old commits and rejects them when they arrive. The commits that slash a worker are
kept, and offered in synchronisation, as long as the worker is remembered. A node that joins later
thus receives them, and checks them itself. Two commits for one slot are proof by themselves. A
rejected commit needs the certificate of its committee, and the page that drew it.

The commits in the batches of the newest versions are kept and offered too. A node that missed such
a version for long accepts it with their certificates, which are checked in the same way.
"""

from collections.abc import Sequence

from protocol.consensus.committee import split
from protocol.consensus.verdict_pool import VerdictTable
from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.ledger.ledger import Ledger
from protocol.ledger.slot_table import slot_of
from protocol.ledger.worker_stats import UNCERTIFIED_MAX
from protocol.membership.roster import Roster
from protocol.messages import Certificate, RolloutCommit, Signed, Verdict
from protocol.messages.pending import PendingPool
from protocol.replica.page_intake import PageIntake
from protocol.rollout.agreement import agreed_reason
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.run.manifest import RunManifest

OLD_COMMITS_MAX = 1024
"""Old commits that may wait for their evidence; about 1 KB each."""

FORKS_MAX = UNCERTIFIED_MAX
"""Limit on workers with two commits for one slot: keys are free."""


class LateEvidence:
    """Old commits from synchronisation, until they prove a fault or expire."""

    def __init__(
        self,
        manifest: RunManifest,
        ledger: Ledger,
        roster: Roster,
        intake: PageIntake,
        table: VerdictTable,
    ) -> None:
        self._manifest = manifest
        self._ledger = ledger
        self._roster = roster
        self._intake, self._table = intake, table
        self._commits = PendingPool(OLD_COMMITS_MAX, "old_commits")
        self.tables = (self._commits,)

    def __contains__(self, commit: object) -> bool:
        return commit in self._commits

    def expire(self, oldest: float) -> None:
        """Drop commits that arrived before ``oldest``."""
        self._commits.expire(oldest)

    def is_old(self, commit: Signed[RolloutCommit], epoch: int) -> bool:
        """Return whether an unknown commit is accepted only with proof in our ``epoch``."""
        if commit.digest in self._ledger.commits.entries:
            return False
        expired = commit.message.epoch + self._manifest.committee.expire_after_epochs < epoch
        return expired and (self._manifest.credit.slash or self._is_named(commit.digest))

    def _is_named(self, commit: Digest) -> bool:
        return commit in self._ledger.named()

    def offer_commit(
        self, commit: Signed[RolloutCommit], now: float
    ) -> tuple[Signed[RolloutCommit], ...]:
        """Add an old commit; return another one for its slot if both are accepted now."""
        if self._ledger.workers.is_slashed(commit.signer) and not self._is_named(commit.digest):
            return ()
        self._commits.add(commit, now)
        admitted = self._roster.admitted.knows(commit.signer)
        if not admitted or len(self._ledger.workers.forks) >= FORKS_MAX:
            return ()
        slot, waiting = slot_of(commit), self._commits.entries.values()
        for other, _ in waiting:
            if slot_of(other) == slot and other.digest != commit.digest:
                return (other,) if self._take([other, commit]) else ()
        return ()

    def wants(self, certificate: Signed[Certificate]) -> bool:
        """Tell whether a certificate may decide an old commit, so that it must be opened."""
        commit = Digest(certificate.message.commit)
        waiting = self._commits.entries.get(commit)
        if waiting is None:
            return False
        if certificate.message.accepted:
            return self._is_named(commit)
        # A final page may have overturned this rejection; if it stands, one has slashed the worker.
        worker = waiting[0].signer
        return not (self._ledger.workers.is_slashed(worker) or self._intake.was_cleared(worker))

    def offer_certificate(
        self, certificate: Signed[Certificate], verdicts: Sequence[Signed[Verdict]]
    ) -> Fault | bool:
        """Check a wanted certificate of an old commit; False if a rejection slashes nobody."""
        commit, _ = self._commits.entries[Digest(certificate.message.commit)]
        page = self._intake.tree.page(certificate.message.page)
        if page is None:
            return False
        rank = self._table.rank(certificate.message, verdicts, commit, page)
        if isinstance(rank, Fault):
            return rank
        deciding, _ = split(certificate.message, verdicts)
        slashes = agreed_reason([one.message for one in deciding]) in SLASHABLE_REASONS
        if not (certificate.message.accepted or slashes) or not self._take([commit]):
            return False
        return self._ledger.offer_certificate(certificate, deciding, rank)

    def _take(self, commits: Sequence[Signed[RolloutCommit]]) -> bool:
        """Add commits to the ledger, and tell whether it holds all of them."""
        for commit in commits:
            self._ledger.restore_commit(commit)
            self._commits.remove(commit.digest)
        return all(commit.digest in self._ledger.commits.entries for commit in commits)
