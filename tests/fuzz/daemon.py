"""A daemon of a small swarm in virtual time, with connected untrusted peers.

The swarm trains for two versions; then all nodes but one relay stop. Untrusted peers exchange bytes
with the handlers and clients of this relay over the simulator's streams.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from node.daemon import Daemon
from node.network.relay.relay import CircuitRelay
from protocol.core.crypto import Signer
from protocol.core.types import MEMBERS_MAX, PeerId
from roles.ports.transport import TransportError
from simulations.cluster.world import World
from simulations.network.network import SimNetwork
from simulations.network.streams import SimStream
from simulations.network.transport import SimTransport
from simulations.runtime.loop import VirtualLoop
from simulations.runtime.trace import Trace
from tests.fuzz.target import BrokenBoundError
from tests.worlds.messages import identity
from tests.worlds.swarm import scenario

RELAY = "relay-0"
LINE_BYTES_PER_SECOND = 125e6
VERSIONS = 2
ENDLESS_BYTES = 512 << 10
"""Bytes of a repeated input: small RPCs take 1.5 us of a core for each byte (docs/security.md)."""

END_SECONDS = 200.0
"""Longer than any handler's deadline: a handler that still runs then never ends."""

T = TypeVar("T")


class UntrustedPeer:
    """A machine with an unknown key, connected to the relay."""

    def __init__(self, network: SimNetwork, signer: Signer, on_error: Any) -> None:
        self.signer = signer
        self.name = signer.peer_id
        rates = dict.fromkeys(
            ("upload_bytes_per_second", "download_bytes_per_second"), LINE_BYTES_PER_SECOND
        )
        self.host = network.add_host(self.name, signer.peer_id, region="here", **rates)
        self.transport: SimTransport = network.attach(self.name, on_error)
        network.connect(self.host, network.hosts[RELAY])


class Swarm:
    """The relay and its untrusted peers; create it outside of any event loop."""

    UNTRUSTED = 12

    def __init__(self) -> None:
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[_silent])
        self._loop = VirtualLoop()
        self._count = 0
        self.untrusted: list[UntrustedPeer] = []
        self.world: World = self.run(self._found())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in virtual time; raises the error of a daemon that fails meanwhile."""
        result = self._loop.run_until_complete(self._loop.create_task(work))
        if hasattr(self, "world") and self.world.ended.done():
            self.world.ended.result()
        return result

    async def _found(self) -> World:
        plan = scenario({"relay": 1}, {}).model_copy(update={"signatures": "ed25519"})
        world = World(plan, 1, Trace())
        world.begin()
        for name in world.machines:
            world.start(name)
        relay = world.machines[RELAY]
        while relay.daemon is None or relay.daemon.replica.ledger.chain.version < VERSIONS:
            await asyncio.sleep(0.5)
            if world.ended.done():
                world.ended.result()
        # The modelled network has no circuits, so the daemon does not start the hop service.
        await CircuitRelay(relay.daemon.context, relay.daemon.exchange.upload_cap).start()
        self.signers = {one.signer.peer_id: one.signer for one in world.machines.values()}
        await asyncio.gather(*(world.leave(name) for name in world.running if name != RELAY))
        for _ in range(self.UNTRUSTED):
            self._add(world)
        await asyncio.sleep(3.0)
        return world

    def _add(self, world: World) -> None:
        self._count += 1
        signer = identity(f"untrusted {self._count}")
        self.untrusted.append(UntrustedPeer(world.network, signer, world._handler_failed))
        self.signers[signer.peer_id] = signer

    @property
    def daemon(self) -> Daemon:
        daemon = self.world.machines[RELAY].daemon
        if daemon is None:
            raise BrokenBoundError("the daemon has ended")
        return daemon

    def remote(self, number: int) -> UntrustedPeer:
        """Return peer ``number``; a banned one is replaced by a peer with a new key."""
        place = number % len(self.untrusted)
        one, network = self.untrusted[place], self.world.network
        relay = self.world.machines[RELAY].host.peer_id
        banned = one.signer.peer_id in self.daemon.context.peers._bans._until
        if banned or relay not in one.host.connections:
            network.detach(one.name)
            del network.hosts[one.name]
            del network._by_peer[one.signer.peer_id]
            del self.untrusted[place]
            self._add(self.world)
            self.untrusted.insert(place, self.untrusted.pop())
            one = self.untrusted[place]
        return one

    def handler(self, protocol: str) -> Callable[[Any], Awaitable[None]]:
        """Return the relay's handler of a protocol."""
        transport = self.world.network.running(self.world.machines[RELAY].host.peer_id)
        handler = None if transport is None else transport.handler(protocol)
        if handler is None:
            raise BrokenBoundError(f"no handler of {protocol}")
        return handler

    def ignores(self, remote: UntrustedPeer) -> bool:
        """Return whether the relay ignores this peer's gossip now."""
        return self.daemon._gossip._ignored(remote.signer.peer_id)

    def open(self, remote: UntrustedPeer) -> tuple[SimStream, SimStream]:
        """Return both ends of a new stream, the peer's first."""
        relay = self.world.machines[RELAY].host.peer_id
        outgoing = remote.host.connections[relay].open_stream(remote.host, "fuzz")
        mine = SimStream(relay, outgoing)
        return mine, SimStream(PeerId(remote.signer.peer_id), outgoing.opposite)

    def check(self) -> None:
        """Compare the tables of the daemon with their limits."""
        daemon = self.daemon
        limits = daemon.context.tables.limits() | {"members": MEMBERS_MAX}
        sizes = daemon.context.tables.sizes() | {"members": len(daemon.replica.roster)}
        for name, size in sizes.items():
            if size > limits[name]:
                raise BrokenBoundError(f"{name}: {size}, limit {limits[name]}")
        # Tasks of gossip, services and peers' streams; their number must not grow with the inputs.
        tasks = len(asyncio.all_tasks(self._loop))
        if tasks > 40 + 12 * self.UNTRUSTED:
            raise BrokenBoundError(f"{tasks} tasks")

    def close(self) -> None:
        self._loop.run_until_complete(self.world.leave(RELAY))
        self._loop.set_exception_handler(lambda _loop, _context: None)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(60.0))
        self._loop.close()


def _silent(_logger: Any, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent


async def spoken(stream: SimStream, data: bytes, mode: int) -> None:
    """Write ``data`` whole or in pieces; then close, wait, reset, or stay open, by ``mode``."""
    pieces = _pieces(data, mode >> 2 & 7)
    try:
        for piece in pieces:
            await stream.write(piece)
            if len(pieces) > 1:
                await asyncio.sleep(0.001)
        if mode & 3 == 0:
            await stream.close()
        elif mode & 3 == 2:
            stream.outgoing.reset()
        elif mode & 3 == 3 and mode & 0x20 and data:
            part = data * (1 + 65536 // len(data))
            for _ in range(ENDLESS_BYTES // len(part)):
                await stream.write(part)
            await stream.close()
    except TransportError:
        pass


def _pieces(data: bytes, cut: int) -> list[bytes]:
    if cut == 0 or not data:
        return [data] if data else []
    step = max(1, (1, 2, 3, 5, 17, 100, 1000)[cut - 1], len(data) // 40)
    return [data[start : start + step] for start in range(0, len(data), step)]


async def heard(stream: SimStream, bytes_max: int = 8 << 20) -> int:
    """Read to the end; return the number of bytes."""
    count = 0
    try:
        while count < bytes_max and (piece := await stream.read(1 << 16)):
            count += len(piece)
    except TransportError:
        pass
    return count
