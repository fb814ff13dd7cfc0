"""Dashboards and rules use existing metrics and labels only."""

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from node.api.metrics import EVALUATION, NodeMetrics
from node.api.pages import DIRECTORY as WEB
from node.api.server import ControlServer
from node.local.datadir import load_api_endpoint, open_data_dir
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.training_steps import STATISTICS
from tests.node.api.status_examples import EXPLAINED, STATUS, STEP

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

BY_PROMETHEUS = {"up": {}}
"""Metrics that Prometheus itself makes."""

ADDED_LABELS = {"job", "instance"}

_SELECTOR = re.compile(r"\b((?:prime_node|process)_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def rules():
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def board(name):
    return json.loads((DEPLOY / f"grafana/boards/{name}.json").read_text())


def queries(name):
    panels = [
        target["expr"] for panel in board(name)["panels"] for target in panel.get("targets", ())
    ]
    return panels + [variable["definition"] for variable in board(name)["templating"]["list"]
                     if variable["name"] != "datasource"]  # fmt: skip


NAMED = [("alerts", rules()), *((name, queries(name)) for name in ("swarm", "node"))]


POINT = EvaluationPoint(0, 16, 128, 0.25, 0.12, 0.4, 0.2, 0.1, 0.3)
"""An evaluated version."""


@pytest.fixture
async def scraped(tmp_path):
    """Return the label sets of each sample that a node's server exports."""
    datadir = open_data_dir(tmp_path / "data")
    status = replace(STATUS, state="ready", training=STEP, evaluation=(POINT,))
    server = ControlServer(lambda: status, lambda: EXPLAINED, 0, datadir=datadir)
    await server.start()
    try:
        port = load_api_endpoint(datadir).port
        async with httpx.AsyncClient(timeout=60) as http:
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    finally:
        await server.stop()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def missing(expression, scraped):
    """Return the selectors of an expression that match no sample."""
    selectors = _SELECTOR.findall(expression)
    assert selectors, expression
    for name, matchers in selectors:
        if name in BY_PROMETHEUS:
            continue
        if name not in scraped:
            yield name
            continue
        for label, operator, value in _MATCHER.findall(matchers):
            if label in ADDED_LABELS or "$" in value:
                known = label in ADDED_LABELS or any(label in each for each in scraped[name])
                if not known:
                    yield f"{name} has no label {label}"
                continue
            values = {each.get(label) for each in scraped[name]}
            wanted = set(value.split("|")) if operator in ("=~", "!~") else {value}
            if not wanted <= values:
                yield f"{name}: {label} is one of {values}"


@pytest.mark.parametrize(("where", "expressions"), NAMED, ids=[name for name, _ in NAMED])
async def test_what_is_named_is_scraped(where, expressions, scraped):
    found = [part for expression in expressions for part in missing(expression, scraped)]
    assert found == [], where


async def test_a_metric_and_a_label_that_are_not_there_are_found(scraped):
    assert list(missing("prime_node_nothing > 0", scraped)) == ["prime_node_nothing"]
    assert len(list(missing('prime_node_state{state="asleep"}', scraped))) == 1
    assert len(list(missing('prime_node_peers{run=~"$run"}', scraped))) == 1


async def test_every_statistic_of_a_step_is_scraped_on_a_board_and_on_the_page(scraped):
    """Every statistic of a trainer appears in all three."""
    named = {f"prime_node_training_{name}" for name in STATISTICS}
    assert named <= set(scraped)
    shown = " ".join(expression for name in ("swarm", "node") for expression in queries(name))
    assert named - set(re.findall(r"\w+", shown)) == set()
    page = (WEB / "pages/training.js").read_text()
    panels = page.partition("const MAIN = ")[2].partition("function ")[0]
    assert {name for _, name, _ in re.findall(r'\["([^"]*)", "(\w+)", "(\w+)"\]', panels)} == set(
        STATISTICS
    )


async def test_a_node_that_does_not_train_has_no_sample_of_a_step(tmp_path):
    text = NodeMetrics(lambda: STATUS).exposition().decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["prime_node_training_kl_nats"].samples == []


async def test_the_newest_evaluated_version_is_scraped():
    points = tuple(
        EvaluationPoint(version, 16, 128, version / 10, 0.0, 1.0, 0.5, 0.4, 0.6)
        for version in (0, 5)
    )
    for shown, expected in (((), []), (points, [5.0])):
        text = NodeMetrics(lambda shown=shown: replace(STATUS, evaluation=shown)).exposition()
        families = {one.name: one for one in text_string_to_metric_families(text.decode())}
        family = families["prime_node_evaluation_version"]
        assert [sample.value for sample in family.samples] == expected
        assert set(EVALUATION) == {
            name.removeprefix("prime_node_evaluation_")
            for name in families
            if name.startswith("prime_node_evaluation_")
        }


def test_legends_name_labels_that_their_queries_keep():
    """A query that sums by some labels has no others."""
    for name in ("swarm", "node"):
        for panel in board(name)["panels"]:
            for target in panel.get("targets", ()):
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                if kept := re.search(r"\b(?:sum|max) by \(([\w, ]*)\)", target["expr"]):
                    assert shown <= set(kept[1].split(", ")), (panel["title"], target["expr"])
