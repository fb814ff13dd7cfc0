"""HTTP server of the control API."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
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
from node.local.sockets import listen

log = logging.getLogger(__name__)

_STATUS, _WHY = TypeAdapter(NodeStatus), TypeAdapter(Why)


class ControlServer:
    """Server of the control API in the running event loop.

    ``status`` and ``why`` are called in the loop, once per request. ``source`` is the data of the
    dashboard; without it there is no dashboard. With ``datadir`` the port is written to its
    ``api.json`` for the commands. ``port`` 0 is a free port, if possible the previous one, so that
    an open page reconnects after a restart.
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
        """Start serving and return the port; raises ``NodeError`` when it is in use."""
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
            with contextlib.suppress(NodeError):  # in use by another process
                return _listen(last)
        return _listen(self._port)

    async def stop(self) -> None:
        """Finish open requests and close within a few seconds; idempotent."""
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
    """Return the API as an ASGI application; ``node.api`` lists its paths."""
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
        return Response(_STATUS.dump_json(status()), media_type="application/json")

    async def peers(_: Request) -> Response:
        return JSONResponse(status().peers_json())

    async def why_(_: Request) -> Response:
        return Response(_WHY.dump_json(why()), media_type="application/json")

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
