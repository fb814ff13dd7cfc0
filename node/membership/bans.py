"""Which peers are kept away, because what they sent can only come from who breaks the protocol.

Faults fade, and so does the memory of having been kept away, which doubles the next time.
"""

import math
from collections.abc import Collection, MutableMapping
from typing import Any

from protocol.fading import Fading
from protocol.faults import Blame, Fault
from protocol.types import PeerId

FAULTS_MAX = 2.5
"""Three at once, or more over a longer time, as each fades; a guess. No honest peer causes even
one, but a machine with bad memory might, and checking what a stranger sends costs us about 100 us
each time."""

FAULT_HALF_LIFE_SECONDS = 600.0
BAN_SECONDS = 600.0
"""Guesses. Long enough that a peer which sends nothing else costs next to nothing; short enough
that a node whose software was mended is heard again soon."""

BAN_HALF_LIFE_SECONDS = 6 * 3600.0
BAN_SECONDS_MAX = 6 * 3600.0
"""Guesses: who goes on is heard four times a day, and who has stopped is soon as good as new."""

PEERS_MAX = 4096
"""Remembered with faults, kept away, and remembered as having been; the oldest is forgotten first.
Keys are free: whoever makes a new one for each three faults is held up by the connections that it
needs."""


class Bans:
    """Counts the faults of each peer; ``now`` is a monotonic time in seconds.

    Only faults that blame their sender count: what an honest node would not have passed on.
    """

    def __init__(self) -> None:
        self._faults: dict[PeerId, Fading] = {}
        self._until: dict[PeerId, float] = {}
        self._before: dict[PeerId, Fading] = {}
        """How often each has been kept away."""

    def blame(self, peer: PeerId, fault: Fault, now: float) -> float:
        """Count a fault; return for how many seconds the peer is kept away because of it."""
        if fault.code.blame is not Blame.SENDER or self.holds(peer, now):
            return 0.0
        faults = self._faults.pop(peer, Fading())
        faults.add(1, now, FAULT_HALF_LIFE_SECONDS)
        if faults.amount < FAULTS_MAX:
            _put(self._faults, peer, faults)
            return 0.0
        times = self._before.pop(peer, Fading()).left(now, BAN_HALF_LIFE_SECONDS)
        seconds = min(BAN_SECONDS_MAX, BAN_SECONDS * math.exp2(times))
        _put(self._before, peer, Fading(times + 1, now + seconds))  # fades from its end on
        _put(self._until, peer, now + seconds)
        return seconds

    def faults(self, now: float) -> dict[PeerId, int]:
        """Return how many faults count at the moment, to the nearest, of the peers that have any.

        One that has faded to less than half no longer does.
        """
        counts = {
            peer: round(known.left(now, FAULT_HALF_LIFE_SECONDS))
            for peer, known in self._faults.items()
        }
        return {peer: count for peer, count in counts.items() if count}

    def sizes(self) -> dict[str, int]:
        """Return how many peers are remembered: with faults, and as kept away now or before."""
        return {"faults": len(self._faults), "bans": max(len(self._until), len(self._before))}

    def holds(self, peer: PeerId, now: float) -> bool:
        """Tell whether a peer is kept away."""
        return self._until.get(peer, now) > now

    def held(self, now: float) -> Collection[PeerId]:
        """Return the peers that are kept away."""
        if any(until <= now for until in self._until.values()):
            self._until = {peer: until for peer, until in self._until.items() if until > now}
        return self._until.keys()


def _put(table: MutableMapping[PeerId, Any], peer: PeerId, value: object) -> None:
    table[peer] = value
    if len(table) > PEERS_MAX:
        del table[next(iter(table))]
