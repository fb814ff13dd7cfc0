"""HTTP client for ranges of blobs: the ``HttpRanges`` port.

A peer can announce any port, so the server is untrusted. The client dials only the host from which
the peer is connected: no peer can direct requests at a third party. It resolves no names, follows
no redirects, and accepts only the exact range. Callers bound the number of requests and their wait.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import override

from node.network.blobs.wire import BlobRefusedError, BlobStatus
from node.network.http.client_connection import ClientConnection
from node.network.streams.deadline import loop_time, within
from protocol.core.types import Digest, PeerId
from protocol.messages import SYSTEM_PORTS
from roles.ports.transport import HttpRanges, RangeBody, TransportError

CONNECT_SECONDS = 1.0
"""A guess: several round trips on any link. After it, the request uses the existing stream."""

HEAD_SECONDS = 8.0
IDLE_SECONDS = 10.0
"""Reuse limit of an idle connection; servers close theirs after 15 s."""

IDLE_PER_ADDRESS = 8
IDLE_MAX = 64

_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3})(?: [\x20-\x7e]*)?")
_NUMBER = re.compile(rb"[0-9]{1,19}")
_REFUSALS = {404: BlobStatus.UNKNOWN, 429: BlobStatus.BUSY, 503: BlobStatus.BUSY}

Address = tuple[str, int]


class HttpClient(HttpRanges):
    """Requests ranges at the host that ``host_of`` returns: the remote end of the connection."""

    def __init__(self, host_of: Callable[[PeerId], str | None]) -> None:
        self._host_of = host_of
        self._idle: dict[Address, list[ClientConnection]] = {}

    @override
    def reaches(self, peer: PeerId) -> bool:
        return self._host_of(peer) is not None

    @override
    async def open(
        self, peer: PeerId, port: int, digest: Digest, offset: int, length: int, *, wait: bool
    ) -> RangeBody:
        host = self._host_of(peer)
        if host is None:
            raise TransportError(f"no IPv4 connection to {peer}")
        if port < SYSTEM_PORTS:
            raise TransportError(f"port {port} is a system port")
        address = host, port
        request = _request(address, digest, offset, length, wait=wait)
        while True:
            link = self._take_idle(address)
            fresh = link is None
            if link is None:
                link = await _connect(address)
            try:
                keeps = await within(HEAD_SECONDS, _ask(link, request, offset, length))
            except (OSError, RuntimeError) as error:  # uvloop: RuntimeError on a handle just closed
                link.abort()
                if fresh:
                    raise TransportError(f"the connection broke: {error}") from error
                continue  # the server had closed the idle connection
            except BlobRefusedError:
                self.put_back(address, link)  # a body, if any, makes it unusable
                raise
            except BaseException:
                link.abort()
                raise
            return _Body(self, address, link, length, keeps=keeps)

    def put_back(self, address: Address, link: ClientConnection) -> None:
        """Keep a connection for reuse, if there is room."""
        links = self._idle.setdefault(address, [])
        if len(links) < IDLE_PER_ADDRESS and sum(map(len, self._idle.values())) < IDLE_MAX:
            link.rest()
            links.append(link)
        else:
            link.abort()

    def close(self) -> None:
        """Close all idle connections."""
        for links in self._idle.values():
            for link in links:
                link.abort()
        self._idle.clear()

    def _take_idle(self, address: Address) -> ClientConnection | None:
        now = loop_time()
        for other in list(self._idle):
            links = self._idle[other]
            fresh = [link for link in links if now < link.idle_since + IDLE_SECONDS]
            usable = [link for link in fresh if link.is_clean]
            for link in links:
                if link not in usable:
                    link.abort()
            self._idle[other] = usable
            if not usable:
                del self._idle[other]
        links = self._idle.get(address, [])
        return links.pop() if links else None


@dataclass(slots=True)
class _Body(RangeBody):
    client: HttpClient
    address: Address
    link: ClientConnection
    left: int
    keeps: bool = field(kw_only=True)
    closed: bool = False
    piece: bytearray = field(default_factory=bytearray)
    """Reused buffer: 1 GB causes 8,000 page faults with it, and 40,000 with fresh memory."""

    @override
    async def read_exactly(self, count: int) -> bytes | bytearray:
        if len(self.piece) != count:
            self.piece = bytearray(count)
        try:
            await self.link.read_into(self.piece)
        except OSError as error:
            raise TransportError(f"the response body ended early: {error}") from error
        self.left -= count
        return self.piece

    @override
    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.keeps and not self.left:
            self.client.put_back(self.address, self.link)
        else:
            self.link.abort()


async def _connect(address: Address) -> ClientConnection:
    loop = asyncio.get_running_loop()
    try:
        _, link = await within(CONNECT_SECONDS, loop.create_connection(ClientConnection, *address))
    except OSError as error:
        raise TransportError(f"no connection to {address[0]}:{address[1]}: {error}") from error
    return link


def _request(address: Address, digest: Digest, offset: int, length: int, *, wait: bool) -> bytes:
    lines = [
        f"GET /blobs/{digest.hex()} HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        f"Range: bytes={offset}-{offset + length - 1}",
        *(["Prefer: wait"] if wait else []),
        "User-Agent: prime-node",
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


async def _ask(link: ClientConnection, request: bytes, offset: int, length: int) -> bool:
    """Send a request and read the response head; return whether the connection stays open.

    Raises ``TransportError``, ``BlobRefusedError``; ``OSError`` when the connection breaks first.
    """
    link.write(request)
    try:
        head = await link.read_head()
    except ValueError as error:
        raise TransportError(str(error)) from error
    return check_head(head, offset, length)


def check_head(head: bytes, offset: int, length: int) -> bool:
    """Require a response with exactly the range; return whether the connection stays open."""
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise TransportError(f"not an HTTP/1.1 response: {first[:40]!r}")
    code = int(status[1])
    if code in _REFUSALS:
        raise BlobRefusedError(_REFUSALS[code])
    if code != 206:
        raise TransportError(f"status {code}")
    headers: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers.setdefault(name.lower(), []).append(value.strip(b" \t"))
    if b"transfer-encoding" in headers or b"content-encoding" in headers:
        raise TransportError("the response body is encoded")
    if headers.get(b"content-length") != [b"%d" % length]:
        raise TransportError("the response has another length than requested")
    place, _, total = (headers.get(b"content-range") or [b""])[0].partition(b"/")
    if place != b"bytes %d-%d" % (offset, offset + length - 1) or not _NUMBER.fullmatch(total):
        raise TransportError("the response has another range than requested")
    return b"close" not in [value.lower() for value in headers.get(b"connection", [])]
