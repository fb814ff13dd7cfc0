"""GPU benchmark on a shape that takes seconds, without a GPU."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "numerics" / "gpu.py"
SIZES = ["--batches", "1", "4", "--sequences", "8", "--tokens", "12", "--train-tokens", "256"]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Run the script in this process: importing torch takes longer than its work."""

    def run(*options):
        monkeypatch.syspath_prepend(str(SCRIPT.parent))
        arguments = ["--shapes", "small", "--device", "cpu", *options, *SIZES]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        importlib.import_module("gpu").main()
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_every_part_is_measured(tmp_path, printed):
    out = tmp_path / "known.json"
    results = json.loads(printed("--json", "--rounds", "1", "--out", str(out)))
    assert json.loads(out.read_text()) == results
    found = results["shapes"]["small"]
    assert len(found["pairs"]) == 8  # two batch sizes, two attentions, two prefills
    for pair in found["pairs"]:
        assert pair["tokens"] > 64
        assert 0 < pair["logprob_error_mean"] < pair["logprob_error_max"] < 0.5
        assert pair["mantissa_error_max"] > 0
    assert [row["batch"] for row in found["speed"]] == [1, 4]
    assert all(value > 0 for row in found["speed"] for value in row.values())
    assert found["noise"]["integers_equal"] == {"cpu": True}
    assert [row["batch"] for row in found["noise"]["steps"]] == [1, 4]
    assert found["trainer"]["peak_bytes"] >= found["trainer"]["held_bytes"] > 0
    assert found["trainer"]["step_s"] > 0


def test_the_table_names_what_was_measured(printed):
    table = printed("--parts", "trainer")
    assert "step_s" in table and "small" in table
