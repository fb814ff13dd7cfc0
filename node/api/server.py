"""The daemon's side of the control API."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from node.api.local_server import guarded, local_server, web_routes
from node.api.metrics import NodeMetrics
from node.api.status import NodeStatus
from node.api.v1.source import DataSource
from node.api.why import Why
from node.local.datadir import API_HOST, DataDir, last_api_port, store_api_endpoint
from node.local.errors import NodeError
from node.local.ports import listen

log = logging.getLogger(__name__)


class ControlServer:
    """Serves the control API from the running loop until ``stop``.

    ``status`` and ``why`` are called in the loop, once per request; ``source`` is what pages read,
    and without it there are none. With ``datadir`` the port is written to its ``api.json``, where
    the commands look for it. ``port`` 0 takes a free one: that of the last time if it still is, so
    that a page which is open finds the node again.
    """

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        why: Callable[[], Why],
        port: int = 0,
        *,
        datadir: DataDir | None = None,
        source: DataSource | None = None,
    ) -> None:
        self._port = port
        self._datadir = datadir
        self._server = local_server(application(status, why, source))

    async def start(self) -> int:
        """Begin to serve and return the port; raises ``NodeError`` when it is taken."""
        listener = self._listener()
        port: int = listener.getsockname()[1]
        await self._server.begin(listener, "control-api")
        if self._datadir is not None:
            await asyncio.to_thread(store_api_endpoint, self._datadir, port)
        log.info("control API on http://%s:%d", API_HOST, port)
        return port

    def _listener(self) -> socket.socket:
        last = last_api_port(self._datadir) if self._datadir is not None and not self._port else 0
        if last:
            with contextlib.suppress(NodeError):  # somebody else has it by now
                return _listen(last)
        return _listen(self._port)

    async def stop(self) -> None:
        """Answer what was asked, then close, within a few seconds; idempotent."""
        if self._server.serves and self._datadir is not None:
            with contextlib.suppress(OSError):
                self._datadir.api.unlink(missing_ok=True)
        await self._server.end()


def _listen(port: int) -> socket.socket:
    return listen(
        API_HOST,
        port,
        failure="cannot open the control API",
        remedy="choose another --api-port, or 0 for a free one",
    )


def application(
    status: Callable[[], NodeStatus], why: Callable[[], Why], source: DataSource | None = None
) -> Starlette:
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
    routes: list[BaseRoute] = [
        Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()
    ]
    return guarded([*routes, *web_routes(source)] if source is not None else routes)
