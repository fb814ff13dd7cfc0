"""The files of the web view, and what every answer to a browser must keep.

Nothing on a page comes from anywhere else: no script but ours runs, none is written into the page,
and text of other nodes stays text (trusted types refuse what would parse it as HTML).
"""

from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DIRECTORY = Path(__file__).with_name("web")

REQUEST_TARGET_BYTES_MAX = 1024
"""Path and query; the longest of ours has about 300."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def pages() -> Mount:
    """Return what serves ``/``; it comes after all other routes."""
    return Mount("/", StaticFiles(directory=DIRECTORY, html=True))


class Guard:
    """Refuses what is no short question, and sends the headers above with every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _refusal(scope)
        app = self._app if refusal is None else refusal

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-cache"  # another version may be served next
            await send(message)

        await app(scope, receive, guarded)


def _refusal(scope: Scope) -> Response | None:
    """Return the answer to what nobody should send, None for the rest."""
    if scope["method"] not in {"GET", "HEAD"}:
        return Response("only GET is answered", 405, {"Allow": "GET, HEAD"})
    if len(scope["raw_path"]) + len(scope["query_string"]) > REQUEST_TARGET_BYTES_MAX:
        return Response("the address is too long", 414)
    headers = Headers(scope=scope)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Response("a question has no body", 413)
    return None
