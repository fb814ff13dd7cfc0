"""Rounding benchmark: dithered policies follow their master weights, nearest rounding does not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training" / "rounding.py"


@pytest.mark.long
def test_policies_follow_their_masters_when_they_are_dithered(tmp_path):
    torch.manual_seed(0)
    weights = {"one.weight": torch.randn(300, 200), "two.weight": torch.randn(50)}
    save_file(
        {name: (0.02 * one).bfloat16() for name, one in weights.items()},
        tmp_path / "model.safetensors",
    )
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--steps", "3"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    titles, *rows = (line.split() for line in printed.splitlines())
    last = {row[1]: dict(zip(titles, row, strict=True)) for row in rows}
    assert last["nearest"]["masters_moved"] == last["dither"]["masters_moved"]
    assert float(last["nearest"]["along"]) < 0.5
    assert 0.9 < float(last["dither"]["along"]) < 1.1
    assert all(int(one["patch_bytes"]) > 0 for one in last.values())
