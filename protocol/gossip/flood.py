"""To whom a node sends its own messages: its mesh, and some of the others."""

from collections.abc import Collection

from protocol.gossip.mesh import PeerSet
from protocol.rng import Rng
from protocol.types import PeerId


class Flood:
    """Chooses the receivers of own messages; whoever is ``proven`` comes before strangers."""

    def __init__(self, peers_max: int, rng: Rng, proven: PeerSet) -> None:
        self._peers_max = peers_max
        self._rng = rng
        self._proven = proven

    def receivers(self, mesh: Collection[PeerId], subscribers: list[PeerId]) -> list[PeerId]:
        """Return those of ``subscribers`` to send to, the proven first.

        All, if there are no more than ``peers_max``; else the mesh, proven ones, and strangers at
        random, in this order.
        """
        proven = self._proven()
        if len(subscribers) > self._peers_max:
            drawn = self._rng.shuffled(subscribers)
            drawn.sort(key=lambda peer: (peer not in mesh, peer not in proven))
            subscribers = drawn[: self._peers_max]
        return sorted(subscribers, key=proven.__contains__, reverse=True)
