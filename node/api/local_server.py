"""HTTP application and server for clients on this machine only."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import BaseRoute

from node.api.pages import Guard, pages
from node.api.v1.recording import Recording, read_recording
from node.api.v1.routes import api_v1
from node.api.v1.source import DataSource
from node.local.datadir import API_HOST
from node.local.http_server import EmbeddedServer
from node.local.sockets import listen

HOST_NAMES = [API_HOST, "localhost"]
"""Accepted Host headers, against DNS rebinding by a web page."""

REQUESTS_MAX = 64
"""Concurrent requests; further ones get 503."""


def web_routes(source: DataSource) -> list[BaseRoute]:
    """Return the routes of the web pages and of ``/api/v1``."""
    return [api_v1(source), pages()]


def guarded(routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application with host check and ``Guard`` around the routes."""
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOST_NAMES, www_redirect=False),
            Middleware(Guard),
        ],
    )


def local_server(app: Starlette) -> EmbeddedServer:
    """Return a uvicorn server for an application; the caller provides the socket."""
    return EmbeddedServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            limit_concurrency=REQUESTS_MAX,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )


async def serve_recording(directory: Path, port: int, told: Callable[[int], None]) -> None:
    """Serve the recording in a directory until cancelled; call ``told`` with the port.

    Raises ``NodeError``.
    """
    source = Recording(read_recording(directory))
    listener = listen(
        API_HOST,
        port,
        failure="cannot serve the report",
        remedy="choose another --port, or 0 for a free one",
    )
    server = local_server(guarded(web_routes(source)))
    try:
        await server.begin(listener, "recording")
        told(listener.getsockname()[1])
        await asyncio.Event().wait()
    finally:
        await server.end(at_once=True)
