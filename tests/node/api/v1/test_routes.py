import json
import math
from dataclasses import replace

import httpx
import pytest
from pydantic import TypeAdapter

from node.api.local_server import guarded, web_routes
from node.api.pages import DIRECTORY, HEADERS, REQUEST_TARGET_BYTES_MAX
from node.api.v1.answers import ANSWERS, Limit
from node.api.v1.queries import QUERY_CHARACTERS_MAX
from node.api.v1.recording import Recording
from node.api.v1.routes import encoded
from tests.browser.states import ready

READY = ready()
PATHS = {
    "meta": "/meta",
    "overview": "/overview",
    "history": "/history",
    "rollouts": "/rollouts?limit=3",
    "rollout": f"/rollouts/{READY.rollouts[0].row.commit}",
    "peers": "/peers",
    "council": "/council",
    "weights": "/weights",
    "training": "/training",
    "node": "/node",
    "run": "/run",
    "events": "/events",
}


async def ask(path, method="GET", **options):
    app = guarded(web_routes(Recording(READY)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
        return await client.request(method, path, **options)


@pytest.mark.parametrize("name", PATHS)
async def test_every_answer_is_of_its_schema(name):
    answer = await ask(f"/api/v1{PATHS[name]}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    TypeAdapter(ANSWERS[name]).validate_json(answer.content)
    schema = (await ask("/api/v1/schema")).json()[name]
    assert set(answer.json()) == set(schema["properties"])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_that_json_does_not_know_leaves(value):
    shown = READY.rollouts[0]
    verdict = replace(shown.verdicts[0], measured=(Limit("gap", value, 1.0),))
    told = json.loads(encoded(replace(shown, verdicts=(verdict,))), parse_constant=pytest.fail)
    assert told["verdicts"][0]["measured"] == [{"name": "gap", "value": None, "allowed": 1.0}]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/rollouts/nothing", 404),
        ("/api/v1/rollouts?limit=1000", 400),
        ("/api/v1/rollouts?colour=red", 400),
        ("/api/v1/peers?text=" + "x" * 65, 400),
        ("/api/v1/peers?text=" + "x" * QUERY_CHARACTERS_MAX, 400),
        ("/api/v1/peers?text=" + "x" * REQUEST_TARGET_BYTES_MAX, 414),
        ("/api/v1/unknown", 404),
        ("/no-such-file.js", 404),
        ("/../server.py", 404),
        ("/%2e%2e/server.py", 404),
        ("/", 200),
        ("/app.js", 200),
        ("/pages/overview.js", 200),
    ],
)
async def test_what_is_there_and_what_is_not(path, status):
    answer = await ask(path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/v1/overview", "/api/v1/stream"])
async def test_nothing_but_get_is_answered(method, path):
    assert (await ask(path, method)).status_code == 405


@pytest.mark.parametrize("body", [{"content": b"x"}, {"content": iter([b"x"])}])
async def test_a_question_with_a_body_is_refused(body):
    if not isinstance(body["content"], bytes):

        async def pieces():
            yield b"x"

        body = {"content": pieces()}
    assert (await ask("/api/v1/overview", **body)).status_code == 413


@pytest.mark.parametrize("path", ["/", "/api/v1/overview", "/api/v1/stream", "/app.js"])
async def test_a_foreign_host_name_is_refused(path):
    assert (await ask(path, headers={"host": "evil.example"})).status_code == 400


def test_pages_hold_nothing_of_others_and_nothing_inline():
    files = [path for path in DIRECTORY.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path}: {word}"
        if path.suffix in {".html", ".js", ".css"}:
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path
            assert "https://" not in text, path
    page = (DIRECTORY / "index.html").read_text()
    assert "style=" not in page and " on" not in page.replace(" one", "")
    assert all(part.startswith(' type="module" src=') for part in page.split("<script")[1:])
