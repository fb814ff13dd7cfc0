"""Stream protocols from both ends: the daemon as acceptor and as opener.

The first byte of an input selects how the payload is sent (whole or cut; then closed, left open,
reset, or repeated without end). The second byte selects the untrusted peer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

from node.network.blobs.wire import BlobKind
from node.network.reachability.autonat import dialled_back
from node.network.relay.wire import HOP_SHAPE, CircuitMessage, CircuitStatus
from node.network.relay.wire import CircuitMessageKind as CircuitKind
from node.network.relay.wire import ask as ask_circuit
from node.network.relay.wire import encode as encode_circuit
from node.network.streams.protocols import (
    BLOBS,
    DIAL_BACK,
    GOSSIP,
    HOP,
    LEDGER,
    MANIFEST,
    MESSAGE,
    PAGES,
    SYNC,
    StreamProtocol,
    topic_name,
)
from node.replication.manifest_exchange import fetch_manifest
from protocol.core.codec import decode, encode
from protocol.core.crypto import signing_bytes, verify
from protocol.core.types import Digest, PeerId, Topic
from protocol.gossipsub.message import encode_message, sign_message
from protocol.gossipsub.rpc import IHave, Prune, Rpc, Subscription, encode_rpc, frame, uvarint
from protocol.ledger.final_ledger import Missing
from protocol.messages import ENVELOPE_BYTES_MAX
from roles.ports.transport import TransportError
from tests.fuzz.daemon import END_SECONDS, Swarm, UntrustedPeer, heard, spoken
from tests.fuzz.documents import fields, packed
from tests.fuzz.mutation import NUMBERS, Values, mutated_bytes
from tests.fuzz.target import INPUT_BYTES_MAX, BrokenBoundError, Target

Draw = Callable[[Swarm, Random], bytes]
"""Returns the bytes of an untrusted peer."""

MODES = (0, 0, 0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 5, 9, 0x23)

_FRAME_BYTES = {"2 bytes, big-endian": 2, "4 bytes, big-endian": 4}


class StreamSession:
    """A session on one swarm; an input is written to one stream by an untrusted peer."""

    def __init__(self, draws: Sequence[Draw], protocol: StreamProtocol) -> None:
        self._swarm = Swarm()
        self._draws = draws
        self._name = protocol.on(self._swarm.daemon.replica.run_id)
        self._protocol = protocol

    def draw(self, rng: Random) -> bytes:
        """Return a mode, a peer, and its bytes."""
        head = bytes((rng.choice(MODES), rng.randrange(256)))
        data = rng.choice(self._draws)(self._swarm, rng)
        if rng.random() < 0.4:
            data = mutated_bytes(data, rng, [data], INPUT_BYTES_MAX)
        elif rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)]
        elif rng.random() < 0.05:
            data = rng.randbytes(int(rng.random() ** 2 * 2000))
        return head + data[: INPUT_BYTES_MAX - 2]

    def take(self, data: bytes) -> bool:
        """Send the input from an untrusted peer."""
        if len(data) < 2:
            return False
        remote = self._swarm.remote(data[1])
        return self._swarm.run(self._talk(remote, data))

    async def _talk(self, remote: UntrustedPeer, data: bytes) -> bool:
        raise NotImplementedError

    def check(self) -> None:
        """Compare the daemon's tables with their limits, after its next check of its peers."""
        self._swarm.run(asyncio.sleep(5.0))
        self._swarm.check()

    def close(self) -> None:
        self._swarm.close()


