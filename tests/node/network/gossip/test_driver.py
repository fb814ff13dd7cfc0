import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType

import pytest

from node.network.connections.gater import BAN_SECONDS
from node.network.connections.manager import POLL_SECONDS, ConnectionManager
from node.network.gossip import peer_streams as links
from node.network.gossip.config import READ_BURST_BYTES, READ_RATES, WAKE_BYTES, GossipLimits
from node.network.gossip.driver import Gossip
from node.network.gossip.peer_streams import IGNORED_SECONDS
from node.network.gossip.tasks import Tasks
from node.network.streams.protocols import GOSSIP
from protocol.core.crypto import Identity
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import ValidationResult
from protocol.gossipsub.events import Priority, Send
from protocol.gossipsub.message import MESSAGE_ID_BYTES, encode_message, sign_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import (
    Deframer,
    IHave,
    Prune,
    Rpc,
    Subscription,
    decode_rpc,
    encode_rpc,
    frame,
)
from roles.ports.transport import TransportError, Trust
from simulations.network import streams
from tests.worlds.network import Hub, LoopClock, eventually

pytestmark = pytest.mark.virtual

TOPIC = "run/commits"
FAULTS = 3
"""Faults that ban a peer at once."""


def accept(_author, _data):
    return ValidationResult.ACCEPT


class Table(ConnectionManager):
    chosen = frozenset()
    places = MappingProxyType({})

    def blame(self, peer, fault):
        self.blamed.append((peer, fault.code))
        super().blame(peer, fault)


class Node:
    """One gossip driver on a hub, with an inbox."""

    def __init__(self, hub: Hub, number: int, **options):
        self.identity = Identity(bytes([number]) * 32)
        self.peer_id = self.identity.peer_id
        self.transport = hub.transport(self.peer_id)
        self.inbox = []
        self.blamed = []
        self.clock = LoopClock()
        self.peers = Table(self.transport, self.clock, Rng(bytes([number])), [])
        self.peers.blamed = self.blamed
        self.gossip = Gossip(self.peers, self.identity, self.clock, Rng(bytes([number])), **options)

    async def start(self):
        await self.gossip.start()
        self.looking = asyncio.create_task(self.peers.run())

    async def stop(self):
        self.looking.cancel()
        await self.gossip.stop()

    def subscribe(self, validate=accept):
        self.gossip.subscribe(
            TOPIC, validate, lambda author, data: self.inbox.append((author, data))
        )


@asynccontextmanager
async def swarm(count: int, **options):
    """Yield a hub and ``count`` started and subscribed nodes in a chain."""
    hub = Hub()
    nodes = [Node(hub, number, **options) for number in range(1, count + 1)]
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    for node in nodes:
        await node.start()
        node.subscribe()
    for one, other in itertools.pairwise(nodes):
        hub.connect(one.peer_id, other.peer_id)
    try:
        yield hub, nodes
        assert errors == []
    finally:
        for node in nodes:
            await node.stop()


def meshed(*nodes):
    return all(node.gossip.mesh_peers(TOPIC) for node in nodes)


class RawPeer:
    """Peer that writes raw bytes, to misbehave."""

    def __init__(self, hub: Hub, number: int = 200):
        self.identity = Identity(bytes([number]) * 32)
        self.transport = hub.transport(self.identity.peer_id)
        self.rpcs = []
        self.streams = 0

    async def listen(self):
        await self.transport.handle(GOSSIP.name, self._serve)

    async def _serve(self, stream):
        self.streams += 1
        deframer = Deframer()
        while data := await stream.read(4096):
            frames = deframer.feed(data)
            assert not isinstance(frames, Fault)
            self.rpcs += [decode_rpc(each) for each in frames]

    async def stream_to(self, node: Node):
        return await self.transport.open_stream(node.peer_id, GOSSIP.name)

    def message(self, data: bytes, seqno: int) -> bytes:
        return encode_message(sign_message(self.identity, TOPIC, data, seqno))

    def published(self, data: bytes, seqno: int) -> bytes:
        return frame(encode_rpc(Rpc(publish=(self.message(data, seqno),))))


