"""Trainer memory benchmark on a small shape in which the head outweighs the rest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "numerics" / "trainer_memory.py"


@pytest.mark.slow
def test_chunks_take_a_fraction_of_the_plain_form_and_give_the_same_gradient():
    sizes = ["--vocabulary", "8000", "--tokens", "512", "--plain-tokens", "256"]
    command = [sys.executable, str(SCRIPT), "--json", *sizes]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = json.loads(printed)
    assert results["plain_bytes_per_token"] > 12 * results["vocabulary"]  # three float32 copies
    assert results["bytes_per_token"] < results["plain_bytes_per_token"] / 2
    assert 0 < results["gradient_error"] < 1e-5
