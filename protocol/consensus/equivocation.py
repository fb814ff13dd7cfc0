"""Evidence of council members that signed an accepting and a rejecting verdict on one commit.

Such a member can give each half of the swarm another outcome. The council removes it.
"""

from collections.abc import Callable

from protocol.core.containers import BoundedDict
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId, RunId
from protocol.messages import COUNCIL_MAX, Evidence, RolloutCommit, Signed, Verdict, open_envelope


class EquivocationTable:
    """Accepted evidence: the first piece about each member."""

    def __init__(
        self, run_id: RunId, verify: Verifier, is_member: Callable[[PeerId], bool]
    ) -> None:
        self._run_id, self._verify, self._is_member = run_id, verify, is_member
        self.evidence = BoundedDict[PeerId, Signed[Evidence]](COUNCIL_MAX, "evidence")

    def __contains__(self, peer: object) -> bool:
        return peer in self.evidence

    def offer(self, evidence: Signed[Evidence]) -> Fault | bool:
        """Check a piece of evidence and accept it; False if there is one about the same member."""
        member = self._check(evidence.message)
        if isinstance(member, Fault):
            return member
        if member in self.evidence or not self._is_member(member):
            return False
        self.evidence[member] = evidence
        return True

    def _check(self, message: Evidence) -> PeerId | Fault:
        """Return the equivocating key."""
        run_id, verify = self._run_id, self._verify
        commit = open_envelope(message.commit, RolloutCommit, run_id, verify)
        if isinstance(commit, Fault):
            return Fault(FaultCode.BAD_EVIDENCE, f"its commit: {commit}")
        accepting = open_envelope(message.accepting, Verdict, run_id, verify)
        rejecting = open_envelope(message.rejecting, Verdict, run_id, verify)
        if isinstance(accepting, Fault) or isinstance(rejecting, Fault):
            return Fault(FaultCode.BAD_EVIDENCE, "its verdicts are not signed verdicts of this run")
        one_author = accepting.signer == rejecting.signer
        one_commit = accepting.message.commit == rejecting.message.commit == commit.digest
        contradict = accepting.message.accept and not rejecting.message.accept
        if not (one_author and one_commit and contradict):
            return Fault(FaultCode.BAD_EVIDENCE, "its verdicts do not contradict each other")
        return accepting.signer
