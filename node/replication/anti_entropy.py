"""Anti-entropy: pull from one peer the messages that this node has missed.

A new node loads the whole current state this way, a restarted node what it missed, and every node
now and then what gossip lost. The server lists message ids in pages; the client requests those it
lacks. Each envelope then passes the same intake as gossip (``MessageIntake.take``). Answers share
the upload with weights: the records of a roster full of Sybil keys take megabytes. The pages come
first (``node.replication.page_sync``), because certificates are checked against them.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import structlog

from node.context import NodeContext
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.network.streams.framing import write_frame
from node.network.streams.protocols import IDS_MAX, REQUEST_SECONDS, SYNC
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.ledger_sync import LedgerSync
from node.replication.page_sync import PageSync
from node.replication.sync_peers import SyncPeers
from node.replication.sync_streams import SyncStreams, fields_of, ids_in
from protocol.core.codec import encode
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, ValidationResult
from protocol.ledger.commits import Entry
from protocol.messages import ENVELOPE_BYTES_MAX, Signed
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

PAUSE_EPOCHS_MIN = 0.5
PAUSE_EPOCHS_MAX = 8
"""Longest pause between pulls: gossip loses little, and this bounds how long a loss lasts."""

REQUEST_BYTES_MAX = 64
NUMBER_MAX = 2**53
"""Limit of ids to skip and of a version, as in messages."""

EXCHANGE_SECONDS = SYNC.exchange_seconds or 0.0

REVIEW_VERSIONS_MIN = 8
"""Own versions that are compared first after a fork appeared."""

ANSWERS_MAX = 1024
"""Peers whose response time is kept."""


class AntiEntropy:
    """Server and client of the synchronisation protocol of one run."""

    def __init__(
        self, context: NodeContext, inbox: MessageIntake, upload_cap: UploadScheduler
    ) -> None:
        self._context = context
        self._replica = context.replica
        self._pages = PageSync(context, inbox, upload_cap)
        self.ledger = LedgerSync(context, inbox, upload_cap)
        self._streams = SyncStreams(context, SYNC, upload_cap)
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
    def other_histories(self) -> Mapping[PeerId, float]:
        """Peers that showed a history without the page that this node awaits."""
        return self._pages.other_histories

    @property
    def synchronised(self) -> bool:
        """True if enough peers have sent, since the start, what this node had missed."""
        return self._told.is_set()

    async def wait_until_synchronised(self) -> None:
        """Wait until enough peers have sent what this node had missed."""
        await self._told.wait()

    async def start(self) -> None:
        """Register the protocol handler."""
        await self._pages.start()
        await self.ledger.start()
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
            await self._rest(pause_epochs)

    async def _rest(self, epochs: float) -> None:
        """Pause; end early while pages are missing, because a council member cannot vote then."""
        seconds = PAUSE_EPOCHS_MIN * self._replica.manifest.epochs.seconds
        for _ in range(round(epochs / PAUSE_EPOCHS_MIN)):
            await asyncio.sleep(seconds)
            if self._replica.pages.is_behind():
                return

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
            await self._pages.pull(peer)
            await within(EXCHANGE_SECONDS, self._pull(peer))
            await self.ledger.pull(peer)
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
        streams, stream = self._streams, await self._context.peers.open_stream(peer, self._protocol)
        try:
            version = max(0, self._replica.ledger.chain.version + 1 - self._review)
            request = {"skip": skip, "version": version}
            asked_at = loop_time()
            await write_frame(stream, encode(request))
            ids = streams.sound(stream, ids_in(await streams.read(stream, SYNC.acceptor_bytes_max)))
            self._note_answer(peer, loop_time() - asked_at)
            known = {signed.digest: None for signed in self._current(0)}
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
                self._take(await streams.read(stream, ENVELOPE_BYTES_MAX), peer)
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

    async def _serve(self, stream: Stream) -> None:
        await within(EXCHANGE_SECONDS, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        streams = self._streams
        request = _request(await streams.read(stream, REQUEST_BYTES_MAX, REQUEST_SECONDS))
        skip, version = streams.sound(stream, request)
        page = islice(self._current(version), skip, skip + IDS_MAX)
        offered = {signed.digest: signed.envelope for signed in page}
        await streams.send(stream, [encode({"ids": list(offered)})])
        wanted = streams.sound(stream, ids_in(await streams.read(stream, SYNC.acceptor_bytes_max)))
        listed = takewhile(offered.__contains__, wanted)
        await streams.send(stream, map(offered.__getitem__, listed))

    def _current(self, version: int) -> Iterator[Signed[Any]]:
        return _current(self._replica, version, self._context.ports.clock.now())


def _request(data: bytes) -> tuple[int, int] | Fault:
    """Return the number of ids to skip, and the first version to list."""
    fields = fields_of(data)
    if isinstance(fields, Fault):
        return fields
    skip, version = fields.get("skip"), fields.get("version")
    if type(skip) is not int or type(version) is not int:
        return Fault(FaultCode.BAD_FIELDS, "skip and version")
    if min(skip, version) < 0 or max(skip, version) > NUMBER_MAX:
        return Fault(FaultCode.BAD_FIELDS, "skip and version")
    return skip, version


def _current(replica: Replica, from_version: int, now: float) -> Iterator[Signed[Any]]:
    """Yield the current messages in an order in which a replica can accept them.

    Records of the genesis keys come first, then pages that are not notarised, with votes. Then
    versions from ``from_version`` on, always with the newest, which may be on another fork, the
    reports about the newest ones, and the plans and results of rounds. Then the commits that these
    learned from, each with its certificate, and the other commits, before their certificates. Other
    records come late: an attacker can make thousands of them, and nothing depends on them. Last
    come old commits that prove a fault of a peer with a record here, each with its certificate. No
    message comes twice: a short page is the last one.
    """
    ledger, manifest = replica.ledger, replica.manifest
    records = replica.roster.records()
    named = {*manifest.genesis.trainers, *manifest.genesis.validators}
    yield from (record for record in records if record.signer in named)
    yield from replica.intake.undecided_at(now)
    yield from replica.intake.evidence.evidence.values()
    first = max(0, min(from_version, ledger.chain.version))
    yield from (checkpoint.manifest for checkpoint in ledger.chain.checkpoints[first:])
    yield from replica.shadows.all()
    yield from replica.rounds.all()
    learned = {
        key: entry
        for key in ledger.named()
        if (entry := ledger.commits.known(key)) is not None and entry.certificate is not None
    }
    yield from _decided(learned.values())
    entries = [entry for key, entry in ledger.commits.entries.items() if key not in learned]
    yield from (entry.commit for entry in entries)
    yield from (entry.certificate for entry in entries if entry.certificate is not None)
    yield from replica.reviews.current()
    yield from (record for record in records if record.signer not in named)
    proofs = (entry for entry in ledger.proofs() if entry.commit.digest not in learned)
    yield from _decided(entry for entry in proofs if entry.commit.signer in replica.roster)


def _decided(entries: Iterable[Entry]) -> Iterator[Signed[Any]]:
    """Yield commits, each with its certificate if there is one."""
    for entry in entries:
        yield entry.commit
        if entry.certificate is not None:
            yield entry.certificate