async def test_a_message_crosses_a_chain_once():
    async with swarm(4) as (_, nodes):
        await eventually(lambda: meshed(*nodes))
        await nodes[0].gossip.publish(TOPIC, b"hello")
        await eventually(lambda: all(node.inbox for node in nodes[1:]))
        await asyncio.sleep(10)
        for node in nodes[1:]:
            assert node.inbox == [(nodes[0].peer_id, b"hello")]
        assert nodes[0].inbox == []
        assert nodes[0].gossip.counters.published == 1
        assert nodes[1].gossip.counters.verdicts[ValidationResult.ACCEPT] == 1
        assert nodes[1].gossip.link_counters.frames_in > 0


@pytest.mark.parametrize("verdict", [ValidationResult.IGNORE, ValidationResult.REJECT])
async def test_rejected_message_is_not_forwarded(verdict):
    async with swarm(3) as (_, nodes):

        async def judge(_author, _data):
            await asyncio.sleep(0.1)
            return verdict

        nodes[1].subscribe(judge)
        await eventually(lambda: meshed(*nodes))
        await nodes[0].gossip.publish(TOPIC, b"bad")
        await asyncio.sleep(20)
        assert nodes[1].inbox == nodes[2].inbox == []
        assert nodes[1].gossip.counters.verdicts == {verdict: 1}
        blamed = [(nodes[0].peer_id, "message-rejected")]
        assert nodes[1].blamed == (blamed if verdict is ValidationResult.REJECT else [])


async def test_a_validator_that_hangs_is_an_ignore():
    async with swarm(2) as (_, nodes):
        nodes[1].subscribe(lambda _author, _data: asyncio.Event().wait())
        await eventually(lambda: meshed(*nodes))
        await nodes[0].gossip.publish(TOPIC, b"slow")
        await asyncio.sleep(30)
        assert nodes[1].gossip.counters.verdicts[ValidationResult.IGNORE] == 1
        assert nodes[1].inbox == []


@pytest.mark.parametrize("form", ["plain", "async", "deliver"])
async def test_an_application_that_raises_is_reported_and_does_not_stop_gossip(form):
    def broken(_author, data):
        raise KeyError(data)

    async def broken_later(_author, data):
        raise KeyError(data)

    hub = Hub()
    one, other = Node(hub, 1), Node(hub, 2)
    errors = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: errors.append(context["exception"])
    )
    for node in (one, other):
        await node.start()
        node.subscribe()
    if form == "deliver":
        other.gossip.subscribe(TOPIC, accept, broken)
    else:
        other.subscribe({"plain": broken, "async": broken_later}[form])
    hub.connect(one.peer_id, other.peer_id)
    await eventually(lambda: meshed(one, other))
    await one.gossip.publish(TOPIC, b"first")
    await eventually(lambda: len(errors) == 1)
    assert isinstance(errors[0], KeyError)
    other.subscribe()
    await one.gossip.publish(TOPIC, b"second")
    await eventually(lambda: other.inbox == [(one.peer_id, b"second")])
    await one.stop()
    await other.stop()


async def test_subscribing_without_delivery_still_relays():
    async with swarm(3) as (_, nodes):
        nodes[1].gossip.subscribe(TOPIC, accept)
        await eventually(lambda: meshed(*nodes))
        await nodes[0].gossip.publish(TOPIC, b"x")
        await eventually(lambda: nodes[2].inbox == [(nodes[0].peer_id, b"x")])


async def test_leaving_a_topic_ends_delivery_even_from_inside_a_validator():
    async with swarm(2) as (hub, nodes):
        raw = RawPeer(hub)
        await raw.listen()
        node = nodes[1]

        def judge(_author, _data):
            node.gossip.unsubscribe(TOPIC)
            return ValidationResult.ACCEPT

        node.subscribe(judge)
        hub.connect(raw.identity.peer_id, node.peer_id)
        stream = await raw.stream_to(node)
        both = Rpc(publish=(raw.message(b"1", 1), raw.message(b"2", 2)))
        await stream.write(frame(encode_rpc(both)))
        await eventually(lambda: node.gossip.counters.received == 2)
        assert node.inbox == []
        assert node.gossip.counters.verdicts[ValidationResult.IGNORE] == 1


