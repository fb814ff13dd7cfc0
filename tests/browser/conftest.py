"""Chromium of the system, and test servers for it."""

import asyncio
import contextlib
import shutil
import socket
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.api.local_server import guarded, local_server, web_routes
from node.api.v1.recording import Recording
from tests.browser.states import STATES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_SECONDS = 60


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    missing = None
    if CHROMIUM is None:
        missing = "needs a browser: apt-get install chromium"
    elif find_spec("playwright") is None:
        missing = "needs playwright: pip install '.[dev]'"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))
            if missing is not None:
                item.add_marker(pytest.mark.skip(reason=missing))


class Served:
    """Pages of one source, served from their own thread."""

    def __init__(self, source, port=0):
        self._source = source
        self._port = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self.port = listener.getsockname()[1]
        server = local_server(guarded(web_routes(self._source)))
        await server.begin(listener, "pages")
        self._ready.set()
        await self._end.wait()
        await server.end(at_once=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        self._thread.start()
        assert self._ready.wait(START_SECONDS)
        return self

    def stop(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)


@pytest.fixture(scope="session")
def recorded():
    """Return a function from a state's name to the address of its pages."""
    servers = {}

    def served(name):
        if name not in servers:
            servers[name] = Served(Recording(STATES[name]())).start()
        return servers[name].url

    yield served
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where it is installed

    # Its loop occupies this thread until its end, and other tests need their own.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page and its monitors for forbidden events."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        self.requests = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message):
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def check(self, url):
        """Raise if the page logged an error or sent a request to another host."""
        assert self.complaints == []
        outside = [one for one in self.requests if not one.startswith(url)]
        assert outside == []


@pytest.fixture
def open_page(chromium):
    """Return a function that opens an address and waits for its content."""
    contexts = []

    def opened(url, width=1280, scheme="light", *, settled="main .page > *"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.set_default_timeout(30_000)
        watched.page.goto(url)
        watched.page.locator(settled).first.wait_for()
        return watched

    yield opened
    for context in contexts:
        with contextlib.suppress(Exception):
            context.close()
