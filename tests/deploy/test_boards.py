"""Grafana dashboards: valid in Grafana's own models, and selecting by run and node."""

import json
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

BOARDS = Path(__file__).resolve().parents[2] / "deploy/grafana/boards"
UNMODELLED = {"definition"}
"""Grafana writes it, for people, and its models do not have it."""

every_board = pytest.mark.parametrize("name", ["swarm", "node"])


def read(name):
    return json.loads((BOARDS / f"{name}.json").read_text())


def lost(written, kept, place=""):
    """Yield what the models do not know: they drop it without a word."""
    if isinstance(written, dict):
        for key, value in written.items():
            if key in UNMODELLED or value in (None, "", [], {}):
                continue
            if key not in kept:
                yield f"{place}/{key}"
            else:
                yield from lost(value, kept[key], f"{place}/{key}")
    elif isinstance(written, list):
        assert len(written) == len(kept), place
        for index, (one, other) in enumerate(zip(written, kept, strict=True)):
            yield from lost(one, other, f"{place}/{index}")
    elif written != kept:
        yield f"{place}: {written!r} is read as {kept!r}"


@every_board
def test_grafana_s_models_keep_all_of_it(name):
    kept = json.loads(json.dumps(Dashboard.from_json(read(name)), cls=JSONEncoder))
    assert list(lost(read(name), kept)) == []


@every_board
def test_every_query_chooses_by_run_and_instance(name):
    variables = {variable["name"]: variable for variable in read(name)["templating"]["list"]}
    assert set(variables) == {"datasource", "run", "instance"}
    queries = [
        target["expr"] for panel in read(name)["panels"] for target in panel.get("targets", ())
    ]
    assert [query for query in queries if "$run" not in query or "$instance" not in query] == []


@every_board
def test_panels_have_places_and_numbers_of_their_own(name):
    panels = read(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