async def test_a_partition_heals():
    async with swarm(3) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        hub.partition([nodes[0].peer_id])
        await eventually(lambda: not nodes[0].gossip.mesh_peers(TOPIC))
        await eventually(lambda: nodes[1].gossip.mesh_peers(TOPIC) == [nodes[2].peer_id])
        with pytest.raises(TransportError):
            hub.connect(nodes[0].peer_id, nodes[1].peer_id)
        hub.heal()
        hub.connect(nodes[0].peer_id, nodes[1].peer_id)
        await eventually(lambda: nodes[0].gossip.mesh_peers(TOPIC))
        await nodes[0].gossip.publish(TOPIC, b"back")
        await eventually(lambda: nodes[2].inbox == [(nodes[0].peer_id, b"back")])


async def test_broken_streams_are_opened_again_and_say_hello_again():
    async with swarm(2) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        for number in range(3):
            hub.break_streams(nodes[0].peer_id, nodes[1].peer_id)
            await asyncio.sleep(3)
            await nodes[0].gossip.publish(TOPIC, bytes([number]))
            await nodes[1].gossip.publish(TOPIC, bytes([number]))
            await asyncio.sleep(3)
        for node, other in (nodes, nodes[::-1]):
            assert node.inbox == [(other.peer_id, bytes([number])) for number in range(3)]


async def test_a_lost_push_is_fetched_by_gossip():
    async with swarm(2) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        hub.disconnect(nodes[0].peer_id, nodes[1].peer_id)
        await nodes[0].gossip.publish(TOPIC, b"lost")
        await eventually(lambda: nodes[0].gossip.report() == [])
        hub.connect(nodes[0].peer_id, nodes[1].peer_id)
        await eventually(lambda: nodes[1].inbox == [(nodes[0].peer_id, b"lost")])


async def test_a_peer_without_gossip_costs_nothing_and_is_found_when_it_starts():
    async with swarm(2) as (hub, nodes):
        late = Node(hub, 77)
        hub.connect(nodes[0].peer_id, late.peer_id)
        await eventually(lambda: meshed(*nodes))
        await asyncio.sleep(200)
        assert nodes[0].gossip.mesh_peers(TOPIC) == [nodes[1].peer_id]
        await late.start()
        late.subscribe()
        await eventually(lambda: late.peer_id in nodes[0].gossip.mesh_peers(TOPIC), 5)
        await late.stop()


async def test_a_peer_without_gossip_is_asked_ever_less_often():
    async with swarm(1) as (hub, (node,)):
        raw, asked = RawPeer(hub), []
        open_stream = node.transport.open_stream

        async def counted(peer, protocol):
            asked.append(protocol)
            return await open_stream(peer, protocol)

        node.transport.open_stream = counted
        hub.connect(raw.identity.peer_id, node.peer_id)
        await asyncio.sleep(200)
        assert 5 <= len(asked) <= 10, "after 1, 2, 4 ... 60 seconds"


async def test_a_stream_that_the_peer_closes_is_opened_again_and_begins_with_a_hello():
    async with swarm(1) as (hub, (node,)):
        raw = RawPeer(hub)

        async def serve_one(stream):
            raw.rpcs.append(decode_rpc(Deframer().feed(await stream.read(4096))[0]))

        await raw.transport.handle(GOSSIP.name, serve_one)
        hub.connect(raw.identity.peer_id, node.peer_id)
        hello = Rpc(subscriptions=(Subscription(True, TOPIC),))
        await eventually(lambda: raw.rpcs == [hello] * 3)


async def nobody():
    return []


async def test_a_peer_whose_stream_is_open_stays_although_a_look_misses_it():
    async with swarm(1) as (hub, (node,)):
        raw = RawPeer(hub)
        await raw.listen()
        hub.connect(raw.identity.peer_id, node.peer_id)
        stream = await raw.stream_to(node)

        node.transport.peers = nobody
        await asyncio.sleep(3 * POLL_SECONDS)
        assert node.peers.connected == []
        await stream.write(raw.published(b"still here", 1))
        await eventually(lambda: len(node.inbox) == 1)
        await stream.close()
        await asyncio.sleep(3 * POLL_SECONDS)
        assert node.gossip.report() == []


class Pipe:
    """Stream without room at first, and then with room."""

    def __init__(self):
        self.offered = []

    def offer(self, data):
        self.offered.append(data)
        return len(self.offered) > 1


