"""Streams: two pipes, each an ordered, flow-controlled byte channel between two machines.

As in TCP with one stream, order is kept, and at most ``WINDOW_BYTES`` are in flight or unread; then
the writer waits. Loss shows as delay, a cut path as bytes that arrive later; a reset loses bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.core.types import PeerId
from roles.ports.transport import TransportError
from simulations.network.links import SMALL_BYTES, LineMeter, LinkPath
from simulations.runtime.content import joined
from simulations.runtime.cores import BYTE_SECONDS, READ_SECONDS, Core
from simulations.runtime.loop import VirtualLoop

WINDOW_BYTES = 1 << 20
"""Between yamux's first window of 256 KiB and its maximum of 16 MiB; a guess."""

_END = b""
"""The last item of a closed pipe."""


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a stream; ``on_end`` is called when its writer has closed it."""

    _loop: VirtualLoop
    _way: LinkPath
    _back: LinkPath
    _sent: LineMeter
    _received: LineMeter
    _on_end: "Callable[[Pipe], None]"
    _items: deque[bytes] = field(default_factory=deque, init=False)
    _held: list[bytes] = field(default_factory=list, init=False)
    _on_the_way: int = field(default=0, init=False)
    _unacknowledged: int = field(default=0, init=False)
    _bulk: int = field(default=0, init=False)
    _arrives_at: float = field(default=0.0, init=False)
    _small_arrives_at: float = field(default=0.0, init=False)
    _paced_until: float = field(default=0.0, init=False)
    _reader: "asyncio.Future[None] | None" = field(default=None, init=False)
    _writers: "deque[asyncio.Future[None]] | None" = field(default=None, init=False)
    ended: bool = field(default=False, init=False)
    """No more bytes will arrive."""
    closed: bool = field(default=False, init=False)
    """The writer has closed it."""
    broken: bool = field(default=False, init=False)
    opposite: "Pipe" = field(init=False)
    """The pipe of the other direction; set by the maker of the stream."""
    core: Core | None = field(default=None, init=False)
    """The core of the reader's machine, which pays for reads by the byte."""
    byte_seconds: float = field(default=BYTE_SECONDS, init=False)

    # Writer

    async def write(self, data: bytes) -> None:
        """Send ``data``; raises ``TransportError``."""
        if self.broken or self.closed:
            raise TransportError("the stream is closed")
        while self._on_the_way >= WINDOW_BYTES:
            await self._wait_for_room()
            if self.broken or self.closed:
                raise TransportError("the stream is closed")
        if data:
            self._send(data)
        if self._writers:
            self._wake_next_writer()

    def offer(self, data: bytes) -> bool:
        """Send ``data`` if the window has room now."""
        if self.broken or self.closed or self._on_the_way >= WINDOW_BYTES:
            return False
        self._send(data)
        return True

    async def _wait_for_room(self) -> None:
        if self._writers is None:
            self._writers = deque()
        future = self._loop.create_future()
        self._writers.append(future)
        try:
            await future
        except asyncio.CancelledError:
            self._wake_next_writer()
            raise

    def _wake_next_writer(self) -> None:
        """Wake the longest-waiting writer; it wakes the next one."""
        writers = self._writers
        while writers and self._on_the_way < WINDOW_BYTES:
            future = writers.popleft()
            if not future.done():
                future.set_result(None)
                return

    def close(self) -> None:
        """Close the write side; idempotent."""
        if not self.closed and not self.broken:
            self.closed = True
            self._send(_END)

    def _send(self, data: bytes) -> None:
        size = len(data)
        self._on_the_way += size
        self._sent.sent += size
        now = self._loop.now
        way = self._way
        if size <= SMALL_BYTES and not self._bulk:
            passed = way.up.pass_small(now, size)
            arrives = passed + way.delay() + size / way.down.bytes_per_second
            # Not before an earlier write that was retransmitted.
            self._arrives_at = arrives = max(arrives, self._arrives_at)
            self._small_arrives_at = self._loop.call_about(arrives, self._arrive, data)
            return
        self._bulk += 1
        begins = max(now, way.up.free_at)
        passed = way.up.pass_bulk(now, now, size)
        if way.pace_bytes_per_second:
            self._paced_until = max(self._paced_until, now) + size / way.pace_bytes_per_second
            passed = max(passed, self._paced_until)
        delay = way.delay()
        arrives = max(passed + delay, self._arrives_at, self._small_arrives_at)
        self._arrives_at = arrives
        self._loop.call_at(arrives, self._come_in, data, begins + delay)

    def _come_in(self, data: bytes, begins: float) -> None:
        """Pass a large write through the receiver's line."""
        now = self._loop.now
        passed = self._way.down.pass_bulk(begins, now, len(data))
        if passed <= now:
            self._bulk_arrive(data)
        else:
            self._arrives_at = max(self._arrives_at, passed)
            self._loop.call_at(passed, self._bulk_arrive, data)

    def _bulk_arrive(self, data: bytes) -> None:
        self._bulk -= 1
        self._arrive(data)

    # Reader

    def _arrive(self, data: bytes) -> None:
        if self.broken:
            return
        if self._held or self._way.cut:
            self._held.append(data)
            return
        if data is _END:
            self.end()
            return
        self._received.received += len(data)
        self._items.append(data)
        self._wake_reader()

    def release(self) -> None:
        """Deliver the bytes that were held while the path was cut."""
        held, self._held = self._held, []
        for data in held:
            self._arrive(data)
        acknowledged, self._unacknowledged = self._unacknowledged, 0
        self._acknowledge(acknowledged)

    async def read(self, bytes_max: int) -> bytes:
        """Return available bytes, or the next that arrive; raises ``TransportError``."""
        items, core, waited = self._items, self.core, False
        while True:
            if items:
                if core is None:
                    break
                late_seconds = core.late_seconds or (0.0 if waited else core.turn_seconds)
                if not late_seconds:
                    break
                waited = True
                await asyncio.sleep(late_seconds)
                continue
            if self.broken:
                raise TransportError("the stream was reset")
            if self.ended:
                return b""
            if self._reader is not None:
                raise RuntimeError("two tasks read one stream")
            self._reader = future = self._loop.create_future()
            try:
                await future
            finally:
                self._reader = None
        data = items.popleft()
        size = len(data)
        if size > bytes_max:
            items.appendleft(data[bytes_max:])
            data, size = data[:bytes_max], bytes_max
        if core is not None:
            core.spend(READ_SECONDS + self.byte_seconds * size)
        self._acknowledge(size)
        return data

    async def read_exactly(self, count: int) -> bytes:
        """Return ``count`` bytes; raises ``TransportError``."""
        pieces: list[bytes] = []
        while count:
            piece = await self.read(count)
            if not piece:
                raise TransportError("the stream ended early")
            pieces.append(piece)
            count -= len(piece)
        return joined(pieces) if pieces else b""

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _acknowledge(self, count: int) -> None:
        """Return window to the writer; acknowledgements on a cut path come later."""
        if self._back.cut:
            self._unacknowledged += count
            return
        self._on_the_way -= count
        if self._writers:
            self._wake_next_writer()

    def end(self) -> None:
        """Record that the writer has closed, so no one reads the answers either."""
        self.ended = True
        self._wake_reader()
        self.opposite.closed = True
        self.opposite.wake_writers()
        self._on_end(self)

    def wake_writers(self) -> None:
        """Wake every writer that waits for room."""
        writers, self._writers = self._writers, None
        for future in writers or ():
            if not future.done():
                future.set_result(None)

    def reset(self) -> None:
        """Reset the stream: both ends learn of it at once, bytes in flight are lost."""
        self.broken = True
        self._items.clear()
        self._held.clear()
        self._wake_reader()
        self.wake_writers()


PipeMaker = Callable[
    [VirtualLoop, LinkPath, LinkPath, LineMeter, LineMeter, Callable[[Pipe], None]], Pipe
]
"""``Pipe`` itself, or the maker of an observed one."""


class SimStream:
    """The ``Stream`` port: one end of two pipes."""

    __slots__ = ("_peer", "incoming", "offer", "outgoing", "read", "read_exactly", "write")

    def __init__(self, peer: PeerId, outgoing: Pipe) -> None:
        self._peer = peer
        self.incoming = incoming = outgoing.opposite
        self.outgoing = outgoing
        # Bound here, not delegated: saves a coroutine on every call of the busiest port.
        self.read = incoming.read
        self.read_exactly = incoming.read_exactly
        self.write = outgoing.write
        self.offer = outgoing.offer

    @property
    def peer(self) -> PeerId:
        """The other end."""
        return self._peer

    async def close(self) -> None:
        """Close both directions; the other end reads the end after all written bytes."""
        self.outgoing.close()
