"""Which peers are kept away, because what they sent can only come from who breaks the protocol.

Faults fade, and so does the memory of having been kept away, which doubles the next time.

Whose streams are served: not those of who is kept away, nor of strangers beyond our places.
"""

import math
from collections.abc import Awaitable, Callable, Collection

from node.network.resources.open_rate import OpenRateLimiter
from node.network.streams.deadline import loop_time
from protocol.core.containers import BoundedDict, DecayingSum
from protocol.core.faults import Blame, Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import Stream, StreamHandler

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
        self._faults = BoundedDict[PeerId, DecayingSum](PEERS_MAX, "faults")
        self._until = BoundedDict[PeerId, float](PEERS_MAX, "bans")
        self._before = BoundedDict[PeerId, DecayingSum](PEERS_MAX, "bans")
        """How often each has been kept away."""
        self.tables = (self._faults, self._until, self._before)

    def blame(self, peer: PeerId, fault: Fault, now: float) -> float:
        """Count a fault; return for how many seconds the peer is kept away because of it."""
        if fault.code.blame is not Blame.SENDER or self.holds(peer, now):
            return 0.0
        faults = self._faults.pop(peer, DecayingSum())
        faults.add(1, now, FAULT_HALF_LIFE_SECONDS)
        if faults.amount < FAULTS_MAX:
            self._faults[peer] = faults
            return 0.0
        times = self._before.pop(peer, DecayingSum()).value_at(now, BAN_HALF_LIFE_SECONDS)
        seconds = min(BAN_SECONDS_MAX, BAN_SECONDS * math.exp2(times))
        self._before[peer] = DecayingSum(times + 1, now + seconds)  # fades from its end on
        self._until[peer] = now + seconds
        return seconds

    def faults(self, now: float) -> dict[PeerId, int]:
        """Return how many faults count at the moment, to the nearest, of the peers that have any.

        One that has faded to less than half no longer does.
        """
        counts = {
            peer: round(known.value_at(now, FAULT_HALF_LIFE_SECONDS))
            for peer, known in self._faults.items()
        }
        return {peer: count for peer, count in counts.items() if count}

    def holds(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer is kept away."""
        return self._until.get(peer, now) > now

    def held(self, now: float) -> Collection[PeerId]:
        """Return the peers that are kept away."""
        self._until.retain(lambda _peer, until: until > now)
        return self._until.keys()


class ConnectionGater:
    """Counts what peers open, and passes on the streams of those that ``admit`` takes.

    ``trusted`` tells who has standing.
    """

    def __init__(
        self,
        trusted: Callable[[PeerId], bool],
        bans: Bans,
        blame: Callable[[PeerId, Fault], None],
        disconnect: Callable[[PeerId], Awaitable[None]],
        admit: Callable[[PeerId], bool],
    ) -> None:
        self.openings = OpenRateLimiter(trusted)
        """Of streams, by peers without standing."""
        self._bans = bans
        self._blame = blame
        self._disconnect = disconnect
        self._admit = admit
        self._leaving: set[PeerId] = set()

    def guarded(self, handler: StreamHandler) -> StreamHandler:
        """Return what serves a protocol with ``handler``."""

        async def serve(stream: Stream) -> None:
            peer, now = stream.peer, loop_time()
            if self.openings.opened(peer, now):
                self._blame(peer, Fault(FaultCode.OPENED_TOO_OFTEN))
            if self._bans.holds(peer, now):
                await self._send_away(peer)
            elif self._admit(peer):
                await handler(stream)

        return serve

    async def _send_away(self, peer: PeerId) -> None:
        """End the connection now, not at the next look: until then it opens more streams."""
        if peer not in self._leaving:
            self._leaving.add(peer)
            try:
                await self._disconnect(peer)
            finally:
                self._leaving.discard(peer)
