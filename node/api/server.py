"""The daemon's side of the control API."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import asdict

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.api.metrics import NodeMetrics
from node.api.status import NodeStatus
from node.api.why import Why
from node.local.datadir import API_HOST, DataDir, store_api_endpoint
from node.local.http_server import EmbeddedServer
from node.local.ports import listen

log = logging.getLogger(__name__)

HOST_NAMES = [API_HOST, "localhost"]
"""Accepted in the Host header: a web page that rebinds its name to 127.0.0.1 sends its own."""

REQUESTS_MAX = 64
"""At once; more are answered 503."""


class ControlServer:
    """Serves the control API from the running loop until ``stop``.

    ``status`` and ``why`` are called in the loop, once per request. ``port`` 0 takes a free one.
    With ``datadir`` the port is written to its ``api.json``, where the commands look for it.
    """

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        why: Callable[[], Why],
        port: int = 0,
        *,
        datadir: DataDir | None = None,
    ) -> None:
        self._port = port
        self._datadir = datadir
        self._server = EmbeddedServer(
            uvicorn.Config(
                application(status, why),
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

    async def start(self) -> int:
        """Begin to serve and return the port; raises ``NodeError`` when it is taken."""
        listener = listen(
            API_HOST,
            self._port,
            failure="cannot open the control API",
            remedy="choose another --api-port, or 0 for a free one",
        )
        port: int = listener.getsockname()[1]
        await self._server.begin(listener, "control-api")
        if self._datadir is not None:
            await asyncio.to_thread(store_api_endpoint, self._datadir, port)
        log.info("control API on http://%s:%d", API_HOST, port)
        return port

    async def stop(self) -> None:
        """Answer what was asked, then close, within a few seconds; idempotent."""
        if self._server.serves and self._datadir is not None:
            with contextlib.suppress(OSError):
                self._datadir.api.unlink(missing_ok=True)
        await self._server.end()


def application(status: Callable[[], NodeStatus], why: Callable[[], Why]) -> Starlette:
    """Return the API as an ASGI application; see the package for its paths."""
    metrics = NodeMetrics(status)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"alive": True, "pid": os.getpid()})

    async def readyz(_: Request) -> Response:
        now = status()
        ready = now.state == "ready"
        return JSONResponse(
            {"ready": ready, "state": now.state, "reason": now.reason},
            status_code=200 if ready else 503,
        )

    async def metrics_(_: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def status_(_: Request) -> Response:
        return JSONResponse(status().to_json())

    async def peers(_: Request) -> Response:
        return JSONResponse(status().peers_json())

    async def why_(_: Request) -> Response:
        return JSONResponse(asdict(why()))

    paths = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/metrics": metrics_,
        "/status": status_,
        "/peers": peers,
        "/why": why_,
    }
    return Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOST_NAMES, www_redirect=False)
        ],
    )
