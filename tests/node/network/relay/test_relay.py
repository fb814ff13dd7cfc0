"""Relay between nodes of a simulated network; the node behind it answers as p2pd does."""

import asyncio

import pytest

from node.network.relay import relay as module
from node.network.relay.relay import RESERVATION_SECONDS, CircuitRelay
from node.network.relay.wire import (
    HOP_SHAPE,
    STOP_SHAPE,
    CircuitMessage,
    CircuitMessageKind,
    CircuitStatus,
    ask,
    receive,
    send,
)
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.protocols import HOP, STOP_NAME
from roles.ports.transport import TransportError
from tests.node.network.relay.circuit_nodes import Swarm

pytestmark = pytest.mark.virtual


class World(Swarm):
    """A relay, a node behind it, a caller, and others."""

    def __init__(self, *others, cap=None, members=9):
        super().__init__("relay", "home", "caller", *others)
        self.members = self.nodes[:members]
        self.relay_node, self.home, self.caller, *self.others = self.nodes
        self.relay = CircuitRelay(self.relay_node.context, UploadScheduler(cap))
        self.probes = []
        self.answer = CircuitStatus.OK

    async def begin(self):
        for node in self.members:
            self.tell(node)
        await self.relay.start()
        await self.home.transport.handle(STOP_NAME, self.accept)

    async def accept(self, stream):
        """Accept a connection, and echo its bytes."""
        message = await receive(stream, STOP_SHAPE)
        self.probes.append(message)
        await send(stream, CircuitMessage(CircuitMessageKind.STATUS, None, self.answer), STOP_SHAPE)
        while data := await stream.read(1 << 16):
            await stream.write(data)

    async def hop(self, node, message):
        """Send a request to the relay; return the answer and the stream, possibly a circuit now."""
        stream = await node.peers.open_stream(self.relay_node.peer, HOP.name)
        await send(stream, message, HOP_SHAPE)
        return await receive(stream, HOP_SHAPE), stream

    async def reserve(self, node):
        answer, stream = await self.hop(node, CircuitMessage(CircuitMessageKind.RESERVE))
        await stream.close()
        return answer

    async def connect(self, node=None, target=None):
        target = (target or self.home).peer
        return await self.hop(
            node or self.caller, CircuitMessage(CircuitMessageKind.CONNECT, target)
        )


async def begun(*others, **options):
    world = World(*others, **options)
    await world.begin()
    return world


async def test_bytes_go_both_ways_through_a_circuit_and_are_counted():
    world = await begun()
    reserved = await world.reserve(world.home)
    assert reserved.status == CircuitStatus.OK
    lasts = reserved.expires_at - world.home.context.ports.clock.now()
    assert lasts == pytest.approx(RESERVATION_SECONDS, abs=1)
    answer, circuit = await world.connect()
    assert answer.status == CircuitStatus.OK
    assert (answer.limit_seconds, answer.limit_bytes) == (600, module.CIRCUIT_BYTES_MAX)
    await circuit.write(b"hello")
    assert await circuit.read_exactly(5) == b"hello"
    (probe,) = world.probes
    assert probe.peer == world.caller.peer
    assert probe.limit_seconds == 600
    assert (world.relay.reservations, world.relay.circuits) == (1, 1)
    assert world.relay.carried_bytes == 10
    await circuit.close()
    await asyncio.sleep(1)
    assert world.relay.circuits == 0


async def test_nobody_is_called_who_has_not_asked_for_it():
    world = await begun()
    answer, _ = await world.connect()
    assert answer.status == CircuitStatus.NO_RESERVATION
    await world.reserve(world.home)
    world.hub.disconnect(world.relay_node.peer, world.home.peer)
    answer, _ = await world.connect()
    assert answer.status == CircuitStatus.NO_RESERVATION
    assert world.relay.reservations == 0
    assert not world.probes
    assert not world.hub.connected(world.relay_node.peer, world.home.peer), "it dials nobody"


async def test_a_reservation_ends_unless_it_is_renewed():
    world = await begun()

    async def refresh():
        while True:
            for node in world.nodes:
                world.tell(node)
            await asyncio.sleep(5)

    task = asyncio.create_task(refresh())
    for _ in range(2):
        await world.reserve(world.home)
        await asyncio.sleep(RESERVATION_SECONDS - 5)
        answer, circuit = await world.connect()
        assert answer.status == CircuitStatus.OK
        await circuit.close()
    for node in world.nodes:  # records expire earlier
        world.tell(node)
    await asyncio.sleep(6)
    answer, _ = await world.connect()
    assert answer.status == CircuitStatus.NO_RESERVATION
    task.cancel()


