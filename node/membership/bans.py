"""Which peers are kept away, because what they sent can only come from who breaks the protocol."""

from collections import deque
from collections.abc import Collection

from protocol.faults import Blame, Fault
from protocol.types import PeerId

FAULTS_MAX = 3
"""Within the window; a guess. No honest peer causes even one, but a machine with bad memory might,
and checking what a stranger sends costs us about 100 us each time."""

WINDOW_SECONDS = 600.0
BAN_SECONDS = 600.0
"""Guesses. Long enough that a peer which sends nothing else costs next to nothing; short enough
that a node whose software was mended is heard again soon."""

PEERS_MAX = 4096
"""Remembered with faults, and kept away; the oldest is forgotten first. Keys are free: whoever
makes a new one for each three faults is held up by the connections that it needs."""


class Bans:
    """Counts the faults of each peer; ``now`` is a monotonic time in seconds.

    Only faults that blame their sender count: what an honest node would not have passed on.
    """

    def __init__(self) -> None:
        self._faults: dict[PeerId, deque[float]] = {}
        self._until: dict[PeerId, float] = {}

    def blame(self, peer: PeerId, fault: Fault, now: float) -> bool:
        """Count a fault; True when it is the one for which the peer is kept away from now on."""
        if fault.code.blame is not Blame.SENDER or peer in self.held(now):
            return False
        times = self._faults.setdefault(peer, deque(maxlen=FAULTS_MAX))
        times.append(now)
        _bound(self._faults)
        if len(times) < FAULTS_MAX or times[0] < now - WINDOW_SECONDS:
            return False
        del self._faults[peer]
        self._until[peer] = now + BAN_SECONDS
        _bound(self._until)
        return True

    def faults(self, now: float) -> dict[PeerId, int]:
        """Return how many faults count at the moment, of the peers that have any."""
        counts = {
            peer: sum(at >= now - WINDOW_SECONDS for at in times)
            for peer, times in self._faults.items()
        }
        return {peer: count for peer, count in counts.items() if count}

    def held(self, now: float) -> Collection[PeerId]:
        """Return the peers that are kept away."""
        if any(until <= now for until in self._until.values()):
            self._until = {peer: until for peer, until in self._until.items() if until > now}
        return self._until.keys()


def _bound(table: dict[PeerId, deque[float]] | dict[PeerId, float]) -> None:
    if len(table) > PEERS_MAX:
        del table[next(iter(table))]
