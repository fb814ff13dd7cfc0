"""Benchmark of the verifier of ledgers: it verifies what it writes."""

import importlib
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "ledger"


def test_a_small_run_is_written_and_verified(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    options = ["--json", "--receipts", "60", "--pages", "12", "--workers", "7"]
    monkeypatch.setattr(sys, "argv", ["verify", *options])
    importlib.import_module("verify").main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["receipts"], row["pages"], row["workers"]) == (60, 12, 7)
    assert row["verify_peak_mb"] > 10
