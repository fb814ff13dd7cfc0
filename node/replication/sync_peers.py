"""Whom a node asks after its start what it missed, and when enough of them have told it.

One peer may have just come itself, or may want us to believe little. So several of different
networks have to tell, as far as we know so many, and one of the genesis if a record says that one
is here: for that we wait until the record is too old. Others that are not connected are waited for
only for a while after the first has told.
"""

from collections.abc import Hashable
from itertools import islice

from node.context import NodeContext
from node.network.connections.peer_selection import network_of_peer
from node.network.streams.deadline import loop_time
from protocol.core.rng import Rng
from protocol.core.types import PeerId

NETWORKS_TARGET = 3
"""Different networks of which somebody must have told: a guess, as many as witnesses."""

PATIENCE_EPOCHS = 4.0
"""For so long members count that we are not connected to; a guess: they are dialled meanwhile."""

LOOKED_AT_MAX = 64
"""Members looked at for one that could be asked."""


class SyncPeers:
    """The peers that were asked since our start."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._first_told_at: float | None = None
        self._told: dict[PeerId, Hashable] = {}
        self._failed: dict[PeerId, None] = {}
        self._asked: dict[PeerId, None] = {}

    def begin(self) -> None:
        """Ask again who did not answer before."""
        self._failed.clear()
        self._asked.clear()

    def told(self, peer: PeerId) -> None:
        """Note that a peer has told all that it has."""
        self._told[peer] = network_of_peer(self._context, peer)
        if self._first_told_at is None:
            self._first_told_at = loop_time()

    def failed(self, peer: PeerId) -> None:
        """Note that a peer did not."""
        self._failed[peer] = None

    def enough(self) -> bool:
        """Return whether those that have told are enough."""
        told = set(self._told.values())
        if not told or self._wants_genesis():
            return False
        several = len(told) >= NETWORKS_TARGET
        return several or all(
            network_of_peer(self._context, peer) in told for peer in self._askable()
        )

    def next(self, rng: Rng) -> PeerId | None:
        """Return whom to ask next; None when all that could be asked have been."""
        told = set(self._told.values())
        wants_genesis = self._wants_genesis()
        manifest = self._context.replica.manifest
        peers = [peer for peer in self._askable() if peer not in self._asked]
        if not peers:
            return None
        peer = min(
            rng.sample(peers, len(peers)),
            key=lambda peer: (
                wants_genesis and bool(told) and not manifest.is_of_genesis(peer),
                network_of_peer(self._context, peer) in told,
            ),
        )
        self._asked[peer] = None
        return peer

    def _askable(self) -> list[PeerId]:
        """Return who is connected, and who could be, but for those that did not answer.

        Members of the genesis first: there are few, and strangers may be many.
        """
        nobody = (self._context.signer.peer_id, *self._failed)
        found = (*self._context.peers.connected, *self._genesis(), *self._others())
        return [peer for peer in dict.fromkeys(found) if peer not in nobody]

    def _others(self) -> list[PeerId]:
        """Return members that could be dialled, while that is worth waiting for."""
        replica, now = self._context.replica, self._context.ports.clock.now()
        patience_seconds = PATIENCE_EPOCHS * replica.manifest.epochs.seconds
        began_at = self._first_told_at
        if began_at is not None and loop_time() >= began_at + patience_seconds:
            return []
        found = []
        for peer in islice(replica.roster.peers_from(0), LOOKED_AT_MAX):
            member = replica.roster.get(peer)
            reachable = member is not None and member.record.message.reachable
            if reachable and replica.roster.is_live(peer, now):
                found.append(peer)
        return found

    def _genesis(self) -> list[PeerId]:
        """Return the keys of the genesis that are here by their own records."""
        replica, now = self._context.replica, self._context.ports.clock.now()
        genesis = replica.manifest.genesis
        keys = map(PeerId, (*genesis.trainers, *genesis.validators))
        own = self._context.signer.peer_id
        return [peer for peer in keys if peer != own and replica.roster.is_live(peer, now)]

    def _wants_genesis(self) -> bool:
        here = self._genesis()
        return bool(here) and not any(map(self._context.replica.manifest.is_of_genesis, self._told))