class Served(StreamSession):
    """The daemon is the acceptor; an answered input counts as accepted."""

    async def _talk(self, remote: UntrustedPeer, data: bytes) -> bool:
        mine, theirs = self._swarm.open(remote)
        serving = asyncio.ensure_future(self._serve(theirs))
        hearing = asyncio.ensure_future(heard(mine))
        before = self._swarm.daemon.snapshot().gossip_received
        await spoken(mine, data[2:], data[0])
        if self._protocol is GOSSIP:  # which is served while the stream is open
            await asyncio.sleep(0.1)
            await mine.close()
        done, _ = await asyncio.wait([serving], timeout=END_SECONDS)
        ignored = self._protocol is GOSSIP
        while not done and ignored:  # bytes of an ignored peer wait unread for so long
            ignored = self._swarm.ignores(remote)
            done, _ = await asyncio.wait([serving], timeout=END_SECONDS)
        if not done:
            serving.cancel()
            raise BrokenBoundError(f"still served after {END_SECONDS:g} s")
        serving.result()
        done, _ = await asyncio.wait([hearing], timeout=5.0)
        hearing.cancel()
        taken = self._swarm.daemon.snapshot().gossip_received > before
        return taken or (bool(done) and hearing.result() > 0)

    async def _serve(self, stream: Any) -> None:
        try:
            await self._swarm.handler(self._name)(stream)
        except (TransportError, TimeoutError):
            pass
        except LookupError as error:
            if type(error) is not LookupError:  # a plain LookupError: the blob is gone
                raise
        finally:
            await stream.close()


Ask = Callable[[Swarm, PeerId, int], Awaitable[bool]]


class RequestSession(StreamSession):
    """The daemon is the opener, and the peer's bytes are the response."""

    def __init__(self, draws: Sequence[Draw], protocol: StreamProtocol, ask: Ask) -> None:
        super().__init__(draws, protocol)
        self._ask = ask

    async def _talk(self, remote: UntrustedPeer, data: bytes) -> bool:
        mode, choice = data[:2]

        async def answer(stream: Any) -> None:
            hearing = asyncio.ensure_future(heard(stream))
            try:
                await spoken(stream, data[2:], mode)
                await asyncio.wait([hearing], timeout=1.0 if mode & 3 != 1 else END_SECONDS)
            finally:
                hearing.cancel()

        if self._protocol is SYNC:  # which follows an exchange of pages
            await remote.transport.handle(PAGES.on(self._swarm.daemon.replica.run_id), _no_pages)
        await remote.transport.handle(self._name, answer)
        peer = PeerId(remote.signer.peer_id)
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._ask(self._swarm, peer, choice)
        except TransportError:
            return False
        except TimeoutError:
            raise BrokenBoundError(f"still asking after {END_SECONDS:g} s") from None


# Requests


async def _ask_manifest(swarm: Swarm, peer: PeerId, _choice: int) -> bool:
    found = await fetch_manifest(swarm.daemon.context.peers, peer, verify)
    return hasattr(found, "manifest")


async def _ask_message(swarm: Swarm, peer: PeerId, _choice: int) -> bool:
    envelope = swarm.daemon.replica.envelopes()[0]
    return await swarm.daemon._network.send(peer, envelope)


async def _no_pages(stream: Any) -> None:
    await stream.write(_prefixed(packed({"chains": 0, "ids": []})))
    await heard(stream)


async def _ask_sync(swarm: Swarm, peer: PeerId, _choice: int) -> bool:
    return await swarm.daemon._anti_entropy.pull(peer)


async def _ask_ledger(swarm: Swarm, peer: PeerId, choice: int) -> bool:
    sync = swarm.daemon._anti_entropy.ledger
    if choice % 2:
        return await sync.adopt(peer)
    return await sync.walk_back(peer, Missing(bytes([choice]) * 32, 1 + choice % 64))


BLOB = bytes(range(250))


async def _ask_blobs(swarm: Swarm, peer: PeerId, choice: int) -> bool:
    exchange, digest = swarm.daemon.exchange, Digest(bytes([choice]) * 32)
    if choice % 2:
        return await exchange.fetch(digest, 100_000, [peer], 30.0) is not None
    pieces = exchange.fetch_range(
        peer, digest, 0, 500, piece_bytes=64, wait=choice % 4 == 0, kind=BlobKind.WEIGHTS
    )
    length = 0
    async with aclosing(pieces) as coming:
        async for piece in coming:
            length += len(piece)
    if length != 500:
        raise BrokenBoundError(f"{length} bytes of 500")
    return True


async def _ask_dial_back(swarm: Swarm, peer: PeerId, _choice: int) -> bool:
    stream = await swarm.daemon.context.peers.open_stream(
        peer, DIAL_BACK.on(swarm.daemon.replica.run_id)
    )
    try:
        async with asyncio.timeout(DIAL_BACK.exchange_seconds):
            return await dialled_back(stream, ["/sim/relay-0"], 100_000)
    except TimeoutError:
        return False
    finally:
        await stream.close()


