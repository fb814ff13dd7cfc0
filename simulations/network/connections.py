"""Machines and the connections between them: delay, streams, and cut directions."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from simulations.network.links import Line, LineMeter, LinkPath, SimClock
from simulations.network.streams import Pipe, PipeMaker
from simulations.runtime.cores import BULK, Core
from simulations.runtime.loop import VirtualLoop

KEEPALIVE_SECONDS = 30.0
"""Both ends give up after so long without an answer; yamux sends a keep-alive every 30 s."""

RETRANSMISSION_SECONDS_MIN = 0.2
"""Linux's minimum retransmission timeout."""

SEGMENT_BYTES = 1460

_DRAWS = 4096


class LinkConditions:
    """Jitter (maximum addition to a one-way delay, as a share of it) and loss (of packets).

    Values are drawn once and used in rotation: a draw per write would cost more.
    """

    def __init__(self, rng: Rng, jitter: float = 0.1, loss: float = 0.0) -> None:
        self.loss = loss
        self._factors = [1 + jitter * rng.uniform() for _ in range(_DRAWS)]
        self._lost = [rng.uniform() < loss for _ in range(_DRAWS)]
        self._next = 0

    def delay(self, latency: float) -> float:
        """Return the one-way delay of a write on a path of ``latency`` seconds."""
        self._next = index = (self._next + 1) % _DRAWS
        seconds = latency * self._factors[index]
        if self._lost[index]:
            seconds += max(RETRANSMISSION_SECONDS_MIN, 4 * latency)
        return seconds

    def pace_bytes_per_second(self, latency: float) -> float:
        """Return the throughput of a stream under loss (Mathis et al. 1997); 0 without loss."""
        if not self.loss:
            return 0.0
        return SEGMENT_BYTES / (2 * latency) * math.sqrt(1.5 / self.loss)


@dataclass(slots=True, eq=False)
class Host:
    """A machine on the network, with or without a running daemon."""

    name: str
    peer_id: PeerId
    region: str
    up: Line
    down: Line
    nat: bool
    clock: SimClock
    core: Core
    stalled: bool = False
    meters: defaultdict[str, LineMeter] = field(default_factory=lambda: defaultdict(LineMeter))
    """By protocol."""
    connections: "dict[PeerId, SimConnection]" = field(default_factory=dict)
    """By the other end, oldest first."""
    kept: frozenset[PeerId] = frozenset()
    """Peers with protected connections, closed last."""


class SimConnection:
    """An authenticated connection; ``latency`` is one way, in seconds."""

    def __init__(
        self,
        loop: VirtualLoop,
        conditions: LinkConditions,
        opener: Host,
        acceptor: Host,
        latency: float,
    ) -> None:
        self.opener = opener
        self.acceptor = acceptor
        self.latency = latency
        self.streams: dict[Pipe, None] = {}
        """The outgoing pipe of each stream's opener."""
        self._loop = loop
        delay = partial(conditions.delay, latency)
        pace = conditions.pace_bytes_per_second(latency)
        self._there = LinkPath(opener.name, acceptor.name, opener.up, acceptor.down, delay, pace)
        self._back = LinkPath(acceptor.name, opener.name, acceptor.up, opener.down, delay, pace)
        self._blocked_since: float | None = None

    @property
    def blocked(self) -> bool:
        """True if either direction is cut."""
        return self._there.cut or self._back.cut

    def open_stream(self, opener: Host, protocol: str, make: PipeMaker = Pipe) -> Pipe:
        """Return the outgoing pipe of a new stream, opened by one of the two ends."""
        acceptor, there, back = self.acceptor, self._there, self._back
        if opener is acceptor:
            acceptor, there, back = self.opener, back, there
        ours, theirs = opener.meters[protocol], acceptor.meters[protocol]
        pipe = make(self._loop, there, back, ours, theirs, self._forget)
        pipe.opposite = make(self._loop, back, there, theirs, ours, self._forget)
        pipe.opposite.opposite = pipe
        pipe.core, pipe.opposite.core = acceptor.core, opener.core
        if protocol in BULK:
            pipe.byte_seconds = pipe.opposite.byte_seconds = 0.0
        self.streams[pipe] = None
        return pipe

    def cut(self, *, there: bool, back: bool) -> None:
        """Set the cut directions; held bytes arrive when their direction is open again."""
        if (there, back) == (self._there.cut, self._back.cut):
            return
        self._there.cut, self._back.cut = there, back
        for pipe in list(self.streams):
            pipe.release()
            pipe.opposite.release()
        if not self.blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._loop.time()
            self._loop.call_later(KEEPALIVE_SECONDS, self._give_up, self._blocked_since)

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

    def _forget(self, pipe: Pipe) -> None:
        self.streams.pop(pipe, None)
        self.streams.pop(pipe.opposite, None)

    def reset_streams(self) -> None:
        """Reset every stream; the connection stays."""
        streams, self.streams = self.streams, {}
        for pipe in streams:
            pipe.reset()
            pipe.opposite.reset()