async def test_only_members_are_served_and_only_over_connections_of_their_own():
    world = await begun("untrusted", members=3)
    (untrusted_peer,) = world.others
    assert (await world.reserve(untrusted_peer)).status == CircuitStatus.PERMISSION_DENIED
    assert (await world.reserve(world.home)).status == CircuitStatus.OK
    answer, _ = await world.connect(untrusted_peer)
    assert answer.status == CircuitStatus.PERMISSION_DENIED

    async def through_another_relay(_peer):
        return ["/ip4/9.9.9.9/tcp/1/p2p/x/p2p-circuit"]

    world.relay_node.transport.remote_addresses = through_another_relay
    assert (await world.reserve(world.home)).status == CircuitStatus.PERMISSION_DENIED
    assert not world.probes


async def test_a_circuit_ends_after_its_bytes(monkeypatch):
    monkeypatch.setattr(module, "CIRCUIT_BYTES_MAX", 1000)
    world = await begun()
    await world.reserve(world.home)
    _, circuit = await world.connect()
    await circuit.write(bytes(2000))
    with pytest.raises(TransportError):
        await circuit.read_exactly(2000)
    assert 1000 <= world.relay.carried_bytes <= 2000
    assert world.relay.circuits == 0


async def test_a_circuit_ends_after_its_time():
    world = await begun()
    await world.reserve(world.home)
    _, circuit = await world.connect()
    before = asyncio.get_running_loop().time()
    assert await circuit.read(1) == b""
    assert asyncio.get_running_loop().time() - before == pytest.approx(600, abs=1)


async def test_one_node_has_so_many_circuits_and_one_caller_too(monkeypatch):
    monkeypatch.setattr(module, "CIRCUITS_PER_TARGET_MAX", 3)
    world = await begun("other")
    await world.reserve(world.home)
    circuits = [await world.connect() for _ in range(3)]
    answer, _ = await world.connect(world.others[0])
    assert answer.status == CircuitStatus.RESOURCE_LIMIT_EXCEEDED
    await circuits[0][1].close()
    await asyncio.sleep(1)
    answer, _ = await world.connect(world.others[0])
    assert answer.status == CircuitStatus.OK


async def test_places_go_to_a_trusted_peer_when_they_run_out(monkeypatch):
    monkeypatch.setattr(module, "RESERVATIONS_MAX", 2)
    world = await begun("trusted", "other")
    trusted, other = world.others
    world.trusted.add(trusted.peer)
    assert (await world.reserve(world.home)).status == CircuitStatus.OK
    assert (await world.reserve(other)).status == CircuitStatus.OK
    assert (await world.reserve(world.caller)).status == CircuitStatus.RESERVATION_REFUSED
    assert (await world.reserve(trusted)).status == CircuitStatus.OK
    assert world.relay.reservations == 2
    answer, _ = await world.connect()
    assert answer.status == CircuitStatus.NO_RESERVATION, "the oldest of the others has lost it"
    assert (await world.reserve(trusted)).status == CircuitStatus.OK, "it has one already"
    assert world.relay.reservations == 2


async def test_a_refusal_of_the_one_behind_is_passed_on():
    world = await begun()
    await world.reserve(world.home)
    world.answer = CircuitStatus.CONNECTION_FAILED
    answer, _ = await world.connect()
    assert answer.status == CircuitStatus.CONNECTION_FAILED
    assert world.relay.circuits == 0


async def test_circuits_stay_below_the_cap_of_uploads():
    world = await begun(cap=100_000)
    await world.reserve(world.home)
    _, circuit = await world.connect()
    before = asyncio.get_running_loop().time()
    await circuit.write(bytes(100_000))
    await circuit.read_exactly(100_000)
    assert asyncio.get_running_loop().time() - before > 0.8 * 200_000 / 90_000


async def test_what_is_no_message_is_blamed():
    world = await begun()
    stream = await world.caller.peers.open_stream(world.relay_node.peer, HOP.name)
    await stream.write(b"\x02\x08\x09")
    assert (await receive(stream, HOP_SHAPE)).status == CircuitStatus.MALFORMED_MESSAGE
    assert [peer for peer, _ in world.relay_node.peers.blamed] == [world.caller.peer]
    stream = await world.caller.peers.open_stream(world.relay_node.peer, HOP.name)
    with pytest.raises(TransportError, match="400"):
        await ask(stream, CircuitMessage(CircuitMessageKind.CONNECT), HOP_SHAPE)
