"""Evidence against workers for nodes that joined later: old commits that prove a fault.

A node forgets commits, and refuses old ones. The commits that slash a worker are kept and listed by
synchronisation for as long as the worker is remembered, so a node that joins later learns of them.
It checks them itself. Two commits for one slot prove themselves. A rejected commit needs the
certificate of a committee that the node would draw among the validators that it knows now and the
certificate's signers: no record tells which validators were live in an old epoch.
"""

from collections.abc import Sequence

from protocol.consensus.committee import check_certificate, draw
from protocol.consensus.electorate import LocalElectorate
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from protocol.ledger.commits import agreed_reason
from protocol.ledger.ledger import Ledger
from protocol.ledger.worker_stats import UNCERTIFIED_MAX
from protocol.membership.roster import Roster
from protocol.messages import Certificate, RolloutCommit, Signed, Verdict
from protocol.messages.pending import PendingPool
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.run.manifest import RunManifest

OLD_COMMITS_MAX = 1024
"""Old commits that may wait for what makes them evidence; about 1 KB each."""

FORKS_MAX = UNCERTIFIED_MAX
"""Workers that signed two commits for one slot, and then no more are believed: keys are free."""


class LateEvidence:
    """Old commits that came by synchronisation, until they prove something or are too old."""

    def __init__(
        self,
        manifest: RunManifest,
        ledger: Ledger,
        roster: Roster,
        electorate: LocalElectorate,
    ) -> None:
        self._manifest = manifest
        self._ledger = ledger
        self._roster = roster
        self._electorate = electorate
        self._commits = PendingPool(OLD_COMMITS_MAX, "old_commits")
        self.tables = (self._commits,)

    def __contains__(self, commit: object) -> bool:
        return commit in self._commits

    def expire(self, oldest: float) -> None:
        """Drop what arrived before ``oldest``."""
        self._commits.expire(oldest)

    def is_old(self, commit: Signed[RolloutCommit], epoch: int) -> bool:
        """Return whether a commit that is not here can be nothing but evidence in our ``epoch``."""
        if commit.digest in self._ledger.entries or not self._manifest.credit.slash:
            return False
        return commit.message.epoch + self._manifest.committee.expire_after_epochs < epoch

    def offer_commit(
        self, commit: Signed[RolloutCommit], now: float
    ) -> tuple[Signed[RolloutCommit], ...]:
        """Let an old commit wait; return another one for its slot if both are taken now."""
        if self._ledger.slashed(commit.signer):
            return ()
        self._commits.add(commit, now)
        admitted = self._roster.admitted.knows(commit.signer)
        if not admitted or len(self._ledger.forks) >= FORKS_MAX:
            return ()
        slot, waiting = _slot(commit), self._commits.entries.values()
        for other, _ in waiting:
            if _slot(other) == slot and other.digest != commit.digest:
                return (other,) if self._take([other, commit]) else ()
        return ()

    def wants(self, certificate: Signed[Certificate]) -> bool:
        """Return whether a certificate may make an old commit evidence: it is worth opening."""
        waiting = self._commits.entries.get(Digest(certificate.message.commit))
        rejects = not certificate.message.accepted
        return waiting is not None and rejects and not self._ledger.slashed(waiting[0].signer)

    def offer_certificate(
        self, certificate: Signed[Certificate], verdicts: Sequence[Signed[Verdict]]
    ) -> Fault | bool:
        """Check the certificate of an old commit; False when it proves no lie."""
        commit, _ = self._commits.entries[Digest(certificate.message.commit)]
        signers = {verdict.signer for verdict in verdicts}
        known = map(PeerId, self._manifest.genesis.validators)
        excluded = self._electorate.excluded(commit.message.epoch + 1)
        candidates = tuple(
            peer
            for peer in known
            if peer not in excluded and (peer in signers or peer in self._roster)
        )
        committee = draw(self._manifest, self._electorate, commit, candidates)
        fault = check_certificate(certificate.message, verdicts, committee)
        if fault is not None:
            return fault
        messages = [verdict.message for verdict in verdicts]
        if agreed_reason(messages) not in SLASHABLE_REASONS or not self._take([commit]):
            return False
        return self._ledger.offer_certificate(certificate, messages)

    def _take(self, commits: Sequence[Signed[RolloutCommit]]) -> bool:
        """Have the ledger take commits, and tell whether it did; its next look forgets no proof."""
        for commit in commits:
            self._ledger.restore_commit(commit)
            self._commits.remove(commit.digest)
        return all(commit.digest in self._ledger.entries for commit in commits)


_Slot = tuple[PeerId, int, bytes, int]


def _slot(commit: Signed[RolloutCommit]) -> _Slot:
    message = commit.message
    return commit.signer, message.version, message.checkpoint, message.slot