async def test_rpc_does_not_overtake_queued_ones():
    async with swarm(2) as (_, nodes):
        await eventually(lambda: meshed(*nodes))
        links, peer = nodes[0].gossip._links, nodes[1].peer_id
        link, pipe = links._links[peer], Pipe()
        link.idle = pipe
        rpcs = [encode_rpc(Rpc(publish=(bytes([number]),))) for number in range(3)]
        for rpc in rpcs:
            links.send(Send(peer, rpc, Priority.RELAY))
        assert pipe.offered == [frame(rpcs[0])]
        assert link.outbox.take(10**6) == rpcs


async def test_a_task_that_fails_is_told_at_once():
    told, tasks = [], Tasks()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))

    async def fail():
        raise KeyError("a defect")

    tasks.spawn(fail())
    waiting = tasks.spawn(asyncio.sleep(3600))
    await asyncio.sleep(1)
    assert [type(error) for error in told] == [KeyError]
    await tasks.cancel()
    assert waiting.cancelled()
    assert len(told) == 1


async def test_a_peer_that_stops_gossip_but_stays_connected_leaves_the_mesh():
    async with swarm(2) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        await nodes[1].stop()
        hub.transport(nodes[1].peer_id)
        hub.connect(nodes[0].peer_id, nodes[1].peer_id)
        await eventually(lambda: not nodes[0].gossip.mesh_peers(TOPIC))


