"""Which committee each node draws for the same commit, asked of a sample of the nodes."""

from blake3 import blake3

from node.daemon import Daemon
from simulations.runtime.trace import Emit

NODES_ASKED_MAX = 64
"""Drawing costs a hash per validator; the share that agrees is known well enough from these."""

AFTER_EPOCHS = 2
"""The committee is drawn in the epoch after the commit; by the end of that one all have done so."""


class Draws:
    """Asks nodes once per epoch of theirs."""

    def __init__(self, nodes: int) -> None:
        self._one_in = -(-nodes // NODES_ASKED_MAX)
        self._asked: dict[str, int] = {}

    def ask(self, name: str, number: int, daemon: Daemon, now: float, emit: Emit) -> None:
        """Record what node ``number`` draws for the commits made ``AFTER_EPOCHS`` epochs ago."""
        replica = daemon.replica
        epoch = replica.manifest.epoch_at(now) - AFTER_EPOCHS
        if number % self._one_in or self._asked.get(name) == epoch:
            return
        self._asked[name] = epoch
        for entry in list(replica.ledger.entries.values()):
            if entry.commit.message.epoch == epoch:
                committee = replica.committee(entry.commit)
                drawn = () if committee is None else committee.escalated
                members = blake3("/".join(drawn).encode()).hexdigest()[:16]
                emit("committee", commit=entry.commit.digest, members=members)