# Bytes of untrusted peers


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _framed(data: bytes, rng: Random, length_bytes: int) -> bytes:
    """Return a frame, sometimes with a false length."""
    length = len(data)
    if rng.random() < 0.06:
        length = rng.choice((*NUMBERS, length + 1, length - 1)) % (1 << 8 * length_bytes)
    return length.to_bytes(length_bytes, "big") + data


_VALUES = Values([0, 1, b"", bytes(32)])


def _envelope(swarm: Swarm, rng: Random) -> bytes:
    """Return a message of the swarm, or a mutation that is signed again."""
    replica = swarm.daemon.replica
    said = [*replica.envelopes(), *(one.envelope for one in replica.roster.records())]
    envelope = rng.choice(said)
    if rng.random() < 0.15:
        return envelope
    outer = decode(envelope, bytes_max=ENVELOPE_BYTES_MAX)
    signer = swarm.signers.get(outer["signer"])
    if signer is None or rng.random() < 0.3:
        signer = rng.choice(swarm.untrusted).signer
    payload = decode(outer["payload"], bytes_max=ENVELOPE_BYTES_MAX)
    if rng.random() < 0.8:
        payload = _VALUES.changed(payload, rng)
    body = packed(payload)
    signature = signer.sign(signing_bytes(outer["kind"], replica.run_id, body))
    fields = {"kind": outer["kind"], "payload": body, "signature": signature}
    return encode({**fields, "signer": signer.peer_id})


def _said_message(swarm: Swarm, rng: Random) -> bytes:
    return _framed(_envelope(swarm, rng), rng, 4)


def _said_sync_question(swarm: Swarm, rng: Random) -> bytes:
    request: Any = {"skip": rng.choice((0, 0, 0, 1, 5)), "version": rng.choice((0, 0, 1, 2))}
    ids = [one.digest for one in swarm.daemon.replica.roster.records()]
    ids += [one.manifest.digest for one in swarm.daemon.replica.ledger.chain.checkpoints]
    wanted: Any = {"ids": rng.sample(ids, rng.randrange(len(ids) + 1))}
    if rng.random() < 0.5:
        request = _VALUES.changed(request, rng)
    if rng.random() < 0.5:
        wanted = Values(ids).changed(wanted, rng)
    return _framed(packed(request), rng, 4) + _framed(packed(wanted), rng, 4)


def _said_sync_answer(swarm: Swarm, rng: Random) -> bytes:
    envelopes = [_envelope(swarm, rng) for _ in range(rng.randrange(6))]
    ids: Any = {"ids": [rng.randbytes(32) for _ in envelopes]}
    if rng.random() < 0.3:
        ids = _VALUES.changed(ids, rng)
    frames = [_framed(envelope, rng, 4) for envelope in envelopes]
    return _framed(packed(ids), rng, 4) + b"".join(frames)


def _chains(swarm: Swarm) -> list[bytes]:
    return list(swarm.daemon.replica.chains())


def _said_pages_question(swarm: Swarm, rng: Random) -> bytes:
    pages, newest = swarm.daemon.replica.pages, swarm.daemon.replica.pages.root.epoch
    request: Any = {
        "council": rng.choice((pages.council.seat, b"", bytes(32))),
        "epoch": rng.choice((-1, 0, newest, newest + 1)),
        "skip": rng.choice((0, 0, 1, 1024)),
    }
    ids = [node.digest for epoch in range(-1, newest + 4) for node in pages.pages_of(epoch)]
    wanted: Any = {"ids": rng.sample(ids, rng.randrange(len(ids) + 1))}
    if rng.random() < 0.4:
        request = _VALUES.changed(request, rng)
    if rng.random() < 0.4:
        wanted = Values(ids).changed(wanted, rng)
    return _framed(packed(request), rng, 4) + _framed(packed(wanted), rng, 4)


