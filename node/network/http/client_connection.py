"""Client connection: reads heads into a small buffer, bodies directly into the caller's.

asyncio's streams copy received data three times; for 1 GB that costs more than verifying it.
Reading is paused without a pending read, so unread data stays in the kernel.
"""

import asyncio
from typing import cast

from typing_extensions import override

from node.network.streams.deadline import loop_time

HEAD_BYTES_MAX = 4096
"""Maximum head of a response; ours has 300 bytes."""

_END = b"\r\n\r\n"


class ClientConnection(asyncio.BufferedProtocol):
    """One connection; all methods raise ``OSError`` after it broke or ended."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES_MAX)
        self._here = 0  # bytes in the head buffer
        self._target: memoryview | None = None
        self._filled = 0
        self._progress = asyncio.Event()
        self._lost: Exception | None = None
        self.idle_since = 0.0

    @property
    def is_clean(self) -> bool:
        """True if the connection is open and no unexpected bytes arrived."""
        return self._lost is None and not self._here

    def write(self, data: bytes) -> None:
        """Send a small request without waiting."""
        if self._lost is not None or self._transport is None:
            raise ConnectionResetError("the idle connection was closed")
        self._transport.write(data)

    async def read_head(self) -> bytes:
        """Return all bytes up to an empty line; raises ``ValueError`` above the limit."""
        while (end := self._head.find(_END, 0, self._here)) < 0:
            if self._here == HEAD_BYTES_MAX:
                raise ValueError("response head too long")
            await self._wait()
        head, rest = bytes(self._head[:end]), self._head[end + len(_END) : self._here]
        self._head[: len(rest)] = rest
        self._here = len(rest)
        self._pause()
        return head

    async def read_into(self, data: bytearray) -> None:
        """Fill ``data`` with the next bytes."""
        count = len(data)
        self._filled = min(count, self._here)
        data[: self._filled] = self._head[: self._filled]
        self._head[: self._here - self._filled] = self._head[self._filled : self._here]
        self._here -= self._filled
        self._target = memoryview(data)
        try:
            while self._filled < count:
                await self._wait()
        finally:
            self._target = None

    def rest(self) -> None:
        """Mark the connection as idle: any byte received from now on makes it unusable."""
        self.idle_since = loop_time()
        if self._transport is not None and self._lost is None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Abort the connection; idempotent."""
        self._lost = self._lost or ConnectionAbortedError("aborted locally")
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None
        self._progress.clear()
        self._transport.resume_reading()
        await self._progress.wait()

    def _pause(self) -> None:
        if self._transport is not None and self._lost is None:
            self._transport.pause_reading()

    # Callbacks of the transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is not None and self._filled < len(self._target):
            return self._target[self._filled :]
        if self._here == HEAD_BYTES_MAX:  # unexpected bytes are discarded
            return memoryview(bytearray(1))
        return memoryview(self._head)[self._here :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self._target is None:
            self._here = min(self._here + nbytes, HEAD_BYTES_MAX)
            full = self._here == HEAD_BYTES_MAX
        else:
            self._filled += nbytes
            full = self._filled == len(self._target)
        if full:
            self._pause()
        if full or self._target is None:
            self._progress.set()

    @override
    def eof_received(self) -> bool:
        self._end(ConnectionResetError("the other end closed"))
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the connection ended"))

    def _end(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._progress.set()