async def test_a_stalled_peer_delays_nobody_drops_visibly_and_is_cut():
    limits = GossipLimits(outbox_frames_max=50, publish_wait_seconds=0.01)
    params = Params(heartbeat_seconds=1.0, mesh_low=1)
    trust = Trust(trusted=lambda _: True)
    async with swarm(3, limits=limits, params=params, trust=trust) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        author, healthy, stalled = nodes[1], nodes[0], nodes[2]
        hub.stall(stalled.peer_id)
        size = 4000
        count = streams.WINDOW_BYTES // size + 80
        for number in range(count):
            await author.gossip.publish(TOPIC, number.to_bytes(4, "big") * (size // 4))
            await asyncio.sleep(0.001)
        await eventually(lambda: len(healthy.inbox) == count, 1)
        assert author.gossip.link_counters.frames_dropped > 0
        await eventually(lambda: not hub.connected(author.peer_id, stalled.peer_id), 60)
        assert author.gossip.link_counters.peers_cut == 1
        reports = author.gossip.report
        await eventually(lambda: [each.peer for each in reports()] == [healthy.peer_id])


@pytest.mark.parametrize(("core_seconds", "share"), [(0.0, 1.0), (0.02, 0.2)])
async def test_expensive_reads_of_a_peer_delay_that_peer_only(core_seconds, share):
    """Frames that need five times the allowed CPU per byte are read at a fifth of the rate."""
    flooder = Identity(bytes([200]) * 32).peer_id
    async with swarm(2, trust=Trust(trusted=lambda peer: peer != flooder)) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        author, reader = nodes
        reader.clock.look_seconds = core_seconds
        raw = RawPeer(hub)
        hub.connect(raw.identity.peer_id, reader.peer_id)
        read_before = reader.gossip.link_counters.bytes_in
        stream = await raw.stream_to(reader)
        ids = tuple(number.to_bytes(MESSAGE_ID_BYTES, "big") for number in range(800))
        slow = frame(encode_rpc(Rpc(ihave=(IHave("elsewhere", ids),))))  # 40 kB

        async def flood():
            for _ in range(400):  # four times the read budget of that time
                await stream.write(slow)

        flooding = asyncio.create_task(flood())
        begun_at = asyncio.get_running_loop().time()
        for number in range(30):
            await author.gossip.publish(TOPIC, bytes([number]))
            await eventually(lambda number=number: len(reader.inbox) == number + 1, 1)
            await asyncio.sleep(1)
        flooding.cancel()
        seconds = asyncio.get_running_loop().time() - begun_at
        read = reader.gossip.link_counters.bytes_in - read_before
        rate = share * READ_RATES.untrusted.per_second
        assert read > rate * seconds, "as much as it may"
        assert read < rate * (seconds + 2) + 3 * READ_BURST_BYTES
        assert reader.gossip.link_counters.reads_delayed > 10
        assert reader.blamed == [], "it broke nothing"


async def test_a_read_of_one_byte_is_charged_for_waking_its_task():
    async with swarm(1) as (hub, (reader,)):
        raw = RawPeer(hub)
        hub.connect(raw.identity.peer_id, reader.peer_id)
        stream = await raw.stream_to(reader)
        for _ in range(4 * READ_BURST_BYTES // WAKE_BYTES):
            await stream.write(b"\0")
            await asyncio.sleep(0.001)
        assert reader.gossip.link_counters.reads_delayed > 0


async def hears_an_author_in_a_flood(hub, say, reader, frames, peers, warm_seconds, per_second):
    """Write endless frames from raw peers, and ``say`` so many kB a second meanwhile."""

    async def flood(raw):
        stream = await raw.stream_to(reader)
        while True:
            await stream.write(frames)

    flooding = []
    for number in range(100, 100 + peers):
        raw = RawPeer(hub, number)
        hub.connect(raw.identity.peer_id, reader.peer_id)
        flooding.append(asyncio.create_task(flood(raw)))
    await asyncio.sleep(warm_seconds)
    for second in range(20):
        for number in range(per_second):
            await say(bytes([number]) * 1000)
        count = per_second * (second + 1)
        await eventually(lambda count=count: len(reader.inbox) == count, 0.5)
        await asyncio.sleep(0.5)
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)


async def test_an_untrusted_peer_in_our_mesh_is_read_apart_from_those_outside():
    """Twenty peers outside flood; an untrusted peer in the mesh sends 60 kB a second."""
    async with swarm(2, trust=Trust(trusted=lambda _peer: False)) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        ids = tuple(number.to_bytes(MESSAGE_ID_BYTES, "big") for number in range(800))
        offers = frame(encode_rpc(Rpc(ihave=(IHave("elsewhere", ids),))))
        author, reader = nodes
        say = partial(author.gossip.publish, TOPIC)
        await hears_an_author_in_a_flood(hub, say, reader, offers, 20, 15, 60)
        assert reader.gossip.link_counters.reads_delayed > 10


def grafts_that_break_their_word():
    leave = Rpc(subscriptions=(Subscription(True, TOPIC),), prune=(Prune(TOPIC, 60),))
    return frame(encode_rpc(leave)) + 200 * frame(encode_rpc(Rpc(graft=(TOPIC,))))


async def test_a_peer_below_the_threshold_uses_no_read_rate_of_untrusted_peers():
    """Thirty peers below the gossip threshold graft always; an untrusted peer sends 30 kB a second.

    It is in no mesh of ours either, where it would have a budget of its own.
    """
    async with swarm(1) as (hub, (reader,)):
        author, seqno = RawPeer(hub, 99), itertools.count(1)
        hub.connect(author.identity.peer_id, reader.peer_id)
        stream = await author.stream_to(reader)

        async def say(data):
            await stream.write(author.published(data, next(seqno)))

        grafts = grafts_that_break_their_word()
        await hears_an_author_in_a_flood(hub, say, reader, grafts, 30, 5, 30)


async def test_a_peer_below_the_threshold_has_one_waiting_stream():
    async with swarm(1) as (hub, (reader,)):
        raw = RawPeer(hub)
        hub.connect(raw.identity.peer_id, reader.peer_id)
        flooding, counts = [], []

        async def flood():
            stream = await raw.stream_to(reader)
            while True:
                await stream.write(grafts_that_break_their_word())

        for _ in range(30):
            flooding.append(asyncio.create_task(flood()))
            await asyncio.sleep(0.2)
            assert sum(not task.done() for task in flooding) == 1
            counts.append(len(asyncio.all_tasks()))
        await asyncio.sleep(2 * IGNORED_SECONDS)
        assert max(counts) == counts[0] >= len(asyncio.all_tasks())
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)


async def test_relays_wait_a_little_and_a_stopped_node_relays_nothing_more():
    params = Params(relay_wait_seconds=0.5)
    async with swarm(3, params=params) as (_, nodes):
        await eventually(lambda: meshed(*nodes))
        first, middle, last = nodes
        sent_at = asyncio.get_running_loop().time()
        await first.gossip.publish(TOPIC, b"data")
        await eventually(lambda: middle.inbox)
        await eventually(lambda: last.inbox, 1)
        waited_seconds = asyncio.get_running_loop().time() - sent_at
        assert 0 < waited_seconds < 1
        await first.gossip.publish(TOPIC, b"more")
        await eventually(lambda: len(middle.inbox) == 2)
        await middle.stop()
        await asyncio.sleep(2)
        assert len(last.inbox) == 1


async def test_publishing_slows_down_instead_of_dropping():
    limits = GossipLimits(outbox_frames_max=20, publish_wait_seconds=5.0)
    async with swarm(2, limits=limits) as (_, nodes):
        await eventually(lambda: meshed(*nodes))

        async def burst(publisher: int):
            for number in range(100):
                await nodes[0].gossip.publish(TOPIC, bytes([publisher, number]))

        async with asyncio.TaskGroup() as group:
            for publisher in range(8):
                group.create_task(burst(publisher))
        await eventually(lambda: len(nodes[1].inbox) == 800)
        assert nodes[0].gossip.link_counters.frames_dropped == 0


async def test_a_busy_publisher_does_not_take_the_room_of_the_others(monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_BYTES", 1 << 16)
    limits = GossipLimits(outbox_frames_max=20)
    async with swarm(2, limits=limits) as (_, nodes):
        await eventually(lambda: meshed(*nodes))
        progress = [0] * 8
        at_first_end = []

        async def burst(publisher: int):
            while progress[publisher] < 50:
                await nodes[0].gossip.publish(TOPIC, bytes(16_000))  # a few fill the pipe
                progress[publisher] += 1
            at_first_end.append(min(progress))

        async with asyncio.TaskGroup() as group:
            for publisher in range(8):
                group.create_task(burst(publisher))
        assert at_first_end[0] >= 30


async def test_a_disconnected_peer_leaves_no_task_behind():
    async with swarm(2) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        hub.disconnect(nodes[0].peer_id, nodes[1].peer_id)
        await asyncio.sleep(5)
        count = len(asyncio.all_tasks())
        hub.connect(nodes[0].peer_id, nodes[1].peer_id)
        await eventually(lambda: meshed(*nodes))
        assert len(asyncio.all_tasks()) > count
        hub.disconnect(nodes[0].peer_id, nodes[1].peer_id)
        await asyncio.sleep(5)
        assert [node.gossip.report() for node in nodes] == [[], []]
        assert len(asyncio.all_tasks()) == count


@pytest.mark.parametrize("turns", range(4))
async def test_link_ended_twice_closes_its_stream(turns):
    """Its peer disconnects, and the node stops before the writer has ended."""
    async with swarm(1) as (hub, (node,)):
        raw, ended = RawPeer(hub), []

        async def serve(stream):
            await stream.read(4096)  # the hello
            ended.append(False)
            ended[:] = [not await stream.read(1)]

        await raw.transport.handle(GOSSIP.name, serve)
        hub.connect(raw.identity.peer_id, node.peer_id)
        await eventually(lambda: ended == [False])
        node.transport.peers = nobody
        await node.peers.reach()
        for _ in range(turns):
            await asyncio.sleep(0)
        await node.gossip.stop()
        await eventually(lambda: ended == [True])


async def test_a_second_inbound_stream_replaces_the_first_and_gets_a_new_hello():
    async with swarm(1) as (hub, (node,)):
        raw = RawPeer(hub)
        await raw.listen()
        hub.connect(raw.identity.peer_id, node.peer_id)
        first = await raw.stream_to(node)
        hello = Rpc(subscriptions=(Subscription(True, TOPIC),))
        await eventually(lambda: raw.rpcs == [hello])
        second = await raw.stream_to(node)
        await eventually(lambda: raw.rpcs == [hello, hello])
        await second.write(raw.published(b"second", 1))
        await eventually(lambda: len(node.inbox) == 1)
        assert await first.read(1) == b""
        with pytest.raises(TransportError):
            await first.write(raw.published(b"first", 2))
        assert raw.streams == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "frame-oversize"),
        (frame(b"\x0b"), "rpc-malformed"),
        (frame(encode_rpc(Rpc(publish=(b"bad",)))), "message-malformed"),
    ],
)
async def test_bad_bytes_are_blamed(data, reason):
    async with swarm(1) as (hub, (node,)):
        raw = RawPeer(hub)
        await raw.listen()
        hub.connect(raw.identity.peer_id, node.peer_id)
        stream = await raw.stream_to(node)
        await stream.write(data)
        await eventually(lambda: node.blamed == [(raw.identity.peer_id, reason)])
        if reason == "frame-oversize":
            assert await stream.read(1) == b""
        assert node.gossip.counters.faults == 1