def _said_pages_answer(swarm: Swarm, rng: Random) -> bytes:
    """Return chains that the daemon knows, mutated ones, and ids of pages that do not exist."""
    chains = _chains(swarm)
    said = [rng.choice(chains) for _ in range(rng.randrange(4))] if chains else []
    said = [mutated_bytes(one, rng, chains, 4096) if rng.random() < 0.5 else one for one in said]
    offer: Any = {"chains": len(said), "ids": [rng.randbytes(32) for _ in range(rng.randrange(3))]}
    if rng.random() < 0.2:
        offer = _VALUES.changed(offer, rng)
    frames = [_framed(one, rng, 4) for one in said]
    return _framed(packed(offer), rng, 4) + b"".join(frames)


def _said_ledger_question(swarm: Swarm, rng: Random) -> bytes:
    pages = [page.digest for page in swarm.daemon.replica.pages.root.path()]
    request: Any = {
        "count": rng.choice((0, 1, 2, 64)),
        "epoch": rng.choice((-1, 0, 1, swarm.daemon.replica.pages.root.epoch)),
        "page": rng.choice((*pages, b"", bytes(32))),
    }
    if rng.random() < 0.5:
        request = _VALUES.changed(request, rng)
    return _framed(packed(request), rng, 4)


def _said_ledger_answer(swarm: Swarm, rng: Random) -> bytes:
    """Return pages that the daemon knows with invented work, or leaves of accounts."""
    intake = swarm.daemon.replica.intake
    pages = [one.page.envelope for one in intake.tree.root.path() if one.page is not None]
    leaves = list(intake.accounts.leaves)
    parts: list[Any] = []
    for _ in range(rng.randrange(4)):
        part: Any = rng.sample(leaves, rng.randrange(len(leaves) + 1))
        if pages and rng.random() < 0.6:
            part = [rng.choice(pages), rng.randbytes(rng.randrange(40))]
        parts.append(_VALUES.changed(part, rng) if rng.random() < 0.4 else part)
    head: Any = {"frames": len(parts)}
    if rng.random() < 0.2:
        head = _VALUES.changed(head, rng)
    frames = [_framed(packed(one), rng, 4) for one in parts]
    return _framed(packed(head), rng, 4) + b"".join(frames)


def _said_blob_question(swarm: Swarm, rng: Random) -> bytes:
    ledger = swarm.daemon.replica.ledger
    digests = [bytes(entry.commit.message.body) for entry in ledger.commits.entries.values()]
    digests += [bytes(one.manifest.message.index) for one in ledger.chain.checkpoints]
    request: Any = {
        "digest": rng.choice((*digests, bytes(32))),
        "offset": rng.choice((0, 0, 1, 10, 1 << 40)),
        "length": rng.choice((1, 100, 1 << 20, 1 << 40)),
        "wait": rng.random() < 0.5,
        "kind": rng.choice(("body", "weights")),
    }
    if rng.random() < 0.6:
        request = Values([*digests, 1 << 40, "ok"]).changed(request, rng)
    return _framed(packed(request), rng, 2)


def _said_blob_answer(_swarm: Swarm, rng: Random) -> bytes:
    header: Any = {
        "status": rng.choice(("ok", "ok", "ok", "unknown", "busy")),
        "total_bytes": rng.choice((500, 500, 250, 1, 0, 100_000, 2**40)),
    }
    if rng.random() < 0.2:
        header["held"] = rng.randbytes(rng.randrange(170))
    if rng.random() < 0.4:
        header = Values([500, "ok"]).changed(header, rng)
    return _framed(packed(header), rng, 2) + BLOB * rng.randrange(4)


def _said_addresses(swarm: Swarm, rng: Random) -> bytes:
    one = rng.choice(swarm.untrusted)
    address = f"/sim/{one.name}/p2p/{one.signer.peer_id}"
    lines = [rng.choice((address, "/sim/relay-0", "", "/ip4/10.0.0.1/tcp/1", "\0", "/" * 99))]
    lines *= rng.choice((1, 1, 2, 8, 20))
    return _framed("\n".join([address, *lines]).encode(), rng, 2) + bytes(rng.randrange(3000))


def _said_manifest(swarm: Swarm, rng: Random) -> bytes:
    encoded = swarm.world.manifest.encoded()
    if rng.random() < 0.7:
        outer = decode(encoded, bytes_max=1 << 20)
        if rng.random() < 0.5:
            body = decode(outer["manifest"], bytes_max=1 << 20)
            outer = {**outer, "manifest": packed(_VALUES.changed(body, rng))}
        else:
            outer = _VALUES.changed(outer, rng)
        encoded = packed(outer)
    return _framed(encoded, rng, 4)


