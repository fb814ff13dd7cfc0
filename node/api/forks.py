"""Reports of keys that signed two conflicting messages, identical on every node."""

from collections.abc import Iterator

from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from protocol.messages import Evidence, RolloutCommit, Signed, open_envelope
from protocol.replica.replica import Replica

FORKS_MAX = 64
"""Limit of reported keys; more forking keys gain an attacker nothing."""

_LASTING = "for the rest of the run"


def forks_told(replica: Replica) -> tuple[str, ...]:
    """Return a line per key, sorted by peer id, without details that differ between nodes."""
    told = _validators(replica) | _workers(replica)
    return tuple(told[peer] for peer in sorted(told))[:FORKS_MAX]


def contradictions(replica: Replica) -> Iterator[tuple[Signed[Evidence], PeerId, Digest]]:
    """Yield each proof of two conflicting verdicts, with the validator and the commit."""
    for validator, evidence in replica.intake.evidence.evidence.items():
        # The signature was verified on receipt.
        commit = open_envelope(
            evidence.message.commit, RolloutCommit, replica.run_id, lambda *_: True
        )
        if not isinstance(commit, Fault):
            yield evidence, validator, commit.digest


def _validators(replica: Replica) -> dict[PeerId, str]:
    return {
        validator: (
            f"validator {validator} signed two verdicts on one rollout: "
            f"the council removes it, {_LASTING}"
        )
        for _, validator, _ in contradictions(replica)
    }


def _workers(replica: Replica) -> dict[PeerId, str]:
    ended = "its reputation has ended" if replica.manifest.credit.slash else "both are verified"
    return {
        worker: f"worker {worker} signed two rollouts for one slot: {ended}, {_LASTING}"
        for worker in replica.ledger.workers.forks
    }
