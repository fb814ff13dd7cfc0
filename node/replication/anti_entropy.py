"""Synchronisation: what one peer has accepted and another has missed, pulled on request.

A newcomer takes everything that still matters this way, a restarted node what it slept through, and
every node now and then what gossip lost. The server lists message ids, page by page; the client
asks for those it lacks; each envelope then passes the same door as gossip (``Replica.receive``).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import structlog

from node.streams.deadline import within
from node.streams.framing import read_frame, write_frame
from node.streams.limits import Bounded
from node.streams.protocols import IDS_MAX, SYNC
from protocol.codec import decode, encode
from protocol.faults import Fault
from protocol.membership import Member
from protocol.messages import ENVELOPE_BYTES_MAX, NodeRecord, Signed
from protocol.replica import Received, Replica
from protocol.types import DIGEST_BYTES, Digest, PeerId, ValidationResult
from roles.ports.clock import Clock
from roles.ports.transport import Stream, Streams, TransportError

log = structlog.get_logger()

ENVELOPES_MAX = 1024
"""Messages asked for at once."""

REQUEST_BYTES_MAX = 64
PAGE_BYTES_MAX = SYNC.acceptor_bytes_max

EXCHANGE_SECONDS = SYNC.exchange_seconds or 0.0
"""For all that one pull takes; what is left over comes with the next one."""

STALL_SECONDS = SYNC.stall_seconds
"""For one frame."""

REVIEW_VERSIONS_MIN = 8
"""How many of our own versions are compared first when another chain has shown up."""

Accepted = Callable[[bytes, Received], None]


class AntiEntropy:
    """Serves and pulls the messages of one run; ``blank`` says that our disk knows nothing of it.

    Then we have just come, or we have lost our disk; a peer that holds a record of ours tells.
    """

    def __init__(
        self,
        streams: Streams,
        replica: Replica,
        clock: Clock,
        accepted: Accepted,
        *,
        blank: bool = False,
    ) -> None:
        self._streams = streams
        self._replica = replica
        self._clock = clock
        self._accepted = accepted
        self._protocol = SYNC.on(replica.run_id)
        self._blank = blank
        # The client takes a closed stream for "ask another one".
        self._bounded = Bounded(self._serve, SYNC)
        self._review = 0
        self._told = asyncio.Event()
        self.former: Signed[NodeRecord] | None = None
        """A record of ours that a peer holds from before this life: we have lost our disk."""

    @property
    def synchronised(self) -> bool:
        """Whether a peer has told us since our start what we had missed."""
        return self._told.is_set()

    async def wait_until_synchronised(self) -> None:
        """Return when a peer has told us what we had missed."""
        await self._told.wait()

    async def start(self) -> None:
        """Serve the protocol."""
        await self._streams.handle(self._protocol, self._bounded)

    async def pull(self, peer: PeerId) -> bool:
        """Take what ``peer`` has and we lack; False when it did not tell all of it in time."""
        try:
            await within(EXCHANGE_SECONDS, self._pull(peer))
        except TransportError as error:
            log.info("synchronisation failed", peer=peer[-8:], error=str(error))
            return False
        self._told.set()
        # The versions that we lack may replace many of ours: we look further back each time.
        self._review = max(REVIEW_VERSIONS_MIN, 8 * self._review) if self._replica.forked else 0
        return True

    async def _pull(self, peer: PeerId) -> None:
        """Go through the peer's pages; each id is asked for once, whatever comes of it."""
        asked: dict[Digest, None] = {}
        skip = 0
        while True:
            before = self._replica.ledger.version
            listed, wanted = await self._round(peer, skip, asked)
            asked.update(dict.fromkeys(wanted))
            if len(wanted) == ENVELOPES_MAX:
                continue  # more of the same page
            if listed < IDS_MAX:
                return
            # The list begins at our newest version: when that moves, the pages do.
            skip = skip + IDS_MAX if self._replica.ledger.version == before else 0

    async def _round(
        self, peer: PeerId, skip: int, asked: dict[Digest, None]
    ) -> tuple[int, list[Digest]]:
        """Take what is new on one page; return how long the page was, and what was asked for."""
        stream = await self._streams.open_stream(peer, self._protocol)
        try:
            version = max(0, self._replica.ledger.version + 1 - self._review)
            request = {"skip": skip, "version": version}
            await write_frame(stream, encode(request))
            ids = _ids(await within(STALL_SECONDS, read_frame(stream, PAGE_BYTES_MAX)))
            if ids is None:
                raise TransportError("not a list of ids")
            known = {signed.digest: None for signed in _current(self._replica, 0)}
            new = (item for item in dict.fromkeys(ids) if item not in known and item not in asked)
            wanted = list(islice(new, ENVELOPES_MAX))
            await write_frame(stream, encode({"ids": wanted}))
            for _ in wanted:
                self._take(await within(STALL_SECONDS, read_frame(stream, ENVELOPE_BYTES_MAX)))
                await asyncio.sleep(0)  # a full buffer must not keep the loop from the others
        finally:
            await stream.close()
        return len(ids), wanted

    def _take(self, envelope: bytes | Fault) -> None:
        if isinstance(envelope, Fault):
            raise TransportError(str(envelope))
        own = self._replica.roster.get(self._streams.peer_id)
        received = self._replica.receive(envelope, self._clock.now())
        if received.result is ValidationResult.REJECT:
            raise TransportError(f"the peer holds what no honest node accepts: {received.fault}")
        if received.result is ValidationResult.ACCEPT:
            self._accepted(envelope, received)
        record = received.signed
        if self._blank and record is not None and record.signer == self._streams.peer_id:
            self._meet_ourselves(record, own)

    def _meet_ourselves(self, signed: Signed[Any], own: Member | None) -> None:
        """Note when a peer shows a record that we made before we came, as our own one says."""
        if isinstance(signed.message, NodeRecord):
            joined_at = math.inf if own is None else own.record.message.joined_at
            if signed.message.sequence < joined_at:
                self.former = signed

    async def _serve(self, stream: Stream) -> None:
        await within(EXCHANGE_SECONDS, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        request = _map(await within(STALL_SECONDS, read_frame(stream, REQUEST_BYTES_MAX)))
        skip, version = request.get("skip"), request.get("version")
        if type(skip) is not int or type(version) is not int or min(skip, version) < 0:
            return
        page = islice(_current(self._replica, version), skip, skip + IDS_MAX)
        offered = {signed.digest: signed.envelope for signed in page}
        await write_frame(stream, encode({"ids": list(offered)}))
        wanted = _ids(await within(STALL_SECONDS, read_frame(stream, PAGE_BYTES_MAX)))
        for digest in (wanted or [])[:ENVELOPES_MAX]:
            envelope = offered.get(digest)
            if envelope is None:
                return
            await within(STALL_SECONDS, write_frame(stream, envelope))


def _map(frame: bytes | Fault) -> dict[str, object]:
    """Return the map that a frame holds, empty when it holds none."""
    value = frame if isinstance(frame, Fault) else decode(frame, bytes_max=PAGE_BYTES_MAX)
    return value if isinstance(value, dict) else {}


def _ids(frame: bytes | Fault) -> list[Digest] | None:
    """Return the ids that a frame holds, None when it is nothing of the kind."""
    ids = _map(frame).get("ids")
    if not isinstance(ids, tuple) or len(ids) > IDS_MAX:
        return None
    well_formed = all(isinstance(item, bytes) and len(item) == DIGEST_BYTES for item in ids)
    return [Digest(item) for item in ids] if well_formed else None


def _current(replica: Replica, from_version: int) -> Iterator[Signed[Any]]:
    """Yield what matters now, in an order in which it can be taken in.

    The keys of the genesis first, since certificates are checked against the roster; then versions
    from ``from_version`` on, and the newest in any case, because it may be of another chain;
    commits before the certificates that settle them. Everybody else's records come last: anyone may
    make thousands of them, and nothing waits for them.
    """
    ledger, manifest = replica.ledger, replica.manifest
    records = replica.roster.records()
    named = {*manifest.genesis.trainers, *manifest.genesis.validators}
    yield from (record for record in records if record.signer in named)
    yield from replica.evidence
    first = max(0, min(from_version, ledger.version))
    yield from (checkpoint.manifest for checkpoint in ledger.checkpoints[first:])
    yield from (entry.commit for entry in ledger.entries.values())
    yield from _certificates(replica)
    yield from (record for record in records if record.signer not in named)


def _certificates(replica: Replica) -> Iterable[Signed[Any]]:
    entries = replica.ledger.entries.values()
    return (entry.certificate for entry in entries if entry.certificate is not None)
