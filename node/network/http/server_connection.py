"""Server connection: uvicorn's, with a deadline for each wait for the client.

uvicorn bounds the head size (``h11_max_incomplete_event_size``) and idle connections
(``timeout_keep_alive``). It has no deadline for the rest of a head, for a stalled reader, or for
unsent data on close. It limits connections and tasks in total (``limit_concurrency``), not per
address. This module adds both.
"""

import asyncio
import logging
import os
from functools import partial
from typing import Any, cast

from h11 import Data, LocalProtocolError
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from node.network.http.range_response import BODY
from node.network.http.rate_limit import HttpRateLimiter
from node.storage import files
from node.storage.files import FilePart

_quiet = logging.getLogger("node.network.http.uvicorn")
_quiet.disabled = True
"""uvicorn logs a warning per invalid request, of which a client can send a thousand per second."""

_REFUSAL = b"HTTP/1.1 %s\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO_ROOM = _REFUSAL % b"503 Service Unavailable"
TOO_MANY = _REFUSAL % b"429 Too Many Requests"

_MEASURED_BYTES = 1024
"""Input is passed in parts: h11 checks the size of incomplete heads only, so a head that arrives in
one part has no limit."""


class ServerConnection(H11Protocol):
    """A connection that ``rate_limiter`` admits, or answers with a refusal."""

    def __init__(self, rate_limiter: HttpRateLimiter, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.logger = _quiet
        self._rate_limiter = rate_limiter
        self._limits = rate_limiter.limits
        self._address = ""
        self._entered = False
        self._between = False  # idle between two requests
        self._expiry: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # paused unless the buffer is empty
        self._address = self.client[0] if self.client else ""
        self._entered = self._rate_limiter.enter(self._address)
        self._expire_in(self._limits.head_seconds)
        if not self._entered:
            self._turn_away(NO_ROOM)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._expire_in(None)
        if self._entered:
            self._entered = False
            self._rate_limiter.leave(self._address)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _MEASURED_BYTES):
            if self.transport.is_closing():
                return
            if self._between:
                self._between = False
                self._expire_in(self._limits.head_seconds)
            super().data_received(data[start : start + _MEASURED_BYTES])

    @override
    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is before:
            return
        scope = cast("dict[str, Any]", self.cycle.scope)
        scope["extensions"] = {BODY: partial(self._send, self.cycle)}
        if not self._rate_limiter.may_ask(self._address, self.loop.time()):
            self._turn_away(TOO_MANY)
        elif not self.flow.write_paused:
            self._expire_in(None)  # the response has its own deadlines

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; h11 forbids a response after some, such as HEAD."""
        try:
            super().send_400_response(msg)
        except LocalProtocolError:
            self.transport.abort()

    @override
    def on_response_complete(self) -> None:
        self._between = True
        self._expire_in(self._limits.stall_seconds)  # for unsent data; keep-alive is shorter
        super().on_response_complete()

    @override
    def pause_writing(self) -> None:
        self._expire_in(self._limits.stall_seconds)
        super().pause_writing()

    @override
    def resume_writing(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._expire_in(None)
        super().resume_writing()

    async def _send(self, cycle: RequestResponseCycle, part: bytes | FilePart) -> int:
        """Send part of a body up to the socket's capacity; return the number of bytes sent."""
        if self.flow.write_paused:
            await self.flow.drain()
        if cycle.disconnected:
            raise ConnectionResetError("the client disconnected")
        sent, rest = await self._send_file(part) if isinstance(part, FilePart) else (0, part)
        count = sent + len(rest)
        if not cycle.disconnected:
            # h11 counts bytes that bypass it (h11 documentation, "sendfile").
            self.conn.send_with_data_passthrough(Data(data=cast("bytes", part[:count])))
            self.transport.write(rest)
        return count

    async def _send_file(self, part: FilePart) -> tuple[int, bytes]:
        """Send directly from the file; the transport's buffer must be empty."""
        assert not self.transport.get_write_buffer_size()
        # The transport may close its descriptor, and another connection may reuse the number.
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            return await files.uninterrupted(files.in_thread(part.send, descriptor))
        finally:
            os.close(descriptor)

    def _turn_away(self, refusal: bytes) -> None:
        self._expire_in(self._limits.head_seconds)
        self.transport.write(refusal)
        self.transport.close()
        if self.cycle is not None:  # discard its response
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _expire_in(self, seconds: float | None) -> None:
        """Abort the connection after ``seconds``; None cancels the deadline."""
        if self._expiry is not None:
            self._expiry.cancel()
        expire = self.transport.abort
        self._expiry = None if seconds is None else self.loop.call_later(seconds, expire)
