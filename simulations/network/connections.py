"""A connection between two machines: its delay, its streams, and which way of it is cut."""

import math
from functools import partial

from protocol.rng import Rng
from simulations.network.links import Host
from simulations.network.streams import Pipe
from simulations.runtime.loop import VirtualLoop

KEEPALIVE_SECONDS = 30.0
"""After how long without an answer both ends give up; yamux sends a keep-alive every 30 s."""

RETRANSMISSION_SECONDS_MIN = 0.2
"""Linux's smallest retransmission time-out."""

SEGMENT_BYTES = 1460

_DRAWS = 4096


class LinkConditions:
    """Jitter and loss, drawn once and used in turn: a draw for every write would cost more.

    ``jitter`` is the largest addition to a one-way delay as a share of it, ``loss`` the share of
    packets lost.
    """

    def __init__(self, rng: Rng, jitter: float = 0.1, loss: float = 0.0) -> None:
        self.loss = loss
        self._factors = [1 + jitter * rng.uniform() for _ in range(_DRAWS)]
        self._lost = [rng.uniform() < loss for _ in range(_DRAWS)]
        self._next = 0

    def delay(self, latency: float) -> float:
        """Return the seconds that a write takes on a way of ``latency`` seconds."""
        self._next = index = (self._next + 1) % _DRAWS
        seconds = latency * self._factors[index]
        if self._lost[index]:
            seconds += max(RETRANSMISSION_SECONDS_MIN, 4 * latency)
        return seconds

    def pace_bytes_per_second(self, latency: float) -> float:
        """Return what loss leaves of a stream's speed (Mathis et al. 1997); 0 without loss."""
        if not self.loss:
            return 0.0
        return SEGMENT_BYTES / (2 * latency) * math.sqrt(1.5 / self.loss)


class Connection:
    """An authenticated connection; ``latency`` is one way, in seconds."""

    __slots__ = (
        "_blocked_since",
        "_cut_back",
        "_cut_there",
        "acceptor",
        "blocked",
        "delay",
        "latency",
        "loop",
        "opener",
        "pace_bytes_per_second",
        "streams",
    )

    def __init__(
        self,
        loop: VirtualLoop,
        conditions: LinkConditions,
        opener: Host,
        acceptor: Host,
        latency: float,
    ) -> None:
        self.loop = loop
        self.opener = opener
        self.acceptor = acceptor
        self.latency = latency
        self.pace_bytes_per_second = conditions.pace_bytes_per_second(latency)
        self.streams: dict[Pipe, None] = {}
        """The outgoing pipe of each stream's opener."""
        self.delay = partial(conditions.delay, latency)
        """Draws the one-way delay of a write in seconds."""
        self.blocked = False
        """Whether either direction is cut."""
        self._cut_there = False
        self._cut_back = False
        self._blocked_since: float | None = None

    def blocked_towards(self, target: Host) -> bool:
        """Tell whether bytes to one of the two ends have to wait."""
        return self._cut_there if target is self.acceptor else self._cut_back

    def cut(self, *, there: bool, back: bool) -> None:
        """Set which directions are cut; what waited comes when its way is open again."""
        if (there, back) == (self._cut_there, self._cut_back):
            return
        self._cut_there, self._cut_back = there, back
        self.blocked = there or back
        for pipe in list(self.streams):
            pipe.release()
            pipe.opposite.release()
        if not self.blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self.loop.time()
            self.loop.call_later(KEEPALIVE_SECONDS, self._give_up, self._blocked_since)

    def _give_up(self, since: float) -> None:
        if self._blocked_since == since:
            self.close()

    def close(self) -> None:
        """End the connection at both ends; idempotent."""
        for host, other in ((self.opener, self.acceptor), (self.acceptor, self.opener)):
            if host.connections.get(other.peer_id) is self:
                del host.connections[other.peer_id]
        self._blocked_since = None
        self.reset_streams()

    def forget(self, pipe: Pipe) -> None:
        """Drop a stream that is over."""
        self.streams.pop(pipe, None)
        self.streams.pop(pipe.opposite, None)

    def reset_streams(self) -> None:
        """Break every stream off; the connection stays."""
        streams, self.streams = self.streams, {}
        for pipe in streams:
            pipe.reset()
            pipe.opposite.reset()
