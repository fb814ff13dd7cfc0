"""Selection of the peers to synchronise with after a start, and the rule for having enough.

One peer may have just started too, or may withhold messages. So peers of several networks must
answer, as far as that many are known. If a live record of a genesis key exists, one genesis peer
must answer; this condition ends when the record expires. Members that are not connected count only
for a while after the first answer.
"""

from collections.abc import Hashable
from itertools import islice

from node.context import NodeContext
from node.network.connections.peer_selection import network_of_peer
from node.network.streams.deadline import loop_time
from protocol.core.rng import Rng
from protocol.core.types import PeerId

NETWORKS_TARGET = 3
"""Different networks that must answer: a guess, as many as reachability observers."""

PATIENCE_EPOCHS = 4.0
"""Epochs after the first answer in which unconnected members count: a guess; they are dialled
meanwhile."""

LOOKED_AT_MAX = 64
"""Members scanned for reachable ones."""


class SyncPeers:
    """State of the peers that were asked since the start."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._first_told_at: float | None = None
        self._told: dict[PeerId, Hashable] = {}
        self._failed: dict[PeerId, None] = {}
        self._asked: dict[PeerId, None] = {}

    def begin(self) -> None:
        """Allow failed peers to be asked again."""
        self._failed.clear()
        self._asked.clear()

    def told(self, peer: PeerId) -> None:
        """Note that a peer has sent all that it has."""
        self._told[peer] = network_of_peer(self._context, peer)
        if self._first_told_at is None:
            self._first_told_at = loop_time()

    def failed(self, peer: PeerId) -> None:
        """Note that a peer's pull failed."""
        self._failed[peer] = None

    def enough(self) -> bool:
        """Return whether enough peers have answered."""
        told = set(self._told.values())
        if not told or self._wants_genesis():
            return False
        several = len(told) >= NETWORKS_TARGET
        return several or all(
            network_of_peer(self._context, peer) in told for peer in self._askable()
        )

    def next(self, rng: Rng) -> PeerId | None:
        """Return the next peer to pull from; None when all were tried."""
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
        """Return connected and reachable peers, except those that failed.

        Genesis members come first: they are few, and untrusted peers may be many.
        """
        nobody = (self._context.signer.peer_id, *self._failed)
        found = (*self._context.peers.connected, *self._genesis(), *self._others())
        return [peer for peer in dict.fromkeys(found) if peer not in nobody]

    def _others(self) -> list[PeerId]:
        """Return members that could be dialled, until the patience ends."""
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
        """Return the genesis keys with a live record."""
        replica, now = self._context.replica, self._context.ports.clock.now()
        genesis = replica.manifest.genesis
        keys = map(PeerId, (*genesis.trainers, *genesis.validators))
        own = self._context.signer.peer_id
        return [peer for peer in keys if peer != own and replica.roster.is_live(peer, now)]

    def _wants_genesis(self) -> bool:
        here = self._genesis()
        return bool(here) and not any(map(self._context.replica.manifest.is_of_genesis, self._told))