def _said_byte(_swarm: Swarm, rng: Random) -> bytes:
    return rng.choice((b"\x06", b"\x01", b"\x00", b"\x02", b"", b"\x06\x06"))


def _said_gossip(swarm: Swarm, rng: Random) -> bytes:
    run_id = swarm.daemon.replica.run_id
    parts = []
    for _ in range(1 + rng.randrange(3)):
        topic = topic_name(rng.choice(tuple(Topic)), run_id) if rng.random() < 0.9 else "other"
        author = rng.choice(swarm.untrusted).signer
        message = sign_message(author, topic, _envelope(swarm, rng), rng.getrandbits(60))
        ids = tuple(rng.randbytes(46) for _ in range(rng.randrange(20)))
        rpc = rng.choice(
            (
                Rpc(publish=(encode_message(message),)),
                Rpc(publish=(encode_message(message),)),
                Rpc(subscriptions=(Subscription(True, topic),), graft=(topic,)),
                Rpc(ihave=(IHave(topic, (*ids, message.message_id)),), iwant=ids),
                Rpc(prune=(Prune(topic, rng.choice((0, 60, 2**63))),)),
            )
        )
        data = encode_rpc(rpc) if rng.random() < 0.8 else fields(rng)
        parts.append(frame(data))
    return b"".join(parts)


def _said_circuit(swarm: Swarm, rng: Random) -> bytes:
    peers = [*swarm.signers, *(one.signer.peer_id for one in swarm.untrusted), None]
    message = CircuitMessage(
        rng.choice(list(CircuitKind)),
        rng.choice(peers),
        rng.choice((0, 100, 100, 200, 2**31)),
        rng.choice((0, 1, 2**40, 2**63)),
        rng.choice((0, 600)),
        rng.choice((0, 2**26, 2**62)),
    )
    data = encode_circuit(message, HOP_SHAPE) if rng.random() < 0.8 else fields(rng)
    length = len(data) if rng.random() < 0.9 else rng.choice((0, 127, 300, 9999))
    return uvarint(length) + data


async def _ask_hop(swarm: Swarm, peer: PeerId, _choice: int) -> bool:
    stream = await swarm.daemon.context.peers.open_stream(peer, HOP.name)
    try:
        async with asyncio.timeout(HOP.stall_seconds):
            answer = await ask_circuit(stream, CircuitMessage(CircuitKind.RESERVE), HOP_SHAPE)
    except TimeoutError:
        return False
    finally:
        await stream.close()
    return answer.status == CircuitStatus.OK


def _served(protocol: StreamProtocol, *draws: Draw) -> Target:
    name, covers = f"serve-{protocol.word}", (f"stream:{protocol.word}:opener",)
    return Target(name, lambda: Served(draws, protocol), covers, lasting=3000)


def _asked(protocol: StreamProtocol, ask: Ask, *draws: Draw) -> Target:
    name, covers = f"ask-{protocol.word}", (f"stream:{protocol.word}:acceptor",)
    return Target(name, lambda: RequestSession(draws, protocol, ask), covers, lasting=3000)


TARGETS = (
    _served(MANIFEST, _said_byte, _said_manifest),
    _served(MESSAGE, _said_message),
    _served(SYNC, _said_sync_question),
    _served(PAGES, _said_pages_question),
    _served(LEDGER, _said_ledger_question),
    _served(BLOBS, _said_blob_question),
    _served(DIAL_BACK, _said_addresses),
    _served(HOP, _said_circuit),
    _served(GOSSIP, _said_gossip),
    _asked(MANIFEST, _ask_manifest, _said_manifest),
    _asked(MESSAGE, _ask_message, _said_byte),
    _asked(SYNC, _ask_sync, _said_sync_answer),
    _asked(PAGES, _ask_sync, _said_pages_answer),
    _asked(LEDGER, _ask_ledger, _said_ledger_answer),
    _asked(BLOBS, _ask_blobs, _said_blob_answer),
    _asked(DIAL_BACK, _ask_dial_back, _said_byte),
    _asked(HOP, _ask_hop, _said_circuit),
)
