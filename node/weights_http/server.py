"""The weights server in the daemon's loop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from node.local.errors import ExitCode, NodeError
from node.weights_http.application import Application
from node.weights_http.connection import Connection, ConnectionLimits, Doorkeeper

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8192
"""Of a request; ours takes 200."""

IDLE_SECONDS = 15
"""Between requests of one connection; a guess."""

START_SECONDS = 10.0
STOP_SECONDS = 3.0


class WeightsServer:
    """Serves on ``listener`` from the running loop until ``stop``."""

    def __init__(
        self,
        listener: socket.socket,
        application: Application,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._listener = listener
        self.doorkeeper = Doorkeeper(limits or ConnectionLimits())
        make: Any = partial(Connection, self.doorkeeper)  # uvicorn calls it like a class
        self._server = _Server(
            uvicorn.Config(
                application,
                interface="asgi3",
                http=make,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=1,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                lifespan="off",
                ws="none",
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve."""
        serving = self._server.serve([self._listener])
        self._task = asyncio.create_task(serving, name="weights-http")
        async with asyncio.timeout(START_SECONDS):
            await self._server.listening.wait()
        log.info("weights by HTTP on port %d", self._listener.getsockname()[1])

    async def stop(self) -> None:
        """Break off what is under way, within ``STOP_SECONDS``; idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._server.should_exit = self._server.force_exit = True
        _, pending = await asyncio.wait([task], timeout=STOP_SECONDS)
        for one in pending:
            one.cancel()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on a port, 0 for a free one; raises ``NodeError`` when it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise NodeError(
            f"cannot serve weights on {host}:{port}: {error.strerror}; choose another --http-port",
            ExitCode.CONFIG,
        ) from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn inside somebody else's process: no signal handlers, and it says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell."""
        await super().startup(sockets)
        self.listening.set()
