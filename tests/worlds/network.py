"""Transports on a simulated network, for tests of one protocol between two or three nodes.

``Hub`` is a ``SimNetwork`` with fast links and short latencies. Its nodes are named by peer id, and
it connects and cuts at once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from roles.ports.transport import TransportError
from simulations.network.connections import LinkConditions
from simulations.network.network import SimNetwork
from simulations.network.streams import SimStream
from simulations.network.transport import SimTransport
from simulations.ports.directory import SharedDirectory
from simulations.runtime import loop as virtual
from simulations.runtime.loop import START
from simulations.scenario.scenario import DirectoryQuality
from tests.worlds.inline_loop import InlineLoop

ROUND_TRIP_SECONDS = 0.002
LINE_BYTES_PER_SECOND = 125e6
"""A local network of 1 Gbit/s."""

PERFECT = DirectoryQuality(delay_seconds=0.0, lookup_seconds=0.0, missing=0.0, failing=0.0)

T = TypeVar("T")


def run_virtual(scenario: Coroutine[Any, Any, T]) -> T:
    """Run ``scenario`` to its end in virtual time: a sleep costs nothing."""
    return virtual.run_virtual(scenario, InlineLoop)


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait in virtual time until ``condition`` holds; raises ``TimeoutError``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is any state, not an event
            await asyncio.sleep(0.01)


class LoopClock:
    """The ``Clock`` port on the running loop; ``offset`` sets it wrong.

    Each call of ``core_seconds`` adds ``look_seconds``.
    """

    offset = 0.0
    look_seconds = 0.0
    looks = 0

    def now(self) -> float:
        return START + asyncio.get_running_loop().time() + self.offset

    def core_seconds(self) -> float:
        self.looks += 1
        return self.looks * self.look_seconds


def address(peer: PeerId) -> str:
    return f"/sim/{peer}/p2p/{peer}"


class Hub:
    """Nodes, connections and faults of the network; create it in virtual time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        conditions = LinkConditions(Rng(b"conditions"), jitter=0.0)
        self.network = SimNetwork(
            self._loop, Rng(b"paths"), conditions, lambda *_: ROUND_TRIP_SECONDS
        )
        self.directory = SharedDirectory(LoopClock(), PERFECT)
        self.transports: dict[PeerId, SimTransport] = {}
        self._cuts = []
        self._stalls = {}

    def transport(self, peer: PeerId) -> SimTransport:
        """Add a node, or restart it, and return its ``Transport``."""
        if peer not in self.network.hosts:
            self.network.add_host(
                peer,
                peer,
                region="here",
                upload_bytes_per_second=LINE_BYTES_PER_SECOND,
                download_bytes_per_second=LINE_BYTES_PER_SECOND,
            )
        self.network.detach(peer)
        self.transports[peer] = self.network.attach(peer, self._handler_failed)
        return self.transports[peer]

    def _handler_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a handler failed", "exception": error})

    def connect(self, one: PeerId, other: PeerId) -> None:
        here = {one, other} <= self.transports.keys()
        hosts = [self.network.hosts[peer] for peer in (one, other)] if here else []
        if one == other or not here or self.network.cut(*hosts):
            raise TransportError(f"cannot reach {other}")
        self.network.connect(*hosts)

    def disconnect(self, one: PeerId, other: PeerId) -> None:
        """Drop the connection and reset its streams; idempotent."""
        self.network.break_connections(one, other)

    def connected(self, one: PeerId, other: PeerId) -> bool:
        return other in self.network.hosts[one].connections

    def break_streams(self, one: PeerId, other: PeerId) -> None:
        """Reset every stream between two nodes; the connection stays."""
        self.network.break_streams(one, other)

    def partition(self, *islands: Iterable[PeerId]) -> None:
        """Cut the network into ``islands`` (nodes not named stay together) until ``heal``."""
        self._cuts.append(self.network.partition(*islands))
        for host in self.network.hosts.values():
            for connection in list(host.connections.values()):
                if connection.blocked:
                    connection.close()

    def heal(self) -> None:
        """End all partitions; nodes must dial again."""
        while self._cuts:
            self.network.heal(self._cuts.pop())

    def stall(self, peer: PeerId) -> None:
        """Hold all bytes to ``peer`` until ``resume``."""
        others = [other for other in self.network.hosts if other != peer]
        self._stalls[peer] = self.network.one_way(others, [peer])

    def resume(self, peer: PeerId) -> None:
        self.network.heal(self._stalls.pop(peer))

    def remove(self, peer: PeerId) -> None:
        """Kill a node: its connections break, and dials to it fail."""
        self.network.detach(peer)
        self.transports.pop(peer, None)

    def open(self, opener: PeerId, acceptor: PeerId) -> tuple[SimStream, SimStream]:
        """Return both ends of a new stream without a handler, the opener's first."""
        host = self.network.hosts[opener]
        outgoing = host.connections[acceptor].open_stream(host, "test")
        return SimStream(acceptor, outgoing), SimStream(opener, outgoing.opposite)


class HubPeers:
    """The part of the connection manager that services use, on a hub."""

    in_local_swarm = False

    def __init__(self, transport, hub):
        self.transport, self.hub, self.blamed = transport, hub, []
        self.peer_id = transport.peer_id

    @property
    def connected(self):
        return list(self.hub.network.hosts[self.peer_id].connections)

    async def open_stream(self, peer, protocol):
        if not self.hub.connected(self.peer_id, peer):
            await self.transport.connect(address(peer))
        return await self.transport.open_stream(peer, protocol)

    async def handle(self, protocol, handler):
        await self.transport.handle(protocol, handler)

    def blame(self, peer, fault):
        self.blamed.append((peer, fault))
