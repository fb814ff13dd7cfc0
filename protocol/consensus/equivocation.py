"""Exclusion of validators that equivocated.

A validator that signs an accepting and a rejecting verdict on one commit can give each half of the
swarm another outcome. The exclusion follows from the two signatures and the commit's epoch. It
begins when the commit can no longer have an outcome. Until then the evidence has time to reach
every node before the first committee that it changes.

A validator can forge a commit with an old epoch to be excluded at once, but gains nothing. For a
while some nodes draw one validator more than others, and the next one in rank checks what is
undecided.
"""

from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Epoch, PeerId
from protocol.messages import Evidence, RolloutCommit, Signed, Verdict, open_envelope
from protocol.run.manifest import RunManifest


class EquivocationTracker:
    """Accepted evidence: for each validator the piece that excludes it earliest."""

    def __init__(self, manifest: RunManifest, verify: Verifier) -> None:
        self._manifest = manifest
        self._run_id = manifest.run_id
        self._verify = verify
        self._evidence: dict[PeerId, Signed[Evidence]] = {}
        self._excluded_from: dict[PeerId, int] = {}
        self.revision = 0
        """Number of new or changed exclusions."""

    @property
    def evidence(self) -> list[Signed[Evidence]]:
        """All accepted evidence, at most one piece for each genesis validator."""
        return list(self._evidence.values())

    def excluded(self, epoch: int) -> tuple[PeerId, ...]:
        """Return the validators excluded from committees of ``epoch``."""
        return tuple(peer for peer, first in self._excluded_from.items() if first <= epoch)

    def offer(self, evidence: Signed[Evidence]) -> Fault | bool:
        """Check a piece of evidence and accept it; False if it excludes no earlier."""
        found = self._check(evidence.message)
        if isinstance(found, Fault):
            return found
        validator, epoch = found
        if not self.is_news(validator, epoch):
            return False
        self._evidence[validator] = evidence
        self._excluded_from[validator] = self._first_epoch(epoch)
        self.revision += 1
        return True

    def is_news(self, validator: PeerId, commit_epoch: int) -> bool:
        """Tell whether evidence about a commit of this epoch would exclude ``validator`` sooner."""
        first = self._excluded_from.get(validator)
        return first is None or self._first_epoch(commit_epoch) < first

    def _first_epoch(self, commit_epoch: int) -> Epoch:
        return Epoch(commit_epoch + self._manifest.committee.expire_after_epochs + 1)

    def _check(self, message: Evidence) -> tuple[PeerId, int] | Fault:
        """Return the equivocating validator and the epoch of the commit."""
        run_id, verify = self._run_id, self._verify
        commit = open_envelope(message.commit, RolloutCommit, run_id, verify)
        if isinstance(commit, Fault):
            return Fault(FaultCode.BAD_EVIDENCE, f"its commit: {commit}")
        accepting = open_envelope(message.accepting, Verdict, run_id, verify)
        rejecting = open_envelope(message.rejecting, Verdict, run_id, verify)
        if isinstance(accepting, Fault) or isinstance(rejecting, Fault):
            return Fault(FaultCode.BAD_EVIDENCE, "its verdicts are not signed verdicts of this run")
        if not self._manifest.is_validator(accepting.signer):
            return Fault(FaultCode.BAD_EVIDENCE, "its verdicts are not of a validator")
        one_author = accepting.signer == rejecting.signer
        one_commit = accepting.message.commit == rejecting.message.commit == commit.digest
        contradict = accepting.message.accept and not rejecting.message.accept
        if not (one_author and one_commit and contradict):
            return Fault(FaultCode.BAD_EVIDENCE, "its verdicts do not contradict each other")
        return accepting.signer, commit.message.epoch
