"""Weights server in the daemon's event loop."""

import logging
import socket
from functools import partial
from typing import Any

import uvicorn

from node.local.http_server import EmbeddedServer
from node.network.http.application import Application
from node.network.http.rate_limit import ConnectionLimits, HttpRateLimiter
from node.network.http.server_connection import ServerConnection

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8192
"""Maximum head of a request; ours has 200 bytes."""

IDLE_SECONDS = 15
"""Keep-alive between requests; a guess."""


class WeightsServer:
    """Serves on ``listener`` in the running loop until ``stop``."""

    def __init__(
        self,
        listener: socket.socket,
        application: Application,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._listener = listener
        self.rate_limiter = HttpRateLimiter(limits or ConnectionLimits())
        make: Any = partial(ServerConnection, self.rate_limiter)  # uvicorn calls it like a class
        self._server = EmbeddedServer(
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

    async def start(self) -> None:
        """Start to serve."""
        await self._server.begin(self._listener, "weights-http")
        log.info("weights by HTTP on port %d", self._listener.getsockname()[1])

    async def stop(self) -> None:
        """Abort all connections within a few seconds; idempotent."""
        await self._server.end(at_once=True)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
