"""Server of blobs: answers requests for ranges, within the limits of streams and upload.

A node that is still downloading a blob forwards each verified chunk at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from node.network.blobs.config import WORTH_BYTES, ExchangeLimits
from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobRequest, BlobStatus, read_request, reply
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.network.streams.protocols import REQUEST_SECONDS
from protocol.core.containers import Table
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from roles.ports.storage import Blobs
from roles.ports.transport import Stream, StreamHandler, TransportError, Trust

EXPECTED_SECONDS = 1.0
"""Maximum wait of a requester for a blob that this node expects; a guess. Shorter than any
requester's timeout, which would otherwise blame this node for its own source's delay."""


class BlobServer:
    """Serves ``blobs`` to the peers that open streams to ``handler``.

    ``on_fault`` is called for a peer that sent an invalid request, ``on_worth`` for a peer that
    took enough bytes to outweigh the cost of its stream.
    """

    def __init__(
        self,
        blobs: Blobs,
        limits: ExchangeLimits,
        trust: Trust,
        *,
        on_fault: Callable[[PeerId, Fault], None],
        on_worth: Callable[[PeerId], None],
    ) -> None:
        self._blobs = blobs
        self._limits = limits
        self._trust = trust
        self._on_fault = on_fault
        self._on_worth = on_worth
        self.upload_cap = UploadScheduler(limits.upload_bytes_per_second)
        self.sent = TrafficStats()
        self._expected: dict[Digest, asyncio.Event] = {}
        self._bounded = StreamLimiter(
            self._serve,
            limits,
            trust,
            self._refuse,
            untrusted=self._limits.untrusted,
            turns=self._limits.turns,
        )
        self.handler: StreamHandler = self._bounded
        self.tables: tuple[Table, ...] = self._bounded.tables

    @contextmanager
    def expecting(self, digest: Digest) -> Iterator[None]:
        """Within this context, hold requests with ``wait`` for a blob that is about to arrive.

        In a tree, small blobs pass level by level: without this, the first request of each level
        would fail and repeat after a pause.
        """
        arrived = self._expected.setdefault(digest, asyncio.Event())
        try:
            yield
        finally:
            arrived.set()
            self._expected.pop(digest, None)

    async def _serve(self, stream: Stream) -> None:
        with suppress(TransportError, LookupError):  # the peer left, or the blob was deleted
            await self._answer(stream)

    async def _refuse(self, stream: Stream) -> None:
        with suppress(TransportError):
            await within(self._limits.open_seconds, reply(stream, BlobStatus.BUSY, 0))

    async def _answer(self, stream: Stream) -> None:
        limits = self._limits
        request = await within(min(limits.open_seconds, REQUEST_SECONDS), read_request(stream))
        if isinstance(request, Fault):
            self._on_fault(stream.peer, request)
            return
        expected = self._expected.get(request.digest)
        if request.wait and expected is not None:
            with suppress(TransportError):
                await within(EXPECTED_SECONDS, expected.wait())
        total_bytes = self._blobs.size(request.digest)
        if total_bytes is None or request.offset > total_bytes:
            await within(limits.open_seconds, reply(stream, BlobStatus.UNKNOWN, 0))
            return
        length = min(request.length, total_bytes - request.offset)
        holding = None if request.wait else self._blobs.holding(request.digest)
        if holding is not None and not holding.covers(request.offset, length):
            await within(limits.open_seconds, reply(stream, BlobStatus.UNKNOWN, 0, holding.mask))
            return
        await within(limits.open_seconds, reply(stream, BlobStatus.OK, total_bytes))
        async with aclosing(self._blobs.stream(request.digest, request.offset, length)) as pieces:
            await self._send_range(stream, request, pieces, length)
        if length >= WORTH_BYTES:
            self._on_worth(stream.peer)

    async def _send_range(
        self, stream: Stream, request: BlobRequest, pieces: AsyncIterator[bytes], length: int
    ) -> None:
        stall_seconds = self._limits.stall_seconds
        part_bytes = min(self._limits.piece_bytes, self.upload_cap.piece_bytes_max)
        trusted = self._trust.trusted(stream.peer)
        self._bounded.note_slow(stream, slow=False)
        while length:
            piece = await within(stall_seconds, anext(pieces, b""))
            if not piece:
                raise LookupError("the blob ended early")
            length -= len(piece)
            for start in range(0, len(piece), part_bytes):
                part = piece[start : start + part_bytes]
                await self.upload_cap.take(len(part), trusted=trusted)
                if not stream.offer(part):  # a deadline costs more than most writes do
                    self._bounded.note_slow(stream, slow=True)
                    await within(stall_seconds, stream.write(part))
                    self._bounded.note_slow(stream, slow=False)
                now = loop_time()
                self.sent.note(stream.peer, request.kind, BlobTransport.STREAM, len(part), now)
