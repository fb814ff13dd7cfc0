"""The simulated network: which machines there are, how far apart, and what is broken between them.

Faults do what they do to TCP. While the way between two machines is cut, bytes wait and come when
it is open again; after ``connections.KEEPALIVE_SECONDS`` both ends give the connection up. Loss is
the delay of a retransmission on small writes and a lower pace on bulk; jitter never reorders within
a stream. A daemon that dies resets its connections at once, as the kernel does.
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
"""``(source, target) -> whether nothing passes``, by the names of machines."""

PATH_SPREAD = 0.4
"""Round trips between two regions differ by up to this share from pair to pair; a guess."""

DIAL_ROUND_TRIPS = 4.0
"""TCP, multistream twice, Noise, yamux: libp2p connections take about four."""

DIAL_SECONDS_MAX = 5.0
"""How long a dial into nowhere takes to fail, as in go-libp2p."""

CONNECTIONS_HIGH = 512
CONNECTIONS_LOW = 448
TRIM_SECONDS = 10.0
"""p2pd's connection manager as the daemon starts it. It looks so often (go-libp2p's default), and
above the one trims to the other; of equals the oldest, which is the worst that p2pd may choose."""


class SimNetwork:
    """Hosts, connections and faults; one per simulation."""

    def __init__(
        self, loop: VirtualLoop, rng: Rng, conditions: LinkConditions, round_trip: RoundTrip
    ) -> None:
        self._loop = loop
        self.hosts: dict[str, Host] = {}
        """By name, in the order they were added."""
        self.pipe_makers: dict[str, PipeMaker] = {}
        """How the pipes of a protocol are made, where they are watched."""
        self.on_misdial: Callable[[str, str], None] = lambda _opener, _name: None
        """Called with who dialled and where, when nobody is there or somebody with another key."""
        self._rng = rng
        self._conditions = conditions
        self._round_trip = round_trip
        self._by_peer: dict[PeerId, Host] = {}
        self._transports: dict[PeerId, SimTransport] = {}
        self._cuts: dict[Cut, None] = {}
        self._crowded: dict[str, None] = {}
        """Machines that had too many connections since their p2pd looked."""

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
        """Put a machine on the network; its daemon need not run."""
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
        """Return the ``Transport`` of a daemon that starts; ``on_error`` takes handlers' errors.

        Raises ``ValueError`` when one is running there.
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
        """End a daemon's transport: its connections break and nobody can dial it; idempotent."""
        host = self.hosts[name]
        transport = self._transports.pop(host.peer_id, None)
        if transport is not None:
            transport.end()
        for connection in list(host.connections.values()):
            connection.close()

    def running(self, peer: PeerId) -> SimTransport | None:
        """Return the transport of a peer whose daemon runs."""
        transport = self._transports.get(peer)
        return None if transport is None or transport.down else transport

    # Connections

    async def dial(self, opener: Host, name: str | None, peer: PeerId) -> None:
        """Connect to the machine ``name``, or to the one of a key where no machine is named.

        No effect while there is a connection to it; raises ``TransportError`` after the time that a
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
        """Return the machine ``name`` when it answers a dial with the key."""
        owner = self._by_peer.get(peer)
        if name is None and owner is None:
            raise TransportError(f"no machine has the key {peer}")
        acceptor = owner if name is None else self.hosts.get(name)
        if acceptor is opener:
            raise TransportError("a dial to ourselves")
        if acceptor is None or acceptor is not owner:
            self.on_misdial(opener.name, str(name))
        if acceptor is None:
            await asyncio.sleep(DIAL_SECONDS_MAX)
            raise TransportError(f"nobody is at {name}")
        await self._knock(opener, acceptor)
        if acceptor is not owner:
            raise TransportError(f"{peer} is not at {name}")
        return acceptor

    async def _knock(self, opener: Host, acceptor: Host) -> None:
        latency = self._latency(opener, acceptor)
        if acceptor.nat or self._cut_either_way(opener, acceptor):
            await asyncio.sleep(DIAL_SECONDS_MAX)
            raise TransportError(f"{acceptor.name} does not answer")
        await asyncio.sleep(2 * latency * DIAL_ROUND_TRIPS)
        if self.running(acceptor.peer_id) is None or self._cut_either_way(opener, acceptor):
            raise TransportError(f"{acceptor.name} refuses the connection")

    def connect(self, opener: Host, acceptor: Host) -> None:
        """Connect two machines at once, whatever is between them; no effect when they are."""
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
        """Return the seconds until a machine's p2pd looks; each does at its own moments."""
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
        """Cut the network into ``islands`` until ``heal``; who is not named stays together."""
        island_of = {name: number for number, island in enumerate(islands, 1) for name in island}

        def cut(source: str, target: str) -> bool:
            return island_of.get(source, 0) != island_of.get(target, 0)

        return self._begin(cut)

    def one_way(self, source: Iterable[str], target: Iterable[str]) -> Cut:
        """Let nothing pass from any of ``source`` to any of ``target`` until ``heal``."""
        sources, targets = frozenset(source), frozenset(target)

        def cut(source: str, target: str) -> bool:
            return source in sources and target in targets

        return self._begin(cut)

    def _begin(self, cut: Cut) -> Cut:
        self._cuts[cut] = None
        self._follow_faults()
        return cut

    def heal(self, cut: Cut) -> None:
        """End what ``partition`` or ``one_way`` returned; idempotent."""
        if cut in self._cuts:
            del self._cuts[cut]
            self._follow_faults()

    def stall(self, name: str, *, stalled: bool = True) -> None:
        """Keep every byte to and from a machine waiting, or let them pass again."""
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
        """Make every call of a daemon's transport fail, as while p2pd is restarted."""
        self._transports[self.hosts[name].peer_id].down = True
        self.break_connections(name)

    def bring_up(self, name: str) -> None:
        """End what ``take_down`` began."""
        self._transports[self.hosts[name].peer_id].down = False

    def set_capacity(
        self, name: str, upload_bytes_per_second: float, download_bytes_per_second: float
    ) -> None:
        """Change a machine's lines; what is queued already keeps its time."""
        host = self.hosts[name]
        host.up.bytes_per_second = upload_bytes_per_second
        host.down.bytes_per_second = download_bytes_per_second

    def set_skew(self, name: str, seconds: float) -> None:
        """Set a machine's clock off."""
        self.hosts[name].clock.skew_seconds = seconds

    def cut(self, source: Host, target: Host) -> bool:
        """Return whether nothing passes from one machine to another now."""
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
