"""Interoperation with go-libp2p-pubsub: ours -- Go -- ours, over real p2pd processes."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.live.hivemind_p2p import HivemindTransport
from node.local.system import SystemClock
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from node.network.streams.protocols import GOSSIP
from protocol.core.crypto import Identity, verify
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import ValidationResult
from protocol.gossipsub.message import GossipMessage, encode_message, sign_message, verify_message
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
from tests.live.go_pubsub import GoConnection, GoPubsub
from tests.live.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.live

TOPIC = "interop/commits"
PARAMS = Params(message_bytes_max=1 << 19)


@dataclass
class Ours:
    """One of our nodes with an inbox of (author, data)."""

    transport: HivemindTransport
    gossip: Gossip
    inbox: list = field(default_factory=list)


@asynccontextmanager
async def directory():
    """Yield a directory with a path short enough for unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="gossip-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def start_transport(stack, path: Path, number: int) -> HivemindTransport:
    identity = Identity(bytes([number]) * 32)
    key = path / f"{number}.key"
    key.write_bytes(identity.to_protobuf())
    transport = await HivemindTransport.create(identity, key)
    stack.push_async_callback(transport.close)
    return transport


async def start_ours(stack, path: Path, number: int, validate=None) -> Ours:
    transport = await start_transport(stack, path, number)
    identity = Identity(bytes([number]) * 32)
    rng = Rng(bytes([number]))
    peers = ConnectionManager(transport, SystemClock(), rng, [])
    ours = Ours(transport, Gossip(peers, identity, SystemClock(), rng, params=PARAMS))
    await ours.gossip.start()
    looking = asyncio.create_task(peers.run())
    stack.callback(looking.cancel)
    stack.push_async_callback(ours.gossip.stop)
    ours.gossip.subscribe(
        TOPIC,
        validate or (lambda _author, _data: ValidationResult.ACCEPT),
        lambda author, data: ours.inbox.append((author, data)),
    )
    return ours


async def start_go(stack, path: Path) -> tuple[GoPubsub, GoConnection]:
    go = await GoPubsub.start(path, "go")
    stack.push_async_callback(go.stop)
    pipe = await go.subscribe(TOPIC)
    stack.callback(pipe.close)
    return go, pipe


def verified(message) -> bool:
    """Check the signature of a message that Go delivers to its subscriber."""
    (topic,) = message.topicIDs
    source = getattr(message, "from")
    ours = GossipMessage(source, message.data, message.seqno, topic, message.signature)
    return verify_message(ours, verify)


def by_author(ours: Ours, author) -> list[bytes]:
    return [data for each, data in ours.inbox if each == author]


