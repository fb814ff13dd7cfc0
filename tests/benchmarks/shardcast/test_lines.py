"""Traffic-shaping scripts: they run, and clean up after any end."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "shardcast"
SPACES = ["unshare", "--map-root-user", "--net", "--mount"]
SHAPE = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 2k limit 9k"


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:  # short-lived, like the commands that set up a line
        return ""


def can_shape_lines() -> bool:
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
        return False
    tried = subprocess.run([*SPACES, "sh", "-c", SHAPE], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not can_shape_lines(), reason="no network namespaces with tbf here"),
]


def command(script: str, *options: str) -> list[str]:
    return [sys.executable, str(FOLDER / script), "--json", *options]


@pytest.mark.long
def test_a_swarm_is_as_fast_as_its_lines_at_best(tmp_path):
    small = ["--processes", "3", "--megabytes", "4", "--only", "ours"]
    options = [*small, "--megabytes-per-second", "2", "--directory", str(tmp_path)]
    done = subprocess.run(command("swarm.py", *options), capture_output=True, check=True)
    found = json.loads(done.stdout)["ours"]
    assert found["makespan_ratio"] > 0.99  # else the line exceeded its rate
    assert found["origin_sent_ratio"] >= 0.99
    assert not list(tmp_path.iterdir())


def test_what_a_killed_script_had_started_ends(tmp_path):
    options = command("latency.py", "--directory", str(tmp_path))
    with subprocess.Popen(options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as script:
        children: list[psutil.Process] = []
        while not any(name_of(child) == "p2pd" for child in children):
            children = psutil.Process(script.pid).children(recursive=True)
            time.sleep(0.1)
        script.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
