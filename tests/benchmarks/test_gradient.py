"""Gradient benchmark on rollouts that take seconds."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "numerics" / "gradient.py"


COMMAND = [str(SCRIPT), "--json", "--recipes", "testnet", "--rollouts", "1", "--tokens", "4"]


@pytest.fixture
def measured(monkeypatch, capsys):
    """Run the script in this process: importing torch takes as long as its work."""

    def run(*options):
        monkeypatch.syspath_prepend(str(SCRIPT.parent))
        monkeypatch.setattr(sys, "argv", [*COMMAND, *options])
        importlib.import_module("gradient").main()
        return json.loads(capsys.readouterr().out)

    return run


def test_the_testnets_bounds_leave_no_room(measured):
    results = measured()
    assert results["within_bar"]
    assert max(results["norm_change_max"], results["direction_change_max"]) < 1e-12
    assert 0 < results["norm_change_as_claimed_max"] < 1e-3
    assert results["direction_change_as_claimed_max"] < 1e-3
    rows = results["recipes"][0]["strategies"]
    assert len(rows) == 24  # four directions, three kinds, once and sustained
    # Each strategy uses all of its slack: slightly more would exceed a bound.
    spread = [row for row in rows if "concentrated" not in row["strategy"]]
    assert all(max(row["of_bounds"].values()) > 0.99 for row in spread)
    assert all(max(row["of_bounds"].values()) <= 1 for row in rows)


def test_wide_bounds_would_let_claims_move_what_a_trainer_takes_as_claimed(tmp_path, measured):
    text = (ROOT / "configs" / "runs" / "testnet.toml").read_text()
    wide = {
        "logprob_error": "{ mean = 0.1, variance = 0.01, clip = 0.2 }",
        "logprob_shift": "{ mean = 0.1, variance = 0.01, clip = 0.2 }",
        "logprob_error_max": "0.5",
        "logprob_tau": "0.3",
    }
    for name, value in wide.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    thresholds = tmp_path / "wide.toml"
    thresholds.write_text(text)
    results = measured("--thresholds", str(thresholds))
    assert not results["within_bar"]
    assert results["norm_change_as_claimed_max"] > 0.05
    once, always = (results[f"norm_change_as_claimed_max{kind}"] for kind in ("", "_sustained"))
    assert always < once