@pytest.mark.parametrize("what", ["bad signatures", "no protobuf", "rejected messages"])
async def test_a_peer_that_sends_what_no_honest_one_does_is_kept_away_for_a_while(what):
    def reject(_author, _data):
        return ValidationResult.REJECT

    def wrong(raw, number):
        if what == "no protobuf":
            return frame(b"\x0b")
        message = bytearray(raw.message(b"x", number))
        if what == "bad signatures":
            message[-1] ^= 1
        return frame(encode_rpc(Rpc(publish=(bytes(message),))))

    async with swarm(1) as (hub, (node,)):
        if what == "rejected messages":
            node.subscribe(reject)
        raw = RawPeer(hub)
        peer = raw.identity.peer_id
        await raw.listen()
        hub.connect(peer, node.peer_id)
        stream = await raw.stream_to(node)
        for number in range(FAULTS):
            assert hub.connected(peer, node.peer_id)
            await stream.write(wrong(raw, number))
            await asyncio.sleep(0.1)
        assert not hub.connected(peer, node.peer_id)
        assert len(node.blamed) == FAULTS
        assert node.peers.connected == []
        hub.connect(peer, node.peer_id)
        await asyncio.sleep(POLL_SECONDS)
        assert not hub.connected(peer, node.peer_id), "it is cut off at each look"
        hub.connect(peer, node.peer_id)
        refused = await raw.stream_to(node)
        with pytest.raises(TransportError):
            await refused.read(1)
        assert not hub.connected(peer, node.peer_id), "and when it opens a stream"
        await asyncio.sleep(POLL_SECONDS)
        assert node.peers.banned == 1
        await asyncio.sleep(BAN_SECONDS)
        hub.connect(peer, node.peer_id)
        node.subscribe()
        again = await raw.stream_to(node)
        await again.write(raw.published(b"good", 1001))
        await eventually(lambda: node.inbox == [(peer, b"good")])
        assert node.peers.connected == [peer]
        assert node.peers.banned == 0


