"""Writes ``messages.json``: one message of each kind and one exchange of each stream, as ours make them.

``python -m tests.vectors.capture`` writes it anew. A change of what it holds is a change of what
travels: see section 17 of ``docs/protocol.md``.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hivemind.dht.validation import DHTRecord
from hivemind.utils.serializer import MSGPackSerializer

from node.blobs.exchange import BlobExchange
from node.live.records import RecordValidator, key_id
from node.membership.announcer import directory_keys
from node.replication.manifest_exchange import ManifestServer, fetch_manifest
from node.streams.protocols import BLOBS, topic_name
from protocol.codec import encode
from protocol.crypto import Identity, digest, verify
from protocol.gossip.events import (
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
from protocol.gossip.frames import frame
from protocol.gossip.params import Params
from protocol.gossip.router import Router
from protocol.manifest import RunManifest, decode_manifest, sign_manifest
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Hardware,
    Margin,
    Message,
    NodeRecord,
    RolloutCommit,
    Signed,
    Verdict,
    seal,
)
from protocol.replica import Replica
from protocol.rng import Rng
from protocol.rollout import RolloutSequence, encode_body
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import Shard, ShardIndex, chunk_digests
from protocol.types import Topic, ValidationResult
from roles.ports.transport import TransportError
from tests.vectors import core_reference

PATH = Path(__file__).with_name("messages.json")

CREATOR, *VALIDATORS = (Identity(seed) for seed in core_reference.SEEDS)
TRAINER = WORKER = CREATOR

MANIFEST = decode_manifest(encode(core_reference.manifest()))
assert isinstance(MANIFEST, RunManifest)
SIGNED_MANIFEST = sign_manifest(MANIFEST, CREATOR)

FILE = bytes(range(256)) * 1200
"""A weights file of two shards."""

BODY = encode_body(
    [
        RolloutSequence((2 + n, 3, 1), (-0.5, -0.25 * n, 0.0), 1_000_000 * (n % 2), (bytes(258),))
        for n in range(4)
    ]
)


def now(epoch: int) -> float:
    """Return a time within an epoch."""
    return MANIFEST.epoch_start(epoch) + 1


def sealed(message: Message, signer: Identity) -> Signed[Any]:
    return seal(message, MANIFEST.run_id, signer)


# One message of each kind


def record(signer: Identity, role: str) -> Signed[NodeRecord]:
    message = NodeRecord(
        sequence=round(now(0) * 1000),
        joined_at=round(MANIFEST.epoch_start(0) * 1000),
        roles=(role, "relay"),
        addresses=(f"/ip4/192.0.2.1/tcp/4001/p2p/{signer.peer_id}",),
        hardware=Hardware(gpu="none", cores=2, memory_bytes=2**34),
        upload_bytes_per_second=1_250_000,
        reachable=True,
        software="prime-node 0.1.0",
        protocol_version=1,
        policy_version=0,
    )
    return sealed(message, signer)


def index() -> ShardIndex:
    rules = MANIFEST.shardcast
    shards = []
    for start in range(0, len(FILE), rules.shard_bytes):
        data = FILE[start : start + rules.shard_bytes]
        shards.append(Shard(digest(data), len(data), chunk_digests([data], rules.chunk_bytes)))
    return ShardIndex(len(FILE), rules.shard_bytes, rules.chunk_bytes, tuple(shards))


INDEX = shard_index.encode(index())

GENESIS = sealed(
    CheckpointManifest(
        version=0,
        term=0,
        parent=b"",
        policy=MANIFEST.genesis_policy,
        index=digest(INDEX),
        index_bytes=len(INDEX),
        total_bytes=len(FILE),
        created_at=round(now(0) * 1000),
    ),
    TRAINER,
)

COMMIT = sealed(
    RolloutCommit(
        epoch=0,
        version=0,
        checkpoint=GENESIS.digest,
        slot=0,
        previous=b"",
        body=digest(BODY),
        body_bytes=len(BODY),
        sequences=4,
        tokens=12,
    ),
    WORKER,
)


def replica() -> Replica:
    """Return what a node has concluded once the commit is checked."""
    state = Replica(MANIFEST, verify)
    for signed in (*(record(one, "validator") for one in VALIDATORS), GENESIS, COMMIT):
        assert state.receive(signed.envelope, now(0)).result is ValidationResult.ACCEPT
    return state


def verdicts() -> list[Signed[Verdict]]:
    """Return the verdicts of the first committee, by rank."""
    committee = replica().committee(COMMIT)
    assert committee is not None
    signers = {one.peer_id: one for one in VALIDATORS}
    margin = Margin(name="logprob-error-max", value=3, limit=1000)
    verdict = Verdict(commit=COMMIT.digest, accept=True, reason="accepted", margins=(margin,))
    return [sealed(verdict, signers[peer]) for peer in committee.first]


def messages() -> dict[str, Signed[Any]]:
    """Return the messages by kind, in an order in which a node can take them in."""
    agreeing = verdicts()
    certificate = Certificate(
        commit=COMMIT.digest,
        escalated=False,
        accepted=True,
        verdicts=tuple(verdict.envelope for verdict in agreeing),
    )
    first = next(one for one in VALIDATORS if one.peer_id == agreeing[0].signer)
    every = [
        record(VALIDATORS[0], "validator"),
        COMMIT,
        agreeing[0],
        sealed(certificate, first),
        sealed(
            CheckpointManifest(
                version=1,
                term=0,
                parent=GENESIS.digest,
                policy=digest(b"policy 1"),
                index=digest(INDEX),
                index_bytes=len(INDEX),
                total_bytes=len(FILE),
                batch=(COMMIT.digest,),
                reward_mean=500_000,
                created_at=round(now(2) * 1000),
            ),
            TRAINER,
        ),
    ]
    return {signed.message.kind: signed for signed in every}


# One exchange of each stream protocol, between the real ends


class Exchange:
    """Streams between two nodes; what each side writes is noted, in order."""

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
    """The ``Streams`` port of one of the two."""

    def __init__(self, exchange: Exchange, peer: Identity, other: Identity) -> None:
        self.exchange, self.peer_id, self.other = exchange, peer.peer_id, other.peer_id

    async def handle(self, protocol, handler) -> None:
        self.exchange.handlers[protocol] = handler

    async def open_stream(self, peer, protocol) -> "End":
        assert peer == self.other
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        self.exchange.name = protocol
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


OPENER, ACCEPTOR = VALIDATORS[1], VALIDATORS[0]


async def manifest_exchange(opener: Streams, acceptor: Streams) -> None:
    await ManifestServer(acceptor, SIGNED_MANIFEST).start()
    assert await fetch_manifest(opener, ACCEPTOR.peer_id, verify) == SIGNED_MANIFEST


class Held:
    """The part of the ``Blobs`` port that serves, and holds the body."""

    async def get(self, digest):
        return None

    def size(self, digest):
        return len(BODY) if digest == COMMIT.message.body else None

    def has(self, digest):
        return digest == COMMIT.message.body

    async def stream(self, digest, offset, length):
        yield BODY[offset : offset + length]


class Fixed:
    """The ``Clock`` port, standing still."""

    def now(self) -> float:
        return now(0)


async def blobs_exchange(opener: Streams, acceptor: Streams) -> None:
    """Ask for a part of the body."""
    protocol = BLOBS.on(MANIFEST.run_id)
    await BlobExchange(acceptor, Held(), Fixed(), protocol=protocol).start()
    asking = BlobExchange(opener, Held(), Fixed(), protocol=protocol)
    pieces = asking.fetch_range(
        ACCEPTOR.peer_id, COMMIT.message.body, 100, 200, piece_bytes=64, wait=False
    )
    assert b"".join([piece async for piece in pieces]) == BODY[100:300]


EXCHANGES = {"manifest": manifest_exchange, "blobs": blobs_exchange}


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


# What two routers say to each other


class Pair:
    """Two gossip routers; ``spoken`` is what each wrote on the stream that it opened."""

    def __init__(self) -> None:
        self.routers = {
            one.peer_id: Router(one, Params(), Rng(one.public_key)) for one in (OPENER, ACCEPTOR)
        }
        self.spoken: list[tuple[str, str]] = []

    def apply(self, peer, event, *, lose: bool = False) -> None:
        """Give an event to a router, and what it sends to the other one unless it is lost."""
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


def directory() -> dict[str, Any]:
    (key, *_), signed = directory_keys(MANIFEST.run_id), record(ACCEPTOR, "validator")
    validator = RecordValidator(ACCEPTOR, MANIFEST.run_id, [key], lambda: now(0))
    subkey, expires_at = MSGPackSerializer.dumps(ACCEPTOR.peer_id), now(0) + 60.0
    unsigned = DHTRecord(key_id(key), subkey, MSGPackSerializer.dumps(signed.envelope), expires_at)
    value = validator.sign_value(unsigned)
    assert validator.validate(DHTRecord(unsigned.key, subkey, value, expires_at))
    return {"key": key, "subkey": subkey.hex(), "value": value.hex(), "expires_at": expires_at}


def capture() -> dict[str, Any]:
    """Return all that ``messages.json`` holds."""
    return {
        "run_id": MANIFEST.run_id.hex(),
        "manifest": SIGNED_MANIFEST.encoded().hex(),
        "messages": {
            kind: {
                "envelope": signed.envelope.hex(),
                "id": signed.digest.hex(),
                "fields": shown(signed.message.model_dump()),
            }
            for kind, signed in messages().items()
        },
        "body": BODY.hex(),
        "index": INDEX.hex(),
        "streams": asyncio.run(exchanges()),
        "gossip": gossip(),
        "directory": directory(),
    }


def shown(value: Any) -> Any:
    """Return a value with its bytes as hexadecimal text, as JSON has it."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def main() -> None:
    """Write the file."""
    PATH.write_text(json.dumps(capture(), indent=1) + "\n")


if __name__ == "__main__":
    main()
