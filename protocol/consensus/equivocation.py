"""Evidence of council members that signed two contradicting statements about one commit.

A member that accepts and rejects can give each half of the swarm another outcome. A member whose
verdict does not fit its seal may have copied it from another member. The council removes both.
"""

from collections.abc import Callable

from protocol.consensus.seals import Statement, is_contradiction
from protocol.core.containers import BoundedDict
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId, RunId
from protocol.messages import (
    COUNCIL_MAX,
    Evidence,
    RolloutCommit,
    Signed,
    Verdict,
    VerdictSeal,
    open_envelope,
)


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
        first, second = self._open(message.first), self._open(message.second)
        if first is None or second is None:
            return Fault(FaultCode.BAD_EVIDENCE, "not signed verdicts or seals of this run")
        if first.message.commit != commit.digest or not is_contradiction(first, second):
            return Fault(FaultCode.BAD_EVIDENCE, "its statements do not contradict each other")
        return first.signer

    def _open(self, envelope: bytes) -> Statement | None:
        run_id, verify = self._run_id, self._verify
        verdict = open_envelope(envelope, Verdict, run_id, verify)
        if isinstance(verdict, Signed):
            return verdict
        seal = open_envelope(envelope, VerdictSeal, run_id, verify)
        return seal if isinstance(seal, Signed) else None
