"""An application for browsers and programs of this machine alone, and what serves it."""

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
"""Accepted in the Host header: a web page that rebinds its name to 127.0.0.1 sends its own."""

REQUESTS_MAX = 64
"""At once; more are answered 503."""


def web_routes(source: DataSource) -> list[BaseRoute]:
    """Return the pages and what they read."""
    return [api_v1(source), pages()]


def guarded(routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application with these routes."""
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOST_NAMES, www_redirect=False),
            Middleware(Guard),
        ],
    )


def local_server(app: Starlette) -> EmbeddedServer:
    """Return what serves an application on a socket that it is given."""
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
