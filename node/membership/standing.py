"""Which of the connected peers have standing."""

from collections.abc import Callable, Mapping

from protocol.types import PeerId

TARGET = 8
NEWCOMERS_TARGET = 2
"""To how many peers with standing a node is connected, if there are so many, that has standing
itself, and that has none yet: strangers that fill its connections must not come between. Guesses;
the second is what a gossip mesh needs."""

LOOK_SECONDS = 30.0
"""Until the same peers are looked at again: half of an epoch of a minute, by which standing
changes."""


class Standing:
    """Remembers what ``proven`` said of the connected peers."""

    def __init__(self, proven: Callable[[PeerId], bool]) -> None:
        self._proven = proven
        self._looked_at: dict[PeerId, object] = {}
        self._until = 0.0
        self.peers: frozenset[PeerId] = frozenset()
        """Those that have it, as of the last look."""

    def look(self, connected: Mapping[PeerId, object], now: float) -> bool:
        """Look, if others are connected than at the last look or it is long ago; tell whether."""
        if connected == self._looked_at and now < self._until:
            return False
        if now >= self._until:
            self._looked_at, self._until = {}, now + LOOK_SECONDS
        stayed = self.peers & self._looked_at.keys() & connected.keys()
        self.peers = stayed.union(filter(self._proven, connected.keys() - self._looked_at.keys()))
        self._looked_at = dict(connected)
        return True

    def few(self, own: PeerId) -> bool:
        """Tell whether we (``own``) are connected to fewer than we want."""
        count = len(self.peers)
        return count < NEWCOMERS_TARGET or (count < TARGET and self._proven(own))
