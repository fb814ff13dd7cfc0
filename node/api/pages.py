"""Static files of the dashboard, and the security rules of all responses to browsers.

Pages load nothing from other origins and run no inline scripts. Text from other nodes stays text:
trusted types refuse to parse it as HTML.
"""

from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DIRECTORY = Path(__file__).with_name("web")

REQUEST_TARGET_BYTES_MAX = 1024
"""Limit of path and query; the longest of the dashboard has about 300 bytes."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def pages() -> Mount:
    """Return the mount of ``/``, which must follow all other routes."""
    return Mount("/", StaticFiles(directory=DIRECTORY, html=True))


class Guard:
    """Middleware that rejects all but short GET requests and adds ``HEADERS`` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
                    headers["Cache-Control"] = "no-cache"  # an upgrade may change the files
            await send(message)

        await app(scope, receive, guarded)


def _refusal(scope: Scope) -> Response | None:
    """Return an error response to an invalid request, None for a valid one."""
    if scope["method"] not in {"GET", "HEAD"}:
        return Response("only GET and HEAD are allowed", 405, {"Allow": "GET, HEAD"})
    if len(scope["raw_path"]) + len(scope["query_string"]) > REQUEST_TARGET_BYTES_MAX:
        return Response("the URL is too long", 414)
    headers = Headers(scope=scope)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Response("a request body is not allowed", 413)
    return None
