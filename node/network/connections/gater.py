"""Connection gater: bans faulty peers and filters inbound streams.

``Bans`` counts proven protocol violations. Fault counts decay exponentially. So does the number of
earlier bans, each of which doubles the next ban. ``ConnectionGater`` drops streams of banned peers,
and of untrusted peers when there is no room for another connection.
"""

import math
from collections.abc import Awaitable, Callable, Collection

from node.network.resources.rate_limiter import Rate, RateLimiter, Rates
from node.network.streams.deadline import loop_time
from protocol.core.containers import BoundedDict, DecayingSum
from protocol.core.faults import Blame, Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import Stream, StreamHandler

FAULTS_MAX = 2.5
"""Three faults at once, or more over a longer time, as each decays; a guess. An honest peer causes
none, unless its memory is bad. Checking an untrusted peer's message costs about 100 us."""

FAULT_HALF_LIFE_SECONDS = 600.0
BAN_SECONDS = 600.0
"""Guesses. Long enough to make a peer that sends only invalid data nearly free; short enough for a
node whose software was fixed to return soon."""

BAN_HALF_LIFE_SECONDS = 6 * 3600.0
BAN_SECONDS_MAX = 6 * 3600.0
"""Guesses: a persistent offender gets four attempts a day; one that stopped has a clean record
soon."""

PEERS_MAX = 4096
"""Peers per table of faults, bans and earlier bans; the oldest is evicted first. Keys are free, but
a new key for every three faults also needs a new connection."""


OPEN_RATES = Rates(untrusted=Rate(64, burst=20), shared=Rate(64, burst=128), share_min=2)
"""Streams opened by untrusted peers, over all protocols. Accepting one costs time even if it is not
served, so only a ban of the opener bounds that cost.

64 per second: 1/20 of a core, as for gossip. A stream costs 0.2 to 0.35 ms, and half as much again
in p2pd (``benchmarks/opening.py``). A share is at least 2 per second, so that a retrying peer is
not at fault for being one of many: none of 800 untrusted peers that waited for weights reached half
of it. A burst of 20 allows the 16 streams of two downloads; 128, two seconds of the rate, is lent
to peers that open more at once. With larger bursts attackers are banned later."""


class Bans:
    """Counts the faults of each peer; ``now`` is a monotonic time in seconds.

    Counts only faults that blame their sender: data that an honest node would not have forwarded.
    """

    def __init__(self) -> None:
        self._faults = BoundedDict[PeerId, DecayingSum](PEERS_MAX, "faults")
        self._until = BoundedDict[PeerId, float](PEERS_MAX, "bans")
        self._before = BoundedDict[PeerId, DecayingSum](PEERS_MAX, "bans")
        """Number of earlier bans, decaying."""
        self.tables = (self._faults, self._until, self._before)

    def blame(self, peer: PeerId, fault: Fault, now: float) -> float:
        """Count a fault; return the duration of the ban in seconds that it causes, or 0."""
        if fault.code.blame is not Blame.SENDER or self.holds(peer, now):
            return 0.0
        faults = self._faults.pop(peer, DecayingSum())
        faults.add(1, now, FAULT_HALF_LIFE_SECONDS)
        if faults.amount < FAULTS_MAX:
            self._faults[peer] = faults
            return 0.0
        times = self._before.pop(peer, DecayingSum()).value_at(now, BAN_HALF_LIFE_SECONDS)
        seconds = min(BAN_SECONDS_MAX, BAN_SECONDS * math.exp2(times))
        self._before[peer] = DecayingSum(times + 1, now + seconds)  # decays from the end of the ban
        self._until[peer] = now + seconds
        return seconds

    def faults(self, now: float) -> dict[PeerId, int]:
        """Return the decayed fault count of each peer, rounded; peers at 0 are omitted.

        A single fault is omitted once it has decayed below one half.
        """
        counts = {
            peer: round(known.value_at(now, FAULT_HALF_LIFE_SECONDS))
            for peer, known in self._faults.items()
        }
        return {peer: count for peer, count in counts.items() if count}

    def holds(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer is banned."""
        return self._until.get(peer, now) > now

    def held(self, now: float) -> Collection[PeerId]:
        """Return the banned peers."""
        self._until.retain(lambda _peer, until: until > now)
        return self._until.keys()


class ConnectionGater:
    """Counts opened streams, and passes on those of peers that ``admit`` accepts.

    ``trusted`` returns whether a peer is trusted.
    """

    def __init__(
        self,
        trusted: Callable[[PeerId], bool],
        bans: Bans,
        blame: Callable[[PeerId, Fault], None],
        disconnect: Callable[[PeerId], Awaitable[None]],
        admit: Callable[[PeerId], bool],
    ) -> None:
        self.openings = RateLimiter[PeerId]("open_rate_peers", OPEN_RATES)
        """Streams opened by untrusted peers; those that transferred enough data are refunded."""
        self._trusted = trusted
        self._bans = bans
        self._blame = blame
        self._disconnect = disconnect
        self._admit = admit
        self._leaving: set[PeerId] = set()

    def guarded(self, handler: StreamHandler) -> StreamHandler:
        """Wrap a protocol's ``handler`` with the gater."""

        async def serve(stream: Stream) -> None:
            peer, now = stream.peer, loop_time()
            if not self._trusted(peer) and not self.openings.take(peer, 1, now):
                self._blame(peer, Fault(FaultCode.OPENED_TOO_OFTEN))
            if self._bans.holds(peer, now):
                await self._send_away(peer)
            elif self._admit(peer):
                await handler(stream)

        return serve

    async def _send_away(self, peer: PeerId) -> None:
        """Close the connection now: until the next poll the peer would open more streams."""
        if peer not in self._leaving:
            self._leaving.add(peer)
            try:
                await self._disconnect(peer)
            finally:
                self._leaving.discard(peer)
