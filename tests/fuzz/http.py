"""HTTP on loopback: the weights server, its client, and the control API, byte by byte."""

import asyncio
import logging
import shutil
import socket
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from node.api.server import ControlServer
from node.network.http.client import HttpClient
from node.network.http.rate_limit import ConnectionLimits
from protocol.core.crypto import digest
from protocol.core.types import PeerId
from roles.ports.transport import TransportError
from tests.fuzz.mutation import TEXTS, mutated_bytes
from tests.fuzz.target import INPUT_BYTES_MAX, BrokenBoundError, Target
from tests.node.api.status_examples import EXPLAINED, STATUS
from tests.node.network.http.faces import BLOB, DATA, HOST, WEIGHTS, face, request

PATIENCE_SECONDS = 0.05
"""Timeout for the response to an input that may be no request."""

END_SECONDS = 20.0
RANGE_BYTES = 100

PATHS = (
    *(BLOB, "/distribution.txt", "/data1.bin", "/v0/shard_00001.bin", "/v9999999/shard_99999.bin"),
    *(
        "/status",
        "/peers",
        "/why",
        "/metrics",
        "/healthz",
        "/readyz",
        "/",
        "/%00",
        "*",
        "//",
        "/../x",
    ),
)
HEADERS = (
    *(
        "Range: bytes=0-99",
        "Range: bytes=-1",
        "Range: bytes=5-1",
        "Prefer: wait, x",
        "Prefer: wait=9",
    ),
    *(
        "If-None-Match: *",
        'If-Range: "x"',
        "Content-Length: 0",
        "Content-Length: 5",
        "Expect: 100-continue",
    ),
    *(
        "Transfer-Encoding: chunked",
        "Connection: upgrade",
        "Upgrade: websocket",
        "Connection: close",
    ),
    *("Host: 127.0.0.1", "Host: evil.example", "Accept-Encoding: gzip", "X: " + "y" * 9000),
)


class _Errors(logging.Handler):
    """Collects the errors that a server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


HEARD = ("uvicorn.error", "node.network.http.uvicorn", "node.network.http.application")
"""Loggers of server errors."""


class HttpSession:
    """A server in its own event loop; an input's first byte tells whether the client waits."""

    EXPECTED: str | None = None
    """Messages that a server may log for an input."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._errors = _Errors()
        self._loggers = {
            logger: (logger.disabled, logger.propagate) for logger in map(logging.getLogger, HEARD)
        }
        for logger in self._loggers:
            logger.disabled = logger.propagate = False
            logger.addHandler(self._errors)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._directory = Path(tempfile.mkdtemp())
        self._stack = AsyncExitStack()
        self.port = self.run(self._start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop, within a deadline."""

        async def within() -> Any:
            async with asyncio.timeout(END_SECONDS):
                return await work

        return self._loop.run_until_complete(within())

    async def _start(self) -> int:
        raise NotImplementedError

    def _failed(self, _loop: Any, context: dict[str, Any]) -> None:
        self._errors.found.append(f"{context['message']}: {context.get('exception')!r}")

    def draw(self, rng: Random) -> bytes:
        """Return one or two requests, or malformed ones."""
        path = rng.choice(self._paths) if rng.random() < 0.8 else "/" + rng.choice(TEXTS)
        lines = rng.sample(HEADERS, rng.randrange(5))
        method = rng.choice(("GET", "GET", "HEAD", "POST", "OPTIONS", "get"))
        if path in ("/data1.bin", BLOB) and method == "GET":
            lines.append("Range: bytes=0-999")
        data = request(path, *lines, method=method).replace(b"Host: x", b"Host: 127.0.0.1")
        data *= 1 + (rng.random() < 0.1)
        if rng.random() < 0.6:
            data = mutated_bytes(data, rng, [data], INPUT_BYTES_MAX - 1)
        return bytes((rng.random() < 0.02,)) + data

    def take(self, data: bytes) -> bool:
        answered = bool(self.run(self._exchanged(data[1:], wait=data[:1] == b"\1")))
        found, self._errors.found = self._errors.found, []
        for error in found:
            if self.EXPECTED is None or self.EXPECTED not in error:
                raise BrokenBoundError(error)
        return answered

    async def _exchanged(self, data: bytes, *, wait: bool) -> bool:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        with suppress(OSError):
            writer.write(data)
            if not wait:
                writer.write_eof()
        count = 0
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS if wait else END_SECONDS / 2):
                while piece := await reader.read(1 << 16):
                    count += len(piece)
        writer.transport.abort()
        return count > 0

    def check(self) -> None:
        """Check that no state of the clients is left."""
        self.run(asyncio.sleep(0.2))
        left = len(asyncio.all_tasks(self._loop))
        if left > 8:
            raise BrokenBoundError(f"{left} tasks of clients that have left")

    def close(self) -> None:
        for logger, (disabled, propagate) in self._loggers.items():
            logger.removeHandler(self._errors)
            logger.disabled, logger.propagate = disabled, propagate
        self.run(self._stack.aclose())
        self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class WeightsFace(HttpSession):
    """The weights server without rate limits."""

    async def _start(self) -> int:
        limits = ConnectionLimits(requests_per_second=1e9, head_seconds=1.0, stall_seconds=5.0)
        served = await self._stack.enter_async_context(face(self._directory, connections=limits))
        await served.blobs.put(DATA, WEIGHTS)
        return served.port


class ControlApi(HttpSession):
    """The control API, open to this machine only."""

    EXPECTED = "LocalProtocolError"
    """uvicorn logs this for trailing bytes that are no request, and continues."""

    async def _start(self) -> int:
        server = ControlServer(lambda: STATUS, lambda: EXPLAINED)
        port = await server.start()
        self._stack.push_async_callback(server.stop)
        return port


class HttpAnswers(HttpSession):
    """The weights client, whose server responds with an input."""

    async def _start(self) -> int:
        self._client = HttpClient(lambda _peer: HOST)
        self._answer, self._wait = b"", False
        server = await asyncio.start_server(self._served, HOST, 0, family=socket.AF_INET)
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer)
            if self._wait:
                await asyncio.sleep(PATIENCE_SECONDS)
            await writer.drain()
        writer.close()

    def draw(self, rng: Random) -> bytes:
        head = (
            b"HTTP/1.1 206 Partial Content\r\ncontent-length: 100\r\nconnection: %b\r\n"
            b"content-range: bytes 0-99/1000\r\n\r\n" % rng.choice((b"close", b"keep-alive"))
        )
        data = head + bytes(rng.choice((RANGE_BYTES, RANGE_BYTES, 0, 99, 101, 9000)))
        if rng.random() < 0.8:
            data = mutated_bytes(data, rng, [head], INPUT_BYTES_MAX - 1)
        return bytes((rng.random() < 0.02,)) + data

    async def _exchanged(self, data: bytes, *, wait: bool) -> bool:
        self._answer, self._wait = data, wait
        try:
            body = await self._client.open(
                PeerId("peer"), self.port, digest(b""), 0, RANGE_BYTES, wait=True
            )
            try:
                return len(await body.read_exactly(RANGE_BYTES)) == RANGE_BYTES
            finally:
                await body.close()
        except TransportError:
            return False
        finally:
            self._client.close()  # a connection of its own for each input


TARGETS = (
    Target("serve-http", lambda: WeightsFace(PATHS), ("http:server",), lasting=5000),
    Target("ask-http", lambda: HttpAnswers(PATHS), ("http:client",), lasting=5000),
    Target("serve-api", lambda: ControlApi(PATHS), ("http:api",), lasting=5000),
)