async def test_a_frame_that_does_not_end_costs_its_stream():
    async with swarm(1) as (hub, (node,)):
        raw = RawPeer(hub)
        await raw.listen()
        hub.connect(raw.identity.peer_id, node.peer_id)
        stream = await raw.stream_to(node)
        await asyncio.sleep(100)
        await stream.write(raw.published(b"idle is fine", 1) + b"\x05")
        await eventually(lambda: len(node.inbox) == 1)
        async with asyncio.timeout(30):
            assert await stream.read(1) == b""


async def test_duplicates_and_overflows_are_counted():
    async with swarm(1, params=Params(pending_max=1)) as (hub, (node,)):
        node.subscribe(lambda _author, _data: asyncio.Event().wait())
        raw = RawPeer(hub)
        hub.connect(raw.identity.peer_id, node.peer_id)
        stream = await raw.stream_to(node)
        for number in (1, 1, 2):
            await stream.write(raw.published(b"x", number))
        await eventually(lambda: node.gossip.counters.overflows == 1)
        assert node.gossip.counters.duplicates == 1


async def test_links_are_bounded():
    async with swarm(1, params=Params(peers_max=1)) as (hub, (node,)):
        raws = [RawPeer(hub, number) for number in (200, 201)]
        for raw in raws:
            await raw.listen()
            hub.connect(raw.identity.peer_id, node.peer_id)
        await eventually(lambda: sum(raw.streams for raw in raws) == 1)
        refused = next(raw for raw in raws if not raw.streams)
        stream = await refused.stream_to(node)
        assert await stream.read(1) == b""


