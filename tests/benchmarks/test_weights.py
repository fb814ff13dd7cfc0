"""Weights benchmark on a policy that takes seconds, over real p2pd."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.long]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "weights.py"
MEGABYTES = 160


def test_a_policy_gets_through_two_daemons_without_getting_into_their_memory(tmp_path):
    options = ["--json", "--megabytes", str(MEGABYTES), "--directory", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *options]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = json.loads(printed)
    assert 0.8 * MEGABYTES < results["weights_bytes"] / 1e6 < 1.2 * MEGABYTES
    assert all(seconds > 0 for seconds in results["seconds"].values())
    memory = results["memory_mb"]
    for name in ("trainer", "worker"):
        assert memory[f"{name}: itself"]["anonymous"] < MEGABYTES
        assert memory[f"{name}: itself"]["rss"] < 400
        loop = results["loops"][name]
        assert sum(loop["delays"]) > 50
        # CPU time of other processes excluded, page faults of a busy machine included.
        assert loop["own_delay_seconds_max"] < 2
    # Once, plus the memory of a process without a policy.
    assert memory["worker: engine"]["anonymous"] < 350 + MEGABYTES
    assert not list(tmp_path.iterdir())
