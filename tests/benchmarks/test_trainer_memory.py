"""Trainer memory benchmark on a small shape in which the head outweighs the rest."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "numerics" / "trainer_memory.py"


@pytest.mark.long
def test_chunks_take_a_fraction_of_the_plain_form_and_give_the_same_gradient(monkeypatch, capsys):
    sizes = ["--vocabulary", "8000", "--tokens", "12288", "--plain-tokens", "768"]
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--json", *sizes])
    importlib.import_module("trainer_memory").main()  # it starts a process for each form
    results = json.loads(capsys.readouterr().out)
    assert results["plain_bytes_per_token"] > 12 * results["vocabulary"]  # three float32 copies
    assert results["bytes_per_token"] < results["plain_bytes_per_token"] / 2
    assert 0 < results["gradient_error"] < 1e-5
