"""HTTP application and server for clients on this machine only."""

from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import BaseRoute

from node.api.pages import Guard, pages
from node.api.v1.routes import api_v1
from node.api.v1.source import DataSource
from node.local.datadir import API_HOST
from node.local.http_server import EmbeddedServer

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
