"""Exchanges of two nodes: stream protocols between their real ends, and gossip."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from hivemind.dht.validation import DHTRecord
from hivemind.utils.serializer import MSGPackSerializer

from node.context import TableRegistry
from node.live.records import RecordValidator, key_id
from node.network.blobs.exchange import BlobExchange
from node.network.reachability.autonat import dialled_back
from node.network.reachability.observations import ReachabilityProber
from node.network.relay.relay import RESERVATION_SECONDS, CircuitRelay
from node.network.relay.wire import HOP_SHAPE, CircuitMessage, CircuitMessageKind, ask
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.protocols import BLOBS, DIAL_BACK, HOP, topic_name
from node.replication.anti_entropy import AntiEntropy
from node.replication.ledger_sync import LedgerSync
from node.replication.manifest_exchange import fetch_manifest, serve_manifest
from node.replication.page_sync import PageSync
from node.replication.swarm_client import SwarmClient
from protocol.core.crypto import Identity, verify
from protocol.core.rng import Rng
from protocol.core.types import Topic, ValidationResult
from protocol.gossipsub.events import (
    Heartbeat,
    PeerConnected,
    Publish,
    RpcReceived,
    Send,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import frame
from protocol.membership.directory_buckets import Buckets
from protocol.replica.received import Received
from protocol.replica.replica import Replica
from roles.ports.transport import TransportError, Trust
from tests.vectors.made import (
    BODY,
    BOOK,
    COMMIT,
    MANIFEST,
    SIGNED_MANIFEST,
    VALIDATORS,
    messages,
    now,
    record,
    replica,
    verdicts,
)

OPENER, ACCEPTOR = VALIDATORS[1], VALIDATORS[0]


class Exchange:
    """Streams between two nodes; records each side's writes in order."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.name = ""
        self.spoken: list[tuple[str, bytearray]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def note(self, side: str, data: bytes) -> None:
        if not self.spoken or self.spoken[-1][0] != side:
            self.spoken.append((side, bytearray()))
        self.spoken[-1][1].extend(data)


class Streams:
    """One of the two nodes, as its services use its peers."""

    places: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    connected: tuple[str, ...] = ()
    in_local_swarm = False

    def __init__(self, exchange: Exchange, peer: Identity, other: Identity) -> None:
        self.exchange, self.peer_id, self.other = exchange, peer.peer_id, other.peer_id

    async def handle(self, protocol, handler) -> None:
        self.exchange.handlers[protocol] = handler

    def follow(self, follower) -> None:
        pass

    async def open_stream(self, peer, protocol) -> "End":
        assert peer == self.other
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        self.exchange.name, self.exchange.spoken = protocol, []  # of several, the last counts
        theirs = End(self.exchange, "acceptor", self.peer_id, there, here)
        serving = self.exchange.handlers[protocol](theirs)
        self.exchange.tasks.append(asyncio.create_task(serving))
        return End(self.exchange, "opener", peer, here, there)


class End:
    """The ``Stream`` port on two buffers."""

    def __init__(self, exchange, side, peer, incoming, outgoing) -> None:
        self.exchange, self.side, self.peer = exchange, side, peer
        self.incoming, self.outgoing = incoming, outgoing

    async def read(self, bytes_max: int) -> bytes:
        return await self.incoming.read(bytes_max)

    async def read_exactly(self, count: int) -> bytes:
        try:
            return await self.incoming.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise TransportError("the stream ended early") from error

    async def write(self, data: bytes) -> None:
        self.offer(data)

    def offer(self, data: bytes) -> bool:
        self.exchange.note(self.side, data)
        self.outgoing.feed_data(data)
        return True

    async def close(self) -> None:
        self.outgoing.feed_eof()


async def manifest_exchange(opener: Streams, acceptor: Streams) -> None:
    await serve_manifest(acceptor, SIGNED_MANIFEST, Trust(), TableRegistry())
    assert await fetch_manifest(opener, ACCEPTOR.peer_id, verify) == SIGNED_MANIFEST


class Held:
    """The serving part of the ``Blobs`` port, with the body stored."""

    async def get(self, digest):
        return None

    def size(self, digest):
        return len(BODY) if digest == COMMIT.message.body else None

    def holding(self, _digest):
        return None

    async def stream(self, digest, offset, length):
        yield BODY[offset : offset + length]


class Fixed:
    """The ``Clock`` port at a fixed time."""

    def now(self) -> float:
        return now(0)


async def blobs_exchange(opener: Streams, acceptor: Streams) -> None:
    """Request a part of the body."""
    protocol = BLOBS.on(MANIFEST.run_id)
    await BlobExchange(acceptor, Held(), protocol=protocol).start()
    asking = BlobExchange(opener, Held(), protocol=protocol)
    pieces = asking.fetch_range(
        ACCEPTOR.peer_id, COMMIT.message.body, 100, 200, piece_bytes=64, wait=False
    )
    assert b"".join([piece async for piece in pieces]) == BODY[100:300]


class History:
    """Final pages with their work that a replica has counted."""

    def __init__(self, state: Replica) -> None:
        counted = state.intake.ledger.take_counted()
        self.pages = {one.page.digest: one for one in counted}

    def back_from(self, page):
        while page in self.pages:
            yield self.pages[page]
            page = self.pages[page].page.message.parent


class Door:
    """Message intake that passes all messages to a replica."""

    def __init__(self, state: Replica) -> None:
        self.state, self.history = state, History(state)

    def validate(self, topic, _author, envelope) -> ValidationResult:
        return self.state.receive(envelope, now(2), topic=topic).result

    def take(self, envelope, source, **_) -> Received:
        return self.state.receive(envelope, now(2))

    def take_chain(self, chain, sender) -> Received:
        assert self.state.intake.offer_chain(chain) is True
        return Received(ValidationResult.ACCEPT)


def context(signer: Identity, streams: Streams, state: Replica) -> Any:
    ports = SimpleNamespace(clock=Fixed())
    trust, tables = Trust(), TableRegistry()
    return SimpleNamespace(
        signer=signer, peers=streams, replica=state, ports=ports, trust=trust, tables=tables
    )


async def message_exchange(opener: Streams, acceptor: Streams) -> None:
    """Send a verdict."""
    gossip = SimpleNamespace(subscribe=lambda *_, **__: None)
    asking, serving = (
        SwarmClient(context(one, streams, state), Door(state), gossip, None, None, None)
        for one, streams, state in ((OPENER, opener, replica()), (ACCEPTOR, acceptor, replica()))
    )
    await serving.start()
    assert await asking.send(ACCEPTOR.peer_id, verdicts()[0].envelope)


async def sync_exchange(opener: Streams, acceptor: Streams) -> None:
    """Send all messages to a joining node."""
    here, there = Replica(MANIFEST, verify), replica()
    BOOK.show(here, 2)
    for kind in ("certificate", "evidence"):
        assert there.receive(messages()[kind].envelope, now(2)).result is ValidationResult.ACCEPT
    await AntiEntropy(
        context(ACCEPTOR, acceptor, there), Door(there), UploadScheduler(None)
    ).start()
    assert await AntiEntropy(context(OPENER, opener, here), Door(here), UploadScheduler(None)).pull(
        ACCEPTOR.peer_id
    )
    assert here.ledger.commits.entries[COMMIT.digest].certificate is not None


async def pages_exchange(opener: Streams, acceptor: Streams) -> None:
    """Send the first two pages to a joining node."""
    here, there = Replica(MANIFEST, verify), replica()
    serving, joining = (
        PageSync(context(one, streams, state), Door(state), UploadScheduler(None))
        for one, streams, state in ((ACCEPTOR, acceptor, there), (OPENER, opener, here))
    )
    await serving.start()
    await joining.pull(ACCEPTOR.peer_id)
    assert here.pages.tip().digest == BOOK.page(2).digest


async def ledger_exchange(opener: Streams, acceptor: Streams) -> None:
    """Send the work of a page that certifies the commit, and the page after it."""
    here, there = replica(), replica()
    BOOK.show(there, 7)
    BOOK.show(here, 7, with_work=False)
    here.count_final()
    serving, joining = (
        LedgerSync(context(one, streams, state), Door(state), UploadScheduler(None))
        for one, streams, state in ((ACCEPTOR, acceptor, there), (OPENER, opener, here))
    )
    await serving.start()
    await joining.pull(ACCEPTOR.peer_id)
    assert here.intake.accounts.root == there.intake.accounts.root == BOOK.roots[6]


class Where:
    """The address part of the ``Transport`` port; every dial succeeds."""

    ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{OPENER.peer_id}"

    async def addresses(self):
        return [f"/ip4/198.51.100.1/tcp/4001/p2p/{ACCEPTOR.peer_id}"]

    async def remote_addresses(self, _peer):
        return ["/ip4/192.0.2.1/tcp/50000"]

    async def probe(self, address):
        assert address == self.ADDRESS

    async def peers(self):
        return [OPENER.peer_id]


async def dial_back_exchange(opener: Streams, acceptor: Streams) -> None:
    """Request a dial-back, and send a sample of a hundred bytes."""
    serving = context(ACCEPTOR, acceptor, replica())
    serving.ports.transport = Where()
    await ReachabilityProber(serving).start()
    stream = await opener.open_stream(ACCEPTOR.peer_id, DIAL_BACK.on(MANIFEST.run_id))
    assert await dialled_back(stream, [Where.ADDRESS], 100)
    await stream.close()


async def hop_exchange(opener: Streams, acceptor: Streams) -> None:
    """Request a relay reservation."""
    serving = context(ACCEPTOR, acceptor, replica())
    serving.ports.transport = Where()
    await CircuitRelay(serving, UploadScheduler(None)).start()
    stream = await opener.open_stream(ACCEPTOR.peer_id, HOP.name)
    answer = await ask(stream, CircuitMessage(CircuitMessageKind.RESERVE), HOP_SHAPE)
    assert answer.expires_at == round(now(0) + RESERVATION_SECONDS)
    await stream.close()


EXCHANGES = {
    "manifest": manifest_exchange,
    "message": message_exchange,
    "sync": sync_exchange,
    "pages": pages_exchange,
    "ledger": ledger_exchange,
    "blobs": blobs_exchange,
    "dial-back": dial_back_exchange,
    "hop": hop_exchange,
}


async def exchanges() -> dict[str, Any]:
    return {word: await exchanged(talk) for word, talk in EXCHANGES.items()}


async def exchanged(talk: Callable[[Streams, Streams], Awaitable[None]]) -> dict[str, Any]:
    exchange = Exchange()
    await talk(Streams(exchange, OPENER, ACCEPTOR), Streams(exchange, ACCEPTOR, OPENER))
    await asyncio.gather(*exchange.tasks)
    return {
        "name": exchange.name,
        "spoken": [[side, data.hex()] for side, data in exchange.spoken],
    }


# Gossip between two routers


class Pair:
    """Two gossip routers; ``spoken`` holds each one's writes on the stream that it opened."""

    def __init__(self) -> None:
        self.routers = {
            one.peer_id: Router(one, Params(), Rng(one.public_key)) for one in (OPENER, ACCEPTOR)
        }
        self.spoken: list[tuple[str, str]] = []

    def apply(self, peer, event, *, lose: bool = False) -> None:
        """Pass an event to a router, and its messages to the other one unless they are lost."""
        for effect in self.routers[peer].handle(event, now(0)):
            if isinstance(effect, Send):
                side = "opener" if peer == OPENER.peer_id else "acceptor"
                self.spoken.append((side, frame(effect.rpc).hex()))
                if not lose:
                    self.apply(effect.peer, RpcReceived(peer, effect.rpc))
            elif isinstance(effect, Validate):
                self.apply(peer, Validated(effect.message_id, ValidationResult.ACCEPT))


def gossip() -> dict[str, Any]:
    """Return a hello, GRAFT, a lost message, IHAVE, IWANT, the message, and PRUNE."""
    pair, (one, other) = Pair(), (OPENER.peer_id, ACCEPTOR.peer_id)
    topic = topic_name(Topic.COMMITS, MANIFEST.run_id)
    for peer in (one, other):
        pair.apply(peer, Subscribe(topic))
    pair.apply(one, PeerConnected(other), lose=True)
    pair.apply(other, PeerConnected(one))
    pair.apply(other, RpcReceived(one, bytes.fromhex(pair.spoken[0][1])[1:]))
    pair.apply(one, Heartbeat())
    pair.apply(one, Publish(topic, COMMIT.envelope), lose=True)
    pair.apply(one, Heartbeat())
    pair.apply(other, Unsubscribe(topic))
    return {"topic": topic, "spoken": [list(item) for item in pair.spoken]}


# A directory record

DIRECTORY_BITS = 5
"""For a swarm of more than 1536 members."""


def directory() -> dict[str, Any]:
    buckets, signed = Buckets(MANIFEST.run_id), record(ACCEPTOR, "validator")
    key = buckets.key_of(ACCEPTOR.peer_id, DIRECTORY_BITS)
    validator = RecordValidator(ACCEPTOR, MANIFEST.run_id, buckets, lambda: now(0))
    subkey, expires_at = MSGPackSerializer.dumps(ACCEPTOR.peer_id), now(0) + 60.0
    unsigned = DHTRecord(key_id(key), subkey, MSGPackSerializer.dumps(signed.envelope), expires_at)
    value = validator.sign_value(unsigned)
    assert validator.validate(DHTRecord(unsigned.key, subkey, value, expires_at))
    return {"key": key, "subkey": subkey.hex(), "value": value.hex(), "expires_at": expires_at}
