"""Broadcast model: agreement with the daemon's own parts, and the script's output."""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from statistics import fmean

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "shardcast"
SMALL = {"nodes": 40, "gigabytes": 0.1, "up_mbit": 40.0, "down_mbit": 60.0, "seed": 3, "strong": 0}

SEEDS = 4


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("makespan"), importlib.import_module("parts")


@pytest.mark.long
@pytest.mark.parametrize("dying", [0.0, 0.1])
def test_the_model_and_the_daemons_parts_agree(modules, dying):
    """Averaged over a few seeds: when a node dies, a moment decides which peers wait for it."""
    makespan, parts = modules
    modelled, real = [], []
    for seed in range(SEEDS if dying else 1):
        options = Namespace(**SMALL | {"seed": seed, "nodes": 24}, dying=dying, only="forest")
        modelled.append(makespan.measure(options)["makespan_ratio"])
        plan = makespan.plan_of(options, makespan.CHUNKS)
        real.append(parts.makespan_ratio(plan, makespan.STRIPES, makespan.FANOUT))
    assert fmean(modelled) == pytest.approx(fmean(real), rel=0.1), (modelled, real)


def test_the_forest_is_near_the_bound_and_others_are_not():
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    command = [sys.executable, str(FOLDER / "makespan.py"), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert 1.0 < found["makespan_ratio"] < 1.25
    assert 1.0 <= found["root_sent_ratio"] < 1.15
    tree, relays = (found["baselines"][name] for name in ("single tree", "ten relays"))
    assert (tree["least_ratio"], relays["least_ratio"]) == (4.0, 10.0)
    for way in (tree, relays):
        assert 1.0 <= way["makespan_ratio"] / way["least_ratio"] < 1.2


def test_strong_lines_help_those_that_are_late(modules):
    """The last node has the file after 1.5 times the bound; without early requests after 2.8."""
    makespan, _ = modules
    lines = {"nodes": 116, "gigabytes": 0.4, "up_mbit": 32.0, "down_mbit": 100.0, "strong": 16}
    options = Namespace(**SMALL | lines | {"seed": 1}, dying=0.0, only="forest")
    found = makespan.measure(options)
    assert 1.0 < found["makespan_ratio"] < 2.4


def test_others_get_over_dead_parents_and_relays_too(modules):
    """Some of the ten relays die here; without recovery their clients would wait for ever."""
    makespan, _ = modules
    options = Namespace(**SMALL, dying=0.3, only="baselines")
    for name, way in makespan.measure(options)["baselines"].items():
        assert way["died"] == 12
        assert way["makespan_ratio"] > way["least_ratio"] / 2, name
