"""Regression seeds, and the file that holds them."""

import time
from pathlib import Path

import pytest

from simulations.study.regressions import (
    FILE,
    Regression,
    add_regression,
    find_file,
    load_regressions,
)
from simulations.study.study import RunPlan, run_plan

ROOT = Path(__file__).parents[3]
KEPT = load_regressions(ROOT / FILE)
NODE_MINUTES_MAX = 240.0
"""Limit of repeated runs: 20 nodes for 12 minutes, some seconds of computing."""


def node_minutes(entry):
    scenario = entry.plan.load()
    return scenario.nodes.total * scenario.minutes


SHORT = [entry for entry in KEPT if node_minutes(entry) <= NODE_MINUTES_MAX]


@pytest.mark.long
@pytest.mark.parametrize(
    "entry", SHORT, ids=lambda entry: f"{entry.plan.scenario}-{entry.plan.seed}"
)
def test_what_was_mended_stays_mended(entry):
    assert run_plan(entry.plan, clock=time.perf_counter).violation is None


def test_the_file_of_this_checkout_is_found_from_anywhere_inside():
    assert find_file(Path(__file__).parent) == ROOT / FILE
    assert find_file(Path("/")) is None


def test_an_entry_survives_its_file(tmp_path):
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_text("")
    entries = [
        Regression(RunPlan("quiet-20", 3), "one-chain", 'a "quoted"\nwhat \\ é'),
        Regression(RunPlan("my scenario.toml", 4, 50, 2.5), "progress", "x"),
        Regression(RunPlan("attack-flood", 5, None, None, 0.5, 2.0), "limits", "y"),
    ]
    for entry in (*entries, entries[0]):
        assert add_regression(entry, tmp_path / "deep" / "inside") == file
    assert load_regressions(file) == entries


def test_what_cannot_be_kept_is_not_an_error(tmp_path):
    entry = Regression(RunPlan("quiet-20", 3), "one-chain", "x")
    assert add_regression(entry, tmp_path) is None
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_text("not toml at all")
    assert add_regression(entry, tmp_path) is None
    assert file.read_text() == "not toml at all"


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = ", "not TOML"), ("[[regression]]\nscenario = 'a'\n", "lacks 'seed'")],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, message):
    file = tmp_path / "regressions.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_regressions(file)


def test_the_cost_of_an_entry_is_its_nodes_times_its_minutes():
    assert node_minutes(Regression(RunPlan("quiet-20", 0), "r", "w")) == 200
    assert node_minutes(Regression(RunPlan("quiet-20", 0, 10, 2), "r", "w")) == 20
