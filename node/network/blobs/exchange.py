"""Blob exchange: fetches ranges of content-addressed blobs, one per stream, and serves ours.

Ranges of weights are also available over HTTP from peers that offer it (``node.network.http``). The
receiver verifies: ``fetch`` against the digest of the blob, ``node.weights`` against the digest of
every chunk. ``node.network.blobs.wire`` defines the messages, ``server`` answers them.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from node.network.blobs.config import ExchangeLimits
from node.network.blobs.server import BlobServer
from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport, TransportChooser
from node.network.blobs.wire import (
    BlobKind,
    BlobRefusedError,
    BlobRequest,
    ask,
)
from node.network.streams.deadline import loop_time, within
from node.network.streams.protocols import BLOBS
from protocol.core import crypto
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from roles.ports.storage import Blobs
from roles.ports.transport import HttpRanges, RangeBody, Stream, Streams, TransportError, Trust


@dataclass(slots=True)
class _Assembly:
    """A blob being fetched: its bytes so far, and their sources."""

    data: bytearray = field(default_factory=bytearray)
    total_bytes: int | None = None
    contributors: list[PeerId] = field(default_factory=list)

    def clear(self) -> None:
        self.data.clear()
        self.contributors.clear()
        self.total_bytes = None


class BlobExchange:
    """Serves our blobs and fetches those of peers, under the ``protocol`` of one run.

    ``on_fault`` is called for a peer that sent an invalid request or a blob with another digest.
    ``on_worth`` is called for a peer that took enough bytes to outweigh the cost of its stream.
    ``http_port`` returns the port from which ranges of weights are fetched by ``http``, or 0.
    """

    def __init__(
        self,
        transport: Streams,
        blobs: Blobs,
        *,
        protocol: str = BLOBS.name,
        limits: ExchangeLimits | None = None,
        trust: Trust | None = None,
        on_fault: Callable[[PeerId, Fault], None] = lambda _peer, _fault: None,
        on_worth: Callable[[PeerId], None] = lambda _peer: None,
        http: HttpRanges | None = None,
        http_port: Callable[[PeerId], int] = lambda _peer: 0,
    ) -> None:
        self._transport = transport
        self._blobs = blobs
        self._http = http
        self._http_port = http_port if http is not None else lambda _peer: 0
        self._ways = TransportChooser()
        self._limits = limits or ExchangeLimits()
        self._protocol = protocol
        self.on_fault = on_fault
        self._server = BlobServer(
            blobs, self._limits, trust or Trust(), on_fault=on_fault, on_worth=on_worth
        )
        self.upload_cap = self._server.upload_cap
        """Scheduler of all blob uploads."""
        self.sent = self._server.sent
        """Blob bytes sent since the start."""
        self.tables = (*self._server.tables, *self._ways.tables)
        self.received = TrafficStats()
        """Blob bytes received since the start, valid or not."""

    @property
    def peer_id(self) -> PeerId:
        """Our own peer id."""
        return self._transport.peer_id

    async def start(self) -> None:
        """Serve the protocol from now on."""
        await self._transport.handle(self._protocol, self._server.handler)

    def expecting(self, digest: Digest) -> AbstractContextManager[None]:
        """Within this context, hold requests with ``wait`` for a blob that is about to arrive."""
        return self._server.expecting(digest)

    async def fetch(
        self,
        digest: Digest,
        length_max: int,
        sources: Sequence[PeerId],
        deadline_seconds: float,
        *,
        kind: BlobKind = BlobKind.BODY,
    ) -> bytes | None:
        """Return a whole blob from local storage or the first source that has it, or None.

        Each source has an equal share of the remaining time, so a slow one cannot use up all of it.
        The next source continues at the next byte. The result has ``digest``; it is not stored.
        """
        local = await self._blobs.get(digest)
        if local is not None:
            return local
        order = deque((peer, False) for peer in dict.fromkeys(sources) if peer != self.peer_id)
        ends_at = loop_time() + deadline_seconds
        assembly = _Assembly()
        while order:
            share_seconds = (ends_at - loop_time()) / len(order)
            peer, alone = order.popleft()
            if alone:
                assembly.clear()
            patience = min(self._limits.stall_seconds, share_seconds)
            pulling = self._pull(peer, digest, length_max, assembly, patience, kind)
            try:
                whole = await within(share_seconds, pulling)
            except TransportError:
                continue
            if whole and crypto.digest(bytes(assembly.data)) == digest:
                return bytes(assembly.data)
            if whole:
                order.extendleft(self._suspects(assembly))
        return None

    def _suspects(self, assembly: _Assembly) -> list[tuple[PeerId, bool]]:
        """Return the sources that must resend an invalid blob alone; blame a single source."""
        contributors = list(dict.fromkeys(assembly.contributors))
        assembly.clear()
        if len(contributors) > 1:
            return [(peer, True) for peer in contributors]
        self.on_fault(contributors[0], Fault(FaultCode.BAD_BLOB))
        return []

    async def _pull(
        self,
        peer: PeerId,
        digest: Digest,
        length_max: int,
        assembly: _Assembly,
        patience: float,
        kind: BlobKind,
    ) -> bool:
        """Append the bytes that ``peer`` sends to ``assembly``; True when it is complete."""
        offset = len(assembly.data)
        request = BlobRequest(digest, offset, length_max - offset, wait=True, kind=kind)
        try:
            stream, total_bytes = await self._open(peer, request, patience)
        except TransportError:
            return False
        try:
            if total_bytes > length_max or total_bytes < 1:
                return False
            if total_bytes != assembly.total_bytes:
                if offset:  # sources disagree on the length: restart
                    assembly.clear()
                    return await self._pull(peer, digest, length_max, assembly, patience, kind)
                assembly.total_bytes = total_bytes
            assembly.contributors.append(peer)
            while len(assembly.data) < total_bytes:
                count = min(self._limits.piece_bytes, total_bytes - len(assembly.data))
                piece = await within(patience, stream.read(count))
                if not piece:
                    return False
                now = loop_time()
                self.received.note(peer, kind, BlobTransport.STREAM, len(piece), now)
                assembly.data += piece
        except TransportError:
            return False
        finally:
            await stream.close()
        return True

    async def fetch_range(
        self,
        peer: PeerId,
        digest: Digest,
        offset: int,
        length: int,
        *,
        piece_bytes: int,
        wait: bool = True,
        kind: BlobKind = BlobKind.BODY,
        on_piece: Callable[[BlobTransport, int], None] = lambda _way, _count: None,
    ) -> AsyncGenerator[bytes | bytearray, None]:
        """Yield ``length`` bytes from ``offset`` on in pieces of ``piece_bytes``, unverified.

        A piece is valid until the next one is requested: its buffer is reused. ``on_piece``
        receives the transport and length of each. Use within ``contextlib.aclosing``.

        Weights use HTTP where that is faster (``TransportChooser``), and fall back to a stream if
        HTTP fails. Raises ``BlobRefusedError``, or ``TransportError`` when the peer disconnects,
        has a shorter blob, or sends no piece within ``stall_seconds``.
        """
        request = BlobRequest(digest, offset, length, wait, kind)
        port = self._http_port(peer) if kind is BlobKind.WEIGHTS else 0
        way = self._ways.choose(peer, loop_time()) if port else BlobTransport.STREAM
        refused = False
        while request.length:
            waited_seconds, before = -loop_time(), request.length
            try:
                source = await self._source(way, peer, port, request)
                if refused and way is BlobTransport.STREAM:
                    self._ways.failed(peer, loop_time())
                try:
                    while request.length:
                        count = min(piece_bytes, request.length)
                        reading = source.read_exactly(count)
                        piece = await within(self._limits.stall_seconds, reading)
                        waited_seconds += loop_time()
                        self.received.note(peer, kind, way, count, loop_time())
                        on_piece(way, count)
                        request = request.after(count)
                        yield piece
                        waited_seconds -= loop_time()
                finally:
                    await source.close()
            except TransportError as error:
                if way is BlobTransport.STREAM:
                    raise
                # A refusal over HTTP may be correct; the stream decides.
                refused = isinstance(error, BlobRefusedError)
                if not refused:
                    self._ways.failed(peer, loop_time())
                way = BlobTransport.STREAM
            else:
                if port:
                    waited_seconds += loop_time()
                    self._ways.delivered(peer, way, before, waited_seconds)

    async def _source(
        self, way: BlobTransport, peer: PeerId, port: int, request: BlobRequest
    ) -> RangeBody:
        """Open the HTTP body or stream that yields the bytes of a range."""
        digest, offset, length = request.digest, request.offset, request.length
        if way is BlobTransport.HTTP and self._http is not None:
            opening = self._http.open(peer, port, digest, offset, length, wait=request.wait)
            return await within(self._limits.open_seconds, opening)
        stream, total_bytes = await self._open(peer, request, self._limits.stall_seconds)
        if total_bytes < offset + length:
            await stream.close()
            raise TransportError(f"the blob has {total_bytes} bytes, less than requested")
        return stream

    async def _open(
        self, peer: PeerId, request: BlobRequest, patience: float
    ) -> tuple[Stream, int]:
        """Send a request; return the stream at the range's first byte, and the blob length."""
        opening = self._transport.open_stream(peer, self._protocol)
        stream = await within(min(self._limits.open_seconds, patience), opening)
        try:
            return stream, await within(patience, ask(stream, request))
        except BaseException:
            await stream.close()
            raise