async def test_messages_cross_both_ways_and_signatures_verify_on_both_sides():
    async with directory() as path, AsyncExitStack() as stack:
        go, pipe = await start_go(stack, path)
        one = await start_ours(stack, path, 1)
        other = await start_ours(stack, path, 2)
        for each in (one, other):
            await each.transport.connect(go.addresses[0])
        await eventually(lambda: one.gossip.mesh_peers(TOPIC) == [go.peer_id])
        await eventually(lambda: other.gossip.mesh_peers(TOPIC) == [go.peer_id])
        ids = {one.transport.peer_id, other.transport.peer_id}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while set(await go.topic_peers(TOPIC)) != ids:  # noqa: ASYNC110 - Go causes it
                await asyncio.sleep(0.05)

        sent = [bytes([number]) * size for number, size in enumerate([1, 1000, 100_000] * 10)]
        for data in sent:
            await one.gossip.publish(TOPIC, data)
        await eventually(lambda: len(other.inbox) == len(sent))
        # Go validates in parallel, so it may forward and deliver in another order.
        assert sorted(other.inbox) == sorted((one.transport.peer_id, data) for data in sent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            delivered = [await pipe.receive() for _ in sent]
        assert sorted(message.data for message in delivered) == sorted(sent)
        assert all(verified(message) for message in delivered)

        publisher = await go.connection()
        stack.callback(publisher.close)
        for data in sent:
            await publisher.publish(TOPIC, b"go" + data)
        for ours in (one, other):
            await eventually(lambda ours=ours: len(by_author(ours, go.peer_id)) == len(sent))
            assert sorted(by_author(ours, go.peer_id)) == sorted(b"go" + data for data in sent)
            assert ours.gossip.counters.faults == 0


async def test_what_our_validator_rejects_does_not_reach_go():
    async with directory() as path, AsyncExitStack() as stack:
        go, pipe = await start_go(stack, path)

        def judge(_author, data):
            return ValidationResult.REJECT if data.startswith(b"bad") else ValidationResult.ACCEPT

        author = await start_ours(stack, path, 3)
        middle = await start_ours(stack, path, 4, judge)
        await author.transport.connect((await middle.transport.addresses())[0])
        await middle.transport.connect(go.addresses[0])
        await eventually(lambda: len(middle.gossip.mesh_peers(TOPIC)) == 2)
        for data in (b"bad 1", b"good 1", b"bad 2", b"good 2"):
            await author.gossip.publish(TOPIC, data)
        async with asyncio.timeout(PATIENCE_SECONDS):
            delivered = [(await pipe.receive()).data for _ in range(2)]
        assert sorted(delivered) == [b"good 1", b"good 2"]
        assert middle.gossip.counters.verdicts[ValidationResult.REJECT] == 2
        assert middle.gossip.counters.faults == 2


class RawPeer:
    """Peer with our codec on one stream each way, without a router."""

    def __init__(self, transport: HivemindTransport, number: int) -> None:
        self.identity = Identity(bytes([number]) * 32)
        self.transport = transport
        self.rpcs = []

    async def serve(self, stream) -> None:
        deframer = Deframer()
        while data := await stream.read(1 << 16):
            frames = deframer.feed(data)
            assert not isinstance(frames, Fault)
            self.rpcs += [decode_rpc(each) for each in frames]

    async def attach(self, stack: AsyncExitStack, address: str) -> None:
        await self.transport.handle(GOSSIP.name, self.serve)
        peer = await self.transport.connect(address)
        self.stream = await self.transport.open_stream(peer, GOSSIP.name)
        stack.push_async_callback(self.stream.close)
        await self.send(Rpc(subscriptions=(Subscription(True, TOPIC),)))

    async def send(self, rpc: Rpc) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.stream.write(frame(encode_rpc(rpc)))

    def message(self, data: bytes, seqno: int) -> bytes:
        return encode_message(sign_message(self.identity, TOPIC, data, seqno))


async def test_tampered_messages_are_dropped_on_both_sides():
    async with directory() as path, AsyncExitStack() as stack:
        go, pipe = await start_go(stack, path)
        ours = await start_ours(stack, path, 5)
        raw = RawPeer(await start_transport(stack, path, 6), 6)
        raw_to_ours = RawPeer(await start_transport(stack, path, 7), 7)
        await raw.attach(stack, go.addresses[0])
        await raw_to_ours.attach(stack, (await ours.transport.addresses())[0])
        for peer in (raw, raw_to_ours):
            good, bad = peer.message(b"good", 1), peer.message(b"evil", 2)
            await peer.send(Rpc(publish=(bad.replace(b"evil", b"EVIL"), bad[:-1] + b"\x00")))
            await peer.send(Rpc(publish=(good,)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await pipe.receive()).data == b"good"
        await eventually(lambda: ours.inbox == [(raw_to_ours.identity.peer_id, b"good")])
        assert ours.gossip.counters.faults == 2


async def test_gos_control_messages_are_ours():
    """GRAFT, IHAVE and IWANT have the same meaning in Go and in our codec."""
    async with directory() as path, AsyncExitStack() as stack:
        go, pipe = await start_go(stack, path)
        raw = RawPeer(await start_transport(stack, path, 8), 8)
        await raw.attach(stack, go.addresses[0])
        await eventually(lambda: any(rpc.graft == (TOPIC,) for rpc in raw.rpcs))
        hello = [entry for rpc in raw.rpcs for entry in rpc.subscriptions]
        assert hello == [Subscription(True, TOPIC)]

        ours = sign_message(raw.identity, TOPIC, b"asked", 1)
        await raw.send(Rpc(ihave=(IHave(TOPIC, (ours.message_id,)),)))
        await eventually(lambda: any(rpc.iwant == (ours.message_id,) for rpc in raw.rpcs))
        await raw.send(Rpc(publish=(encode_message(ours),)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await pipe.receive()).data == b"asked"

        await raw.send(Rpc(prune=(Prune(TOPIC, 60),)))
        # Go flood-publishes its own messages, so only a forwarded one comes by IHAVE.
        relay = RawPeer(await start_transport(stack, path, 9), 9)
        await relay.attach(stack, go.addresses[0])
        relayed = sign_message(relay.identity, TOPIC, b"relayed", 1)
        await relay.send(Rpc(publish=(encode_message(relayed),)))
        await eventually(lambda: any(relayed.message_id in each for each in advertised(raw.rpcs)))
        await raw.send(Rpc(iwant=(relayed.message_id,)))
        await eventually(lambda: any(encode_message(relayed) in rpc.publish for rpc in raw.rpcs))


def advertised(rpcs):
    return [entry.message_ids for rpc in rpcs for entry in rpc.ihave]
