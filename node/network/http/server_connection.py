"""One connection of the weights server: uvicorn's, with a deadline for every wait for the client.

uvicorn bounds the head of a request (``h11_max_incomplete_event_size``) and closes connections that
idle between requests (``timeout_keep_alive``). It waits for ever for the rest of a head, for a
reader that takes nothing, and for what is unsent when it closes; and it counts connections and
tasks in all (``limit_concurrency``), not per address. All of that is here.
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
"""uvicorn warns of each bad request, and whoever wants can send a thousand a second."""

_REFUSAL = b"HTTP/1.1 %s\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO_ROOM = _REFUSAL % b"503 Service Unavailable"
TOO_MANY = _REFUSAL % b"429 Too Many Requests"

_MEASURED_BYTES = 1024
"""h11 measures heads that have not ended: one that comes at once, whatever its length, it takes."""


class ServerConnection(H11Protocol):
    """A connection that ``doorkeeper`` admits, or answers with a refusal."""

    def __init__(self, doorkeeper: HttpRateLimiter, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.logger = _quiet
        self._doorkeeper = doorkeeper
        self._limits = doorkeeper.limits
        self._address = ""
        self._entered = False
        self._between = False  # requests, with nothing of the next one here
        self._expiry: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # it is paused while it holds anything
        self._address = self.client[0] if self.client else ""
        self._entered = self._doorkeeper.enter(self._address)
        self._expire_in(self._limits.head_seconds)
        if not self._entered:
            self._turn_away(NO_ROOM)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._expire_in(None)
        if self._entered:
            self._entered = False
            self._doorkeeper.leave(self._address)
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
        if not self._doorkeeper.may_ask(self._address, self.loop.time()):
            self._turn_away(TOO_MANY)
        elif not self.flow.write_paused:
            self._expire_in(None)  # what the answer waits for has deadlines of its own

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer what is no request; after some, such as a HEAD, h11 lets nobody say why."""
        try:
            super().send_400_response(msg)
        except LocalProtocolError:
            self.transport.abort()

    @override
    def on_response_complete(self) -> None:
        self._between = True
        self._expire_in(self._limits.stall_seconds)  # for what is unsent; idling ends before
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
        """Send what the client takes at once of a part of a body; return how much that is."""
        if self.flow.write_paused:
            await self.flow.drain()
        if cycle.disconnected:
            raise ConnectionResetError("the client left")
        sent, rest = await self._send_file(part) if isinstance(part, FilePart) else (0, part)
        count = sent + len(rest)
        if not cycle.disconnected:
            # h11 counts what it does not see (its documentation, "sendfile").
            self.conn.send_with_data_passthrough(Data(data=cast("bytes", part[:count])))
            self.transport.write(rest)
        return count

    async def _send_file(self, part: FilePart) -> tuple[int, bytes]:
        """Send from where it is; what the transport held would come before."""
        assert not self.transport.get_write_buffer_size()
        # The transport may close its own descriptor, whose number another connection gets then.
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            return await files.uninterrupted(files.in_thread(part.send, descriptor))
        finally:
            os.close(descriptor)

    def _turn_away(self, refusal: bytes) -> None:
        self._expire_in(self._limits.head_seconds)
        self.transport.write(refusal)
        self.transport.close()
        if self.cycle is not None:  # its answer has nobody to go to
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _expire_in(self, seconds: float | None) -> None:
        """Break the connection off after ``seconds``, unless told otherwise before."""
        if self._expiry is not None:
            self._expiry.cancel()
        expire = self.transport.abort
        self._expiry = None if seconds is None else self.loop.call_later(seconds, expire)
