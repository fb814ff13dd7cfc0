"""The simulated network: machines, their distances, and faults between them.

Faults act as they do on TCP. While the path between two machines is cut, bytes wait and arrive when
it is open again; after ``connections.KEEPALIVE_SECONDS`` both ends close the connection. Loss
delays small writes by a retransmission and lowers the rate of bulk; jitter never reorders within a
stream. A daemon that dies resets its connections at once, as the kernel does.
"""

import asyncio
from collections.abc import Callable, Iterable

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from roles.ports.transport import TransportError
from simulations.network.connections import Host, LinkConditions, SimConnection
from simulations.network.links import Line, SimClock
from simulations.network.streams import PipeMaker
from simulations.network.transport import SimTransport
from simulations.runtime.cores import Core
from simulations.runtime.loop import VirtualLoop

RoundTrip = Callable[[str, str], float]
"""``(region, region) -> seconds``."""

Cut = Callable[[str, str], bool]
"""``(source, target) -> True if cut``, by names of machines."""

PATH_SPREAD = 0.4
"""Round trips between two regions differ by up to this share from pair to pair; a guess."""

DIAL_ROUND_TRIPS = 4.0
"""TCP, multistream twice, Noise, yamux: libp2p connections take about four."""

DIAL_SECONDS_MAX = 5.0
"""Seconds until a dial without an answer fails, as in go-libp2p."""

CONNECTIONS_HIGH = 512
CONNECTIONS_LOW = 448
TRIM_SECONDS = 10.0
"""p2pd's connection manager as the daemon configures it: check interval (go-libp2p's default), high
and low watermark. Of equal connections it closes the oldest, p2pd's worst choice."""


