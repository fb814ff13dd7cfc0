"""Reports of keys that signed two conflicting messages, identical on every node."""

from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.messages import Verdict, open_envelope
from protocol.replica.replica import Replica

FORKS_MAX = 64
"""Limit of reported keys; more forking keys gain an attacker nothing."""

_LASTING = "for the rest of the run"


def forks_told(replica: Replica) -> tuple[str, ...]:
    """Return a line per key, sorted by peer id, without details that differ between nodes."""
    told = _validators(replica) | _workers(replica)
    return tuple(told[peer] for peer in sorted(told))[:FORKS_MAX]


def _validators(replica: Replica) -> dict[PeerId, str]:
    found = {}
    for evidence in replica.verdicts.equivocators.evidence:
        one = open_envelope(evidence.message.accepting, Verdict, replica.run_id, lambda *_: True)
        if not isinstance(one, Fault):
            found[one.signer] = (
                f"validator {one.signer} signed two verdicts on one rollout: "
                f"excluded from committees, {_LASTING}"
            )
    return found


def _workers(replica: Replica) -> dict[PeerId, str]:
    ended = "its reputation has ended" if replica.manifest.credit.slash else "both are verified"
    return {
        worker: f"worker {worker} signed two rollouts for one slot: {ended}, {_LASTING}"
        for worker in replica.ledger.workers.forks
    }
