"""ASGI application of the weights server: admits requests and sends bodies within limits."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.network.http.catalog import Catalogue
from node.network.http.range_response import BODY, Header, answer
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.storage.files import FilePart
from roles.ports.transport import TransportError

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SendPart = Callable[[bytes | FilePart], Awaitable[int]]

RETRY_SECONDS = 1
"""``Retry-After`` of a 503 response; shardcast's clients wait 2 s."""

METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Concurrent responses; guesses. A response buffers at most 64 KiB of a file.

    ``per_address`` suits shardcast's clients, which keep ten in flight, and ours with eight.
    """

    per_address: int = 16
    total: int = 64
    stall_seconds: float = 60.0
    """For the next piece of a blob that is being downloaded, as on streams."""


class Application:
    """Serves a catalogue below ``cap``, and counts the bytes in ``sent``.

    ``trusted`` returns whether a trusted peer is connected from an address.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        cap: UploadScheduler,
        sent: TrafficStats,
        limits: ResponseLimits | None = None,
        trusted: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        self._catalogue = catalogue
        self._cap = cap
        self._sent = sent
        self._limits = limits or ResponseLimits()
        self._trusted = trusted
        self._serving: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; closes the connection of a response that cannot be completed."""
        address = scope["client"][0] if scope["client"] else ""
        full = self._serving.total() >= self._limits.total
        if full or self._serving[address] >= self._limits.per_address:
            await _refuse(send, 503, (b"retry-after", b"%d" % RETRY_SECONDS))
            return
        self._serving[address] += 1
        try:
            await _until_disconnected(self._serve(scope, address, send), receive)
        except (TransportError, LookupError, OSError) as error:
            log.info("response to %s aborted: %s", address, error)
        finally:
            self._serving[address] -= 1
            if not self._serving[address]:
                del self._serving[address]

    async def _serve(self, scope: Scope, address: str, send: Send) -> None:
        headers = scope["headers"]
        if scope["method"] not in METHODS:
            await _refuse(send, 405, (b"allow", ", ".join(METHODS).encode()))
            return
        if _has_body(headers):
            await _refuse(send, 413, (b"connection", b"close"))
            return
        wait = any(key == b"prefer" and _prefers_wait(value) for key, value in headers)
        resource = await self._catalogue.find(scope["raw_path"], wait=wait)
        if resource is None:
            await _refuse(send, 404)
            return
        reply = answer(resource, headers)
        await send(_start(reply.status, reply.headers))
        length = 0 if scope["method"] == "HEAD" else reply.length
        if length:
            body = resource.read(reply.offset, length)
            await self._send_body(body, length, address, scope["extensions"][BODY])
        await send(_body(b"", more=False))

    async def _send_body(
        self,
        body: AsyncGenerator[bytes | FilePart, None],
        length: int,
        address: str,
        send: SendPart,
    ) -> None:
        part_bytes, trusted = self._cap.piece_bytes_max, self._trusted(address)
        async with aclosing(body) as pieces:
            while length:
                piece = await within(self._limits.stall_seconds, anext(pieces, b""))
                if not piece:
                    raise LookupError("the file ended early")
                for start in range(0, len(piece), part_bytes):
                    part = piece[start : start + part_bytes]
                    await self._cap.take(len(part), trusted=trusted)
                    length -= len(part)
                    while part:
                        count = await send(part)
                        self._sent.note(
                            address, BlobKind.WEIGHTS, BlobTransport.HTTP, count, loop_time()
                        )
                        part = part[count:]


async def _until_disconnected(serving: Any, receive: Receive) -> None:
    """Serve until the client disconnects: uvicorn silently drops anything sent later."""
    task = asyncio.ensure_future(serving)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for one in (task, leaving):
            one.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _has_body(headers: list[Header]) -> bool:
    return any(
        key == b"transfer-encoding" or (key == b"content-length" and value != b"0")
        for key, value in headers
    )


def _prefers_wait(value: bytes) -> bool:
    return any(part.strip().split(b"=")[0].lower() == b"wait" for part in value.split(b","))


def _start(status: int, headers: tuple[Header, ...]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def _refuse(send: Send, status: int, *headers: Header) -> None:
    await send(_start(status, ((b"content-length", b"0"), *headers)))
    await send(_body(b"", more=False))
