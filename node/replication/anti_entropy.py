"""Anti-entropy: pull from one peer the messages that this node has missed.

A new node loads the whole current state this way, a restarted node what it missed, and every node
now and then what gossip lost. The server lists message ids in pages; the client requests those it
lacks. Each envelope then passes the same intake as gossip (``MessageIntake.take``). Answers share
the upload with weights: the records of a roster full of Sybil keys take megabytes.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, TypeVar

import structlog

from node.context import NodeContext
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.network.streams.framing import length_prefixed, read_frame, write_frame
from node.network.streams.protocols import IDS_MAX, REQUEST_SECONDS, SYNC
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.sync_peers import SyncPeers
from protocol.core.codec import decode, encode
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Digest, PeerId, ValidationResult
from protocol.messages import ENVELOPE_BYTES_MAX, Signed
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

PAUSE_EPOCHS_MIN = 0.5
PAUSE_EPOCHS_MAX = 8
"""Longest pause between pulls: gossip loses little, and this bounds how long a loss lasts."""

PIECE_BYTES_MAX = 16_384
"""Bytes per write without an upload limit: about 30 messages."""

REQUEST_BYTES_MAX = 64
NUMBER_MAX = 2**53
"""Limit of ids to skip and of a version, as in messages."""

EXCHANGE_SECONDS = SYNC.exchange_seconds or 0.0

REVIEW_VERSIONS_MIN = 8
"""Own versions that are compared first after a fork appeared."""

ANSWERS_MAX = 1024
"""Peers whose response time is kept."""

T = TypeVar("T")


class AntiEntropy:
    """Server and client of the synchronisation protocol of one run."""

    def __init__(
        self, context: NodeContext, inbox: MessageIntake, upload_cap: UploadScheduler
    ) -> None:
        self._context = context
        self._upload_cap = upload_cap
        self._replica = context.replica
        self._inbox = inbox
        self._protocol = SYNC.on(context.replica.run_id)
        # The client takes a closed stream as a request to try another peer.
        self._bounded = StreamLimiter(self._serve, SYNC, context.trust)
        context.tables.register(*self._bounded.tables)
        self._review = 0
        self._sources = SyncPeers(context)
        self._told = asyncio.Event()
        self._connected = asyncio.Event()
        self._taken = self._asked = 0
        self.answer_seconds = BoundedDict[PeerId, float](ANSWERS_MAX)
        """Shortest time from request to first response byte of each peer: a round trip."""

    @property
    def progress(self) -> tuple[int, int]:
        """Messages received, and messages requested, in the current or last pull."""
        return self._taken, self._asked

    @property
    def synchronised(self) -> bool:
        """True if enough peers have sent, since the start, what this node had missed."""
        return self._told.is_set()

    async def wait_until_synchronised(self) -> None:
        """Wait until enough peers have sent what this node had missed."""
        await self._told.wait()

    async def start(self) -> None:
        """Register the protocol handler."""
        await self._context.peers.handle(self._protocol, self._bounded)
        self._context.peers.follow(self._note_connected)

    async def run(self) -> None:
        """Pull from peers until cancelled: without pause until synchronised, then ever less often.

        One peer is not enough: after a power cut, half of the swarm has just started too.
        """
        context = self._context
        rng = context.ports.rng.child("synchronise")
        pause_epochs = PAUSE_EPOCHS_MIN
        await self._connected.wait()
        while True:
            if self.synchronised:
                for peer in rng.sample(context.peers.connected, 1):
                    await self.pull(peer)
            else:
                await self._begin(rng)
            calm = self.synchronised and not self._replica.behind
            pause_epochs = min(2 * pause_epochs, PAUSE_EPOCHS_MAX) if calm else PAUSE_EPOCHS_MIN
            await asyncio.sleep(pause_epochs * self._replica.manifest.epochs.seconds)

    async def _begin(self, rng: Rng) -> None:
        """Pull until enough peers have answered, or all known peers were tried."""
        self._sources.begin()
        while not self.synchronised and (peer := self._sources.next(rng)) is not None:
            await self.pull(peer)

    def _note_connected(self, peers: Sequence[PeerId]) -> None:
        if peers:
            self._connected.set()

    async def pull(self, peer: PeerId) -> bool:
        """Pull what ``peer`` has and this node lacks; False if it did not complete in time."""
        try:
            await within(EXCHANGE_SECONDS, self._pull(peer))
        except TransportError as error:
            log.info("synchronisation failed", peer=peer[-8:], error=str(error))
            self._sources.failed(peer)
            self._look()
            return False
        self._sources.told(peer)
        self._look()
        # The missing versions may replace many of ours: each pull compares more of them.
        self._review = max(REVIEW_VERSIONS_MIN, 8 * self._review) if self._replica.forked else 0
        return True

    def _look(self) -> None:
        if self._sources.enough():
            self._told.set()

    async def _pull(self, peer: PeerId) -> None:
        """Request all pages of the peer; each id is requested once, whatever the outcome."""
        asked: dict[Digest, None] = {}
        skip = self._taken = self._asked = 0
        while True:
            before = self._replica.ledger.chain.version
            listed, wanted = await self._round(peer, skip, asked)
            asked.update(dict.fromkeys(wanted))
            if listed < IDS_MAX:
                return
            # The list begins at the newest version: when that changes, the pages shift.
            skip = skip + IDS_MAX if self._replica.ledger.chain.version == before else 0

    async def _round(
        self, peer: PeerId, skip: int, asked: dict[Digest, None]
    ) -> tuple[int, list[Digest]]:
        """Pull the new messages of one page; return the page's length and the requested ids."""
        stream = await self._context.peers.open_stream(peer, self._protocol)
        try:
            version = max(0, self._replica.ledger.chain.version + 1 - self._review)
            request = {"skip": skip, "version": version}
            asked_at = loop_time()
            await write_frame(stream, encode(request))
            ids = self._sound(stream, _ids(await self._read(stream, SYNC.acceptor_bytes_max)))
            self._note_answer(peer, loop_time() - asked_at)
            known = {signed.digest: None for signed in _current(self._replica, 0)}
            here = self._replica.is_waiting
            wanted = [
                item
                for item in dict.fromkeys(ids)
                if item not in known and item not in asked and not here(item)
            ]
            await write_frame(stream, encode({"ids": wanted}))
            self._asked += len(wanted)
            for _ in wanted:
                self._taken += 1
                self._take(await self._read(stream, ENVELOPE_BYTES_MAX), peer)
                await asyncio.sleep(0)  # let other tasks run while the buffer is full
        finally:
            await stream.close()
        return len(ids), wanted

    def _note_answer(self, peer: PeerId, seconds: float) -> None:
        """Keep the peer's shortest response time: the rest is its computing time."""
        known = self.answer_seconds.get(peer, seconds)
        self.answer_seconds.set_newest(peer, min(known, seconds))

    def _take(self, envelope: bytes, peer: PeerId) -> None:
        received = self._inbox.take(envelope, MessageOrigin.ANTI_ENTROPY, sender=peer)
        if received.result is ValidationResult.REJECT:
            raise TransportError(f"the peer sent an invalid message: {received.fault}")

    async def _read(
        self, stream: Stream, bytes_max: int, seconds: float = SYNC.stall_seconds
    ) -> bytes:
        return self._sound(stream, await within(seconds, read_frame(stream, bytes_max)))

    def _sound(self, stream: Stream, value: T | Fault) -> T:
        """Return a valid value, or blame its sender and raise ``TransportError``."""
        if isinstance(value, Fault):
            self._context.peers.blame(stream.peer, value)
            raise TransportError(str(value))
        return value

    async def _serve(self, stream: Stream) -> None:
        await within(EXCHANGE_SECONDS, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        request = _request(await self._read(stream, REQUEST_BYTES_MAX, REQUEST_SECONDS))
        skip, version = self._sound(stream, request)
        page = islice(_current(self._replica, version), skip, skip + IDS_MAX)
        offered = {signed.digest: signed.envelope for signed in page}
        await self._send(stream, [encode({"ids": list(offered)})])
        wanted = self._sound(stream, _ids(await self._read(stream, SYNC.acceptor_bytes_max)))
        await self._send(stream, map(offered.__getitem__, takewhile(offered.__contains__, wanted)))

    async def _send(self, stream: Stream, frames: Iterable[bytes]) -> None:
        """Write frames in pieces, each when the upload cap admits it."""
        piece_bytes = min(PIECE_BYTES_MAX, self._upload_cap.piece_bytes_max)
        unsent = bytearray()
        for frame in frames:
            unsent += length_prefixed(frame)
            while len(unsent) >= piece_bytes:
                await self._write(stream, bytes(unsent[:piece_bytes]))
                del unsent[:piece_bytes]
        if unsent:
            await self._write(stream, bytes(unsent))

    async def _write(self, stream: Stream, piece: bytes) -> None:
        trusted = self._context.trust.trusted(stream.peer)
        await self._upload_cap.take(len(piece), trusted=trusted, messages=True)
        await within(SYNC.stall_seconds, stream.write(piece))


def _map(data: bytes) -> dict[str, Any] | Fault:
    value = decode(data, bytes_max=SYNC.acceptor_bytes_max)
    if isinstance(value, Fault | dict):
        return value
    return Fault(FaultCode.BAD_FIELDS, "not a map")


def _request(data: bytes) -> tuple[int, int] | Fault:
    """Return the number of ids to skip, and the first version to list."""
    fields = _map(data)
    if isinstance(fields, Fault):
        return fields
    skip, version = fields.get("skip"), fields.get("version")
    if type(skip) is not int or type(version) is not int:
        return Fault(FaultCode.BAD_FIELDS, "skip and version")
    if min(skip, version) < 0 or max(skip, version) > NUMBER_MAX:
        return Fault(FaultCode.BAD_FIELDS, "skip and version")
    return skip, version


def _ids(data: bytes) -> list[Digest] | Fault:
    fields = _map(data)
    if isinstance(fields, Fault):
        return fields
    ids = fields.get("ids")
    if not isinstance(ids, tuple) or len(ids) > IDS_MAX:
        return Fault(FaultCode.BAD_FIELDS, "not a list of ids")
    if not all(isinstance(item, bytes) and len(item) == DIGEST_BYTES for item in ids):
        return Fault(FaultCode.BAD_FIELDS, "not an id")
    return [Digest(item) for item in ids]


def _current(replica: Replica, from_version: int) -> Iterator[Signed[Any]]:
    """Yield the current messages in an order in which a replica can accept them.

    Records of the genesis keys come first, since certificates are checked against the roster. Then
    versions from ``from_version`` on, always with the newest, which may be on another fork; commits
    before their certificates. Other records come late: an attacker can make thousands of them, and
    nothing depends on them. Last come old commits that prove a fault of a peer with a record here,
    each with its certificate.
    """
    ledger, manifest = replica.ledger, replica.manifest
    records = replica.roster.records()
    named = {*manifest.genesis.trainers, *manifest.genesis.validators}
    yield from (record for record in records if record.signer in named)
    yield from replica.verdicts.equivocators.evidence
    first = max(0, min(from_version, ledger.chain.version))
    yield from (checkpoint.manifest for checkpoint in ledger.chain.checkpoints[first:])
    entries = ledger.commits.entries.values()
    yield from (entry.commit for entry in entries)
    yield from (entry.certificate for entry in entries if entry.certificate is not None)
    yield from (record for record in records if record.signer not in named)
    for entry in ledger.proofs():
        if entry.commit.signer in replica.roster:
            yield entry.commit
            if entry.certificate is not None:
                yield entry.certificate
