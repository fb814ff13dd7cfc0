"""Benchmark of log-probabilities under equal weights, on a small model."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "numerics" / "zero_lag.py"


@pytest.mark.long
def test_the_trainer_is_as_near_to_workers_as_validators_are(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    sizes = ["--rollouts", "16", "--tokens", "32"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--json", *sizes])
    importlib.import_module("zero_lag").main()
    results = json.loads(capsys.readouterr().out)
    assert results["validator, alone - trainer"]["max"] == 0
    worker = results["worker - validator"]["mean"]
    assert 0 < results["worker - trainer"]["mean"] < 1.3 * worker
    assert results["gradient_cosine"] > 0.999
    assert 18 < results["held_bytes_per_weight"] < 20
