"""Pull from one peer the work of final pages that this node cannot derive, or all accounts.

A node walks back from a page that it knows to be final, by the parents' digests, to the page that
it has counted last. A node that is far behind, or whose peer has not kept those pages, receives the
accounts whose root its newest final page states. Both are checked against what this node knows, so
any peer may serve them.
"""

from collections.abc import Iterator
from itertools import islice

from node.context import NodeContext
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import within
from node.network.streams.framing import write_frame
from node.network.streams.protocols import LEDGER, REQUEST_SECONDS
from node.replication.inbox import MessageIntake
from node.replication.sync_streams import SyncStreams, fields_of, is_digest_or_empty
from protocol.core.codec import decode, encode
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from protocol.ledger.final_ledger import PAGES_AT_ONCE, Missing
from protocol.messages import Page, Signed
from roles.ports.transport import Stream

PART_BYTES = 64 * 1024
"""Least size of a part of a snapshot, except the last; the largest leaf adds to it."""

PARTS_MAX = 1024
"""Maximum parts of a snapshot: 64 MB, 400,000 accounts."""

LEAF_BYTES_MIN = 64
"""Least size of a leaf: names of fields. Without it, a part could hold 100,000 empty leaves."""

REQUEST_BYTES_MAX = LEDGER.opener_bytes_max

EXCHANGE_SECONDS = LEDGER.exchange_seconds or 0.0


class LedgerSync:
    """Server and client of the ``ledger`` protocol of one run."""

    def __init__(
        self, context: NodeContext, inbox: MessageIntake, upload_cap: UploadScheduler
    ) -> None:
        self._peers, self._replica = context.peers, context.replica
        self._history = inbox.history
        self._protocol = LEDGER.on(context.replica.run_id)
        self._streams = SyncStreams(context, LEDGER, upload_cap)
        self._bounded = StreamLimiter(self._serve, LEDGER, context.trust)
        context.tables.register(*self._bounded.tables)

    async def start(self) -> None:
        """Register the protocol handler."""
        await self._peers.handle(self._protocol, self._bounded)

    async def pull(self, peer: PeerId) -> None:
        """Pull what this node lacks to count its final pages; raises ``TransportError``."""
        await within(EXCHANGE_SECONDS, self._pull(peer))

    async def _pull(self, peer: PeerId) -> None:
        ledger = self._replica.intake.ledger
        while (missing := ledger.missing) is not None:
            is_news = not ledger.is_far_behind and await self.walk_back(peer, missing)
            if not is_news and not (ledger.has_gap and await self.adopt(peer)):
                return
            self._replica.count_final()

    async def walk_back(self, peer: PeerId, missing: Missing) -> bool:
        """Pull a page with its work, and some before it; False if that was no news."""
        intake, is_news, (page, count) = self._replica.intake, False, missing
        stream = await self._peers.open_stream(peer, self._protocol)
        try:
            for _ in range(await self._request(stream, count, page=page, count=count)):
                frame = await self._streams.read(stream, LEDGER.acceptor_bytes_max)
                opened, work = self._streams.sound(stream, self._opened(frame))
                is_news |= self._streams.sound(stream, intake.ledger.offer(opened, work))
        finally:
            await stream.close()
        return is_news

    async def adopt(self, peer: PeerId) -> bool:
        """Pull the accounts whose root the newest final page states; False if there are none."""
        intake = self._replica.intake
        statement = intake.statement
        if statement is None or statement.final_epoch <= intake.accounts.header.epoch:
            return False
        leaves, left_bytes = list[bytes](), PARTS_MAX * PART_BYTES
        stream = await self._peers.open_stream(peer, self._protocol)
        try:
            epoch = statement.final_epoch
            for _ in range(await self._request(stream, PARTS_MAX, epoch=epoch)):
                bytes_max = min(left_bytes, LEDGER.acceptor_bytes_max)
                frame = await self._streams.read(stream, bytes_max)
                leaves += self._streams.sound(stream, _leaves(frame))
                left_bytes -= len(frame)
            if leaves:
                self._streams.sound(stream, intake.ledger.adopt(leaves, statement))
        finally:
            await stream.close()
        return bool(leaves)

    async def _request(
        self, stream: Stream, frames_max: int, *, page: bytes = b"", count: int = 0, epoch: int = 0
    ) -> int:
        """Send a request, and return the number of frames that follow."""
        await write_frame(stream, encode({"count": count, "epoch": epoch, "page": page}))
        fields = fields_of(await self._streams.read(stream, REQUEST_BYTES_MAX))
        frames = self._streams.sound(stream, fields).get("frames")
        if type(frames) is not int or not 0 <= frames <= frames_max:
            return self._streams.sound(stream, Fault(FaultCode.BAD_FIELDS, "number of frames"))
        return frames

    def _opened(self, frame: bytes) -> tuple[Signed[Page], bytes] | Fault:
        match decode(frame, bytes_max=LEDGER.acceptor_bytes_max):
            case (bytes(envelope), bytes(work)):
                page = self._replica.intake.open_page(envelope)
                return page if isinstance(page, Fault) else (page, work)
            case Fault() as fault:
                return fault
        return Fault(FaultCode.BAD_FIELDS, "not a page with its work")

    async def _serve(self, stream: Stream) -> None:
        await within(EXCHANGE_SECONDS, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        streams = self._streams
        request = _request(await streams.read(stream, REQUEST_BYTES_MAX, REQUEST_SECONDS))
        page, count, epoch = streams.sound(stream, request)
        frames = list(self._pages(page, count)) if page else list(self._snapshot(epoch))
        await streams.send(stream, [encode({"frames": len(frames)}), *frames])

    def _pages(self, page: bytes, count: int) -> Iterator[bytes]:
        """Yield a page with its work and those before it, as far as they are kept here."""
        for counted in islice(self._history.back_from(page), count):
            yield encode([counted.page.envelope, counted.work])

    def _snapshot(self, epoch: int) -> Iterator[bytes]:
        """Yield the accounts after the final page of an epoch in parts, if they are here."""
        state = self._replica.intake.ledger.state(epoch)
        part, part_bytes = list[bytes](), 0
        for leaf in state.leaves if state is not None else ():
            part.append(leaf)
            part_bytes += len(leaf)
            if part_bytes >= PART_BYTES:
                yield encode(part)
                part, part_bytes = [], 0
        if part:
            yield encode(part)


def _request(data: bytes) -> tuple[bytes, int, int] | Fault:
    """Return the page to begin with and the number of pages, or the epoch of the accounts."""
    fields = fields_of(data)
    if isinstance(fields, Fault):
        return fields
    page, count, epoch = (fields.get(name) for name in ("page", "count", "epoch"))
    if not is_digest_or_empty(page):
        return Fault(FaultCode.BAD_FIELDS, "page")
    if type(count) is not int or type(epoch) is not int or not 0 <= count <= PAGES_AT_ONCE:
        return Fault(FaultCode.BAD_FIELDS, "count and epoch")
    return page, count, epoch


def _leaves(frame: bytes) -> list[bytes] | Fault:
    leaves = decode(frame, bytes_max=LEDGER.acceptor_bytes_max)
    if isinstance(leaves, Fault):
        return leaves
    if not isinstance(leaves, tuple) or not all(map(_is_leaf, leaves)):
        return Fault(FaultCode.BAD_FIELDS, "not a list of leaves")
    return list(leaves)


def _is_leaf(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= LEAF_BYTES_MIN
