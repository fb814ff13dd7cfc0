"""Dashboard of a whole testnet: a proxy that forwards each request to a node.

Every node knows the whole swarm, so any node can respond; a page may select one by name. The port
of a node is read for each request, so a restarted node is found.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from node.api.local_server import guarded, local_server
from node.api.pages import pages
from node.api.v1.answers import Meta, NodeLink
from node.local.datadir import API_HOST, DataDir, load_api_endpoint
from node.local.sockets import listen
from node.testnet.record import Observation, SwarmRecord

ANSWER_SECONDS = 8.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024
_ORDER = ("validator", "trainer", "inference", "relay")
"""Order of roles: a validator holds many bodies, and has no own rollouts that could be slashed."""
_TRAINING = "/api/v1/training"
_TRAINING_ORDER = ("trainer", "validator", "inference", "relay")
"""Order for training statistics, which only a trainer has in full."""

_JSON = "application/json"


class SwarmPages:
    """HTTP server of the dashboard between ``start`` and ``stop``; ``title`` names the run."""

    def __init__(self, record: SwarmRecord, title: Callable[[], str]) -> None:
        self._record = record
        self._title = title
        self._client = httpx.AsyncClient(timeout=ANSWER_SECONDS)
        routes = [
            Route("/api/v1/meta", self._meta, methods=["GET"]),
            Route("/api/v1/stream", self._stream, methods=["GET"]),
            Route("/api/v1/rollouts/{commit}", self._rollout, methods=["GET"]),
            Route("/api/v1/{path}", self._pass_on, methods=["GET"]),
            pages(),
        ]
        self._server = local_server(guarded(routes))

    async def start(self, port: int = 0) -> str:
        """Start serving and return the address; raises ``NodeError`` when the port is in use."""
        listener = listen(
            API_HOST, port, failure="cannot serve the pages", remedy="choose another port"
        )
        await self._server.begin(listener, "swarm-pages")
        return f"http://{API_HOST}:{listener.getsockname()[1]}/"

    async def stop(self) -> None:
        """Close; idempotent."""
        await self._server.end(at_once=True)
        await self._client.aclose()

    def _asked(self, request: Request) -> list[Observation]:
        """Return the selected node, else all nodes in the order of preference."""
        name = request.query_params.get("node", "")
        if name in self._record.nodes:
            return [self._record.nodes[name]]
        known = [node for node in self._record.nodes.values() if node.condition != "waiting"]
        order = _TRAINING_ORDER if request.url.path == _TRAINING else _ORDER
        ranked = sorted(known, key=lambda node: order.index(node.plan.role))
        return sorted(ranked, key=lambda node: node.condition != "running")

    async def _meta(self, _: Request) -> Response:
        nodes = tuple(
            NodeLink(
                node.plan.name,
                str(node.plan.role),
                node.condition,
                "dishonest" if node.plan.behaviour else "",
            )
            for node in self._record.nodes.values()
        )
        meta = Meta("live", f"testnet-{self._record.started_at:.3f}", self._title(), nodes)
        return Response(json.dumps(asdict(meta)), media_type=_JSON)

    async def _pass_on(self, request: Request) -> Response:
        for node in self._asked(request):
            answer = await self._ask(node, request)
            if answer is not None:
                return _copied(answer)
        return _nobody()

    async def _rollout(self, request: Request) -> Response:
        """Forward to all nodes; return the first response with text, else the first other one."""
        asking = [asyncio.create_task(self._ask(node, request)) for node in self._asked(request)]
        known: httpx.Response | None = None
        try:
            for asked in asyncio.as_completed(asking):
                answer = await asked
                if answer is None:
                    continue
                if answer.status_code == httpx.codes.OK and answer.json()["sequences"]:
                    return _copied(answer)
                if known is None or known.status_code != httpx.codes.OK:
                    known = answer
        finally:
            for task in asking:
                task.cancel()
        return _copied(known) if known is not None else _nobody()

    async def _ask(self, node: Observation, request: Request) -> httpx.Response | None:
        url = _url(node, request)
        if url is None:
            return None
        try:
            answer = await self._client.get(url)
        except httpx.HTTPError:
            return None
        return answer if len(answer.content) <= ANSWER_BYTES_MAX else None

    async def _stream(self, request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        headers = {"Last-Event-ID": last} if last else {}
        for node in self._asked(request):
            url = _url(node, request)
            if url is None:
                continue
            asked = self._client.build_request(
                "GET", url, headers=headers, timeout=httpx.Timeout(ANSWER_SECONDS, read=None)
            )
            try:
                answer = await self._client.send(asked, stream=True)
            except httpx.HTTPError:
                continue
            return StreamingResponse(
                _relayed(answer),
                answer.status_code,
                {"Cache-Control": "no-store"},
                "text/event-stream",
            )
        return _nobody()


async def _relayed(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the stream of a node until its end; the page then reconnects."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.HTTPError:
        return
    finally:
        await answer.aclose()


def _url(node: Observation, request: Request) -> str | None:
    endpoint = load_api_endpoint(DataDir(node.plan.directory))
    if endpoint is None:
        return None
    query = f"?{request.url.query}" if request.url.query else ""
    return f"http://{API_HOST}:{endpoint.port}{request.url.path}{query}"


def _copied(answer: httpx.Response) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(answer.content, answer.status_code, headers, _JSON)


def _nobody() -> Response:
    return Response('{"error": "no node of the testnet responds"}', 503, media_type=_JSON)
