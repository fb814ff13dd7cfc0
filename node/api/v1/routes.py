"""Routes of ``/api/v1``; GET only, and every response is a type of ``answers``."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from node.api.v1.answers import ANSWERS
from node.api.v1.queries import (
    QUERY_CHARACTERS_MAX,
    EventQuery,
    PeerQuery,
    QueryError,
    RolloutQuery,
    WeightsQuery,
    parse,
)
from node.api.v1.source import DataSource
from node.api.v1.stream import EventStreams, resume_from

_ADAPTERS: dict[type, TypeAdapter[Any]] = {shape: TypeAdapter(shape) for shape in ANSWERS.values()}
_HEADERS = {"Cache-Control": "no-store"}
_JSON = "application/json"

Answer = Callable[[Request], Awaitable[Any]]


def api_v1(source: DataSource) -> Mount:
    """Return the routes over a data source."""
    streams = EventStreams(source)

    async def rollout(request: Request) -> Any:
        return await source.rollout(request.path_params["commit"])

    async def stream(request: Request) -> Response:
        if not streams.has_room:
            return _told(503, "too many open pages of this node; close some", {"Retry-After": "5"})
        began = resume_from(request.headers.get("last-event-id", ""))
        return StreamingResponse(
            streams.events(*began), media_type="text/event-stream", headers=_HEADERS
        )

    async def schema(_: Request) -> Response:
        return Response(json.dumps(schemas()), media_type=_JSON, headers=_HEADERS)

    answers: dict[str, Answer] = {
        "/meta": _given(source.meta),
        "/overview": _given(source.overview),
        "/history": _given(source.history),
        "/rollouts": _asked(source.rollouts, RolloutQuery),
        "/rollouts/{commit}": rollout,
        "/peers": _asked(source.peers, PeerQuery),
        "/council": _given(source.council),
        "/contributors": _given(source.contributors),
        "/weights": _asked(source.weights, WeightsQuery),
        "/training": _given(source.training),
        "/node": _given(source.machine),
        "/run": _given(source.run),
        "/events": _asked(source.events, EventQuery),
    }
    routes: list[BaseRoute] = [
        Route(path, partial(_respond, answer), methods=["GET"]) for path, answer in answers.items()
    ]
    routes += [
        Route("/stream", stream, methods=["GET"]),
        Route("/schema", schema, methods=["GET"]),
    ]
    return Mount("/api/v1", routes=routes)


def schemas() -> dict[str, Any]:
    """Return the JSON schemas of all responses by name."""
    return {name: TypeAdapter(shape).json_schema() for name, shape in ANSWERS.items()}


def encoded(answer: object) -> bytes:
    """Return a response as JSON; NaN and infinity are null."""
    return _ADAPTERS[type(answer)].dump_json(answer)


def _given(function: Callable[[], Any]) -> Answer:
    async def answer(_: Request) -> Any:
        return await _awaited(function())

    return answer


def _asked(function: Callable[[Any], Any], shape: type) -> Answer:
    async def answer(request: Request) -> Any:
        if len(request.url.query) > QUERY_CHARACTERS_MAX:
            raise QueryError(f"the query has more than {QUERY_CHARACTERS_MAX} characters")
        return await _awaited(function(parse(shape, request.query_params)))

    return answer


async def _awaited(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value


async def _respond(answer: Answer, request: Request) -> Response:
    try:
        found = await answer(request)
    except QueryError as error:
        return _told(400, str(error))
    if found is None:
        return _told(404, "not known to this node, or no longer held")
    return Response(encoded(found), media_type=_JSON, headers=_HEADERS)


def _told(status: int, error: str, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": error})
    return Response(body, status, _HEADERS | (headers or {}), _JSON)
