"""Keys that have signed two things of which one may be said: the same words on every node."""

from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.messages import Verdict, open_envelope
from protocol.replica.replica import Replica

FORKS_MAX = 64
"""Told of at once; whoever makes more keys to fork with gains nothing by it."""

_LASTING = "for the rest of the run"


def forks_told(replica: Replica) -> tuple[str, ...]:
    """Return a line for each key, by peer id; it names nothing that nodes may hold different."""
    told = _validators(replica) | _workers(replica)
    return tuple(told[peer] for peer in sorted(told))[:FORKS_MAX]


def _validators(replica: Replica) -> dict[PeerId, str]:
    found = {}
    for evidence in replica.evidence:
        one = open_envelope(evidence.message.accepting, Verdict, replica.run_id, lambda *_: True)
        if not isinstance(one, Fault):
            found[one.signer] = (
                f"validator {one.signer} signed two verdicts on one rollout: "
                f"it is in no committee, {_LASTING}"
            )
    return found


def _workers(replica: Replica) -> dict[PeerId, str]:
    ended = "its standing has ended" if replica.manifest.credit.slash else "both are checked"
    return {
        worker: f"worker {worker} signed two rollouts for one slot: {ended}, {_LASTING}"
        for worker in replica.ledger.forks
    }