class SimNetwork:
    """Hosts, connections and faults; one per simulation."""

    def __init__(
        self, loop: VirtualLoop, rng: Rng, conditions: LinkConditions, round_trip: RoundTrip
    ) -> None:
        self._loop = loop
        self.hosts: dict[str, Host] = {}
        """By name, in order of creation."""
        self.pipe_makers: dict[str, PipeMaker] = {}
        """Pipe makers of observed protocols."""
        self.on_misdial: Callable[[str, str], None] = lambda _opener, _name: None
        """Called with (opener, name) when a dial finds no daemon or one with another key."""
        self._rng = rng
        self._conditions = conditions
        self._round_trip = round_trip
        self._by_peer: dict[PeerId, Host] = {}
        self._transports: dict[PeerId, SimTransport] = {}
        self._cuts: dict[Cut, None] = {}
        self._crowded: dict[str, None] = {}
        """Machines above the high watermark since p2pd's last check."""

    # Machines

    def add_host(
        self,
        name: str,
        peer_id: PeerId,
        *,
        region: str,
        upload_bytes_per_second: float,
        download_bytes_per_second: float,
        nat: bool = False,
        skew_seconds: float = 0.0,
    ) -> Host:
        """Add a machine to the network; its daemon need not run."""
        core = Core(self._loop)
        host = Host(
            name,
            peer_id,
            region,
            Line(upload_bytes_per_second),
            Line(download_bytes_per_second),
            nat,
            SimClock(self._loop, core, skew_seconds),
            core,
        )
        self.hosts[name] = host
        self._by_peer[peer_id] = host
        return host

    def attach(self, name: str, on_error: Callable[[BaseException], None]) -> SimTransport:
        """Return the ``Transport`` of a starting daemon; ``on_error`` receives handlers' errors.

        Raises ``ValueError`` if a daemon already runs there.
        """
        host = self.hosts[name]
        if host.peer_id in self._transports:
            raise ValueError(f"{name} is running")
        transport = SimTransport(
            host, self.dial, self.probe, self.running, self.pipe_makers, on_error
        )
        self._transports[host.peer_id] = transport
        return transport

    def detach(self, name: str) -> None:
        """End a daemon's transport: its connections break and it accepts no dials; idempotent."""
        host = self.hosts[name]
        transport = self._transports.pop(host.peer_id, None)
        if transport is not None:
            transport.end()
        for connection in list(host.connections.values()):
            connection.close()

    def running(self, peer: PeerId) -> SimTransport | None:
        """Return the transport of a peer with a running daemon."""
        transport = self._transports.get(peer)
        return None if transport is None or transport.down else transport

    # Connections

    async def dial(self, opener: Host, name: str | None, peer: PeerId) -> None:
        """Connect to the machine ``name``, or without a name to the machine that holds the key.

        No effect while they are connected; raises ``TransportError`` after the time that the
        failure takes.
        """
        if peer in opener.connections:
            return
        acceptor = await self._answering(opener, name, peer)
        if opener.peer_id in self._transports:
            self.connect(opener, acceptor)

    async def probe(self, opener: Host, name: str | None, peer: PeerId) -> None:
        """Raise ``TransportError`` unless the machine ``name`` answers a dial with the key."""
        await self._answering(opener, name, peer)

    async def _answering(self, opener: Host, name: str | None, peer: PeerId) -> Host:
        """Return the machine ``name`` if it answers a dial with the key."""
        owner = self._by_peer.get(peer)
        if name is None and owner is None:
            raise TransportError(f"no machine has the key {peer}")
        acceptor = owner if name is None else self.hosts.get(name)
        if acceptor is opener:
            raise TransportError("a dial to the own key")
        if acceptor is None or acceptor is not owner:
            self.on_misdial(opener.name, str(name))
        if acceptor is None:
            await asyncio.sleep(DIAL_SECONDS_MAX)
            raise TransportError(f"no machine at {name}")
        await self._probe(opener, acceptor)
        if acceptor is not owner:
            raise TransportError(f"{peer} is not at {name}")
        return acceptor

    async def _probe(self, opener: Host, acceptor: Host) -> None:
        latency = self._latency(opener, acceptor)
        if acceptor.nat or self._cut_either_way(opener, acceptor):
            await asyncio.sleep(DIAL_SECONDS_MAX)
            raise TransportError(f"{acceptor.name} does not answer")
        await asyncio.sleep(2 * latency * DIAL_ROUND_TRIPS)
        if self.running(acceptor.peer_id) is None or self._cut_either_way(opener, acceptor):
            raise TransportError(f"{acceptor.name} refuses the connection")

    def connect(self, opener: Host, acceptor: Host) -> None:
        """Connect two machines at once, regardless of cuts; no effect if they are connected."""
        if acceptor.peer_id in opener.connections:
            return
        latency = self._latency(opener, acceptor)
        connection = SimConnection(self._loop, self._conditions, opener, acceptor, latency)
        opener.connections[acceptor.peer_id] = connection
        acceptor.connections[opener.peer_id] = connection
        for host in (opener, acceptor):
            if len(host.connections) > CONNECTIONS_HIGH and host.name not in self._crowded:
                self._crowded[host.name] = None
                self._loop.call_later(self._until_trim(host), self._trim, host)

    def _until_trim(self, host: Host) -> float:
        """Return the seconds until a machine's next p2pd check; each machine has its own phase."""
        began = TRIM_SECONDS * self._rng.child(f"trim/{host.name}").uniform()
        return TRIM_SECONDS - (self._loop.time() - began) % TRIM_SECONDS

    def _trim(self, host: Host) -> None:
        del self._crowded[host.name]
        if len(host.connections) > CONNECTIONS_HIGH:
            last = sorted(host.connections, key=host.kept.__contains__)
            for peer in last[: len(last) - CONNECTIONS_LOW]:
                host.connections[peer].close()

    def _latency(self, one: Host, other: Host) -> float:
        """Return the one-way delay between two machines in seconds, the same in every call."""
        path = "/".join(sorted((one.name, other.name)))
        spread = 1 + PATH_SPREAD * (self._rng.child(path).uniform() - 0.5)
        return self._round_trip(one.region, other.region) / 2 * spread

    # Faults

    def partition(self, *islands: Iterable[str]) -> Cut:
        """Cut the network into ``islands`` until ``heal``; unnamed machines stay together."""
        island_of = {name: number for number, island in enumerate(islands, 1) for name in island}

        def cut(source: str, target: str) -> bool:
            return island_of.get(source, 0) != island_of.get(target, 0)

        return self._begin(cut)

    def one_way(self, source: Iterable[str], target: Iterable[str]) -> Cut:
        """Cut all traffic from ``source`` to ``target`` until ``heal``."""
        sources, targets = frozenset(source), frozenset(target)

        def cut(source: str, target: str) -> bool:
            return source in sources and target in targets

        return self._begin(cut)

    def _begin(self, cut: Cut) -> Cut:
        self._cuts[cut] = None
        self._follow_faults()
        return cut

    def heal(self, cut: Cut) -> None:
        """End the result of ``partition`` or ``one_way``; idempotent."""
        if cut in self._cuts:
            del self._cuts[cut]
            self._follow_faults()

    def stall(self, name: str, *, stalled: bool = True) -> None:
        """Hold every byte to and from a machine, or release them again."""
        self.hosts[name].stalled = stalled
        self._follow_faults()

    def break_streams(self, one: str, other: str | None = None) -> None:
        """Reset the streams of a machine, or between two; connections stay."""
        for connection in self._connections(one, other):
            connection.reset_streams()

    def break_connections(self, one: str, other: str | None = None) -> None:
        """Close the connections of a machine, or between two."""
        for connection in self._connections(one, other):
            connection.close()

    def _connections(self, one: str, other: str | None) -> list[SimConnection]:
        connections = self.hosts[one].connections
        if other is None:
            return list(connections.values())
        connection = connections.get(self.hosts[other].peer_id)
        return [] if connection is None else [connection]

    def take_down(self, name: str) -> None:
        """Make every call of a daemon's transport fail, as during a restart of p2pd."""
        self._transports[self.hosts[name].peer_id].down = True
        self.break_connections(name)

    def bring_up(self, name: str) -> None:
        """Undo ``take_down``."""
        self._transports[self.hosts[name].peer_id].down = False

    def set_capacity(
        self, name: str, upload_bytes_per_second: float, download_bytes_per_second: float
    ) -> None:
        """Change a machine's lines; queued writes keep their times."""
        host = self.hosts[name]
        host.up.bytes_per_second = upload_bytes_per_second
        host.down.bytes_per_second = download_bytes_per_second

    def set_skew(self, name: str, seconds: float) -> None:
        """Set the skew of a machine's clock."""
        self.hosts[name].clock.skew_seconds = seconds

    def cut(self, source: Host, target: Host) -> bool:
        """Return whether the path from one machine to another is cut now."""
        return (
            source.stalled
            or target.stalled
            or any(cut(source.name, target.name) for cut in self._cuts)
        )

    def _cut_either_way(self, one: Host, other: Host) -> bool:
        return self.cut(one, other) or self.cut(other, one)

    def _follow_faults(self) -> None:
        for host in self.hosts.values():
            for connection in list(host.connections.values()):
                if connection.opener is host:
                    other = connection.acceptor
                    connection.cut(there=self.cut(host, other), back=self.cut(other, host))