async def test_peer_that_leaves_unread_bytes_frees_its_slot(monkeypatch):
    """The end of its stream comes after them."""
    monkeypatch.setattr(links, "IGNORED_SECONDS", 600)
    async with swarm(1, params=Params(peers_max=1)) as (hub, (node,)):
        flooder, other = RawPeer(hub), RawPeer(hub, 201)
        await asyncio.sleep(1)
        count = len(asyncio.all_tasks())
        hub.connect(flooder.identity.peer_id, node.peer_id)
        stream = await flooder.stream_to(node)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while True:
                    await stream.write(grafts_that_break_their_word())
        hub.disconnect(flooder.identity.peer_id, node.peer_id)
        await other.listen()
        hub.connect(other.identity.peer_id, node.peer_id)
        await eventually(lambda: other.streams == 1)
        hub.disconnect(other.identity.peer_id, node.peer_id)
        await asyncio.sleep(3 * POLL_SECONDS)
        assert len(asyncio.all_tasks()) == count


async def test_after_stop_nothing_is_served_and_stopping_again_is_harmless():
    async with swarm(2) as (hub, nodes):
        await eventually(lambda: meshed(*nodes))
        await nodes[0].stop()
        await nodes[0].stop()
        raw = RawPeer(hub)
        hub.connect(raw.identity.peer_id, nodes[0].peer_id)
        stream = await raw.stream_to(nodes[0])
        assert await stream.read(1) == b""


async def test_publishing_too_much_is_the_callers_error():
    async with swarm(1) as (_, (node,)):
        with pytest.raises(ValueError, match="limit 16384"):
            await node.gossip.publish(TOPIC, bytes(16385))
        assert node.gossip.counters.published == 0


async def test_a_fault_that_a_service_found_ends_an_untrusted_peer_s_place_in_the_mesh():
    async with swarm(2) as (_, (node, other)):
        await eventually(lambda: meshed(node, other))
        node.peers.blame(other.peer_id, Fault(FaultCode.BAD_SIGNATURE))
        await asyncio.sleep(2)
        assert node.gossip.mesh_peers(TOPIC) == []
        assert node.peers.connected == [other.peer_id]


async def test_a_peer_that_we_chose_comes_into_a_full_mesh():
    """Untrusted peers graft first; a mesh of two is then full, except for an outbound peer."""
    two = Params(
        mesh_low=1, mesh_size=2, mesh_high=2, mesh_keep_by_score=0, mesh_outbound=2, lazy_peers=1
    )
    async with swarm(7, params=two) as (hub, (node, *others)):
        chosen = others[-1].peer_id
        node.peers.chosen = frozenset({chosen})
        for one in others[:-1]:
            hub.connect(one.peer_id, node.peer_id)
        await eventually(lambda: len(node.gossip.mesh_peers(TOPIC)) == 2)
        hub.connect(node.peer_id, chosen)
        await asyncio.sleep(10)
        assert chosen in node.gossip.mesh_peers(TOPIC)


async def test_peer_of_any_mesh_is_meshed():
    """The two neighbours of the second node share a topic each with it; the fourth is far."""
    async with swarm(4) as (_hub, (first, second, third, _far)):
        for node in (first, second):
            node.gossip.subscribe("another", accept)
        first.gossip.unsubscribe(TOPIC)
        await eventually(lambda: second.gossip.mesh_peers("another") == [first.peer_id])
        await eventually(lambda: second.gossip.mesh_peers(TOPIC) == [third.peer_id])
        assert second.gossip.meshed() == {first.peer_id, third.peer_id}


async def test_peers_at_one_place_are_told_to_the_router_once_greeted():
    """Forty of one address: the surplus over eight, squared, closes meshes and gossip to them."""
    async with swarm(2) as (hub, (node, other)):
        untrusted = [RawPeer(hub, number) for number in range(100, 139)]
        everybody = [other.peer_id, *(each.identity.peer_id for each in untrusted)]
        await eventually(lambda: meshed(node, other))
        assert node.gossip.above_gossip_threshold([other.peer_id]) == [other.peer_id]
        node.peers.places = dict.fromkeys(everybody, ("203.0.113.7",))
        for each in untrusted:
            await each.listen()
            hub.connect(each.identity.peer_id, node.peer_id)
        await asyncio.sleep(3 * POLL_SECONDS)
        assert len(node.peers.connected) == 40
        assert node.gossip.mesh_peers(TOPIC) == node.gossip.above_gossip_threshold(everybody) == []
        untrusted[0].rpcs.clear()
        await node.gossip.publish(TOPIC, b"news")
        await asyncio.sleep(5)
        assert not any(rpc.publish for rpc in untrusted[0].rpcs)
