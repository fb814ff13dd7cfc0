"""A sweep with killed processes: one of them, all by Ctrl-C, or the sweep itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from node.local.memory import is_running

DEADLINE_SECONDS = 60.0
SHORT = ("quiet-20", "--nodes", "8", "--minutes", "1")
LONG = ("churn-100",)


@pytest.fixture
def start(interruptible):
    """Start a sweep in a process group of its own, as a shell does."""
    started = []

    def sweep(*arguments) -> subprocess.Popen:
        command = [sys.executable, "-m", "node.cli.main", "simulate", "sweep", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield sweep
    for process in started:
        process.kill()
        process.communicate()


def simulating(sweep: subprocess.Popen, processes: int) -> list[psutil.Process]:
    """Return the processes that run seeds of a sweep, once there are ``processes``."""
    found: list[psutil.Process] = []

    def are_there() -> bool:
        children = psutil.Process(sweep.pid).children()
        found[:] = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        return len(found) == processes

    wait_until(are_there)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended(sweep: subprocess.Popen) -> tuple[int, str, str]:
    output, errors = sweep.communicate(timeout=DEADLINE_SECONDS)
    return sweep.returncode, output, errors


def test_a_seed_that_is_killed_takes_no_other_along(start):
    sweep = start(*SHORT, "--seeds", 3, "--processes", 2, "--json")
    simulating(sweep, 2)[0].kill()
    code, output, errors = ended(sweep)
    assert code == 75
    assert len(json.loads(output)["runs"]) == 2
    assert errors == (
        "prime-node: error: 2 of 3 seeds came to an end, the other processes were killed: "
        "if memory is short, use fewer --processes\n"
    )


def test_ctrl_c_ends_a_sweep_at_once_and_shows_what_there_is(start):
    sweep = start(*LONG, "--seeds", 5, "--processes", 2, "--json")
    running = simulating(sweep, 2)
    os.killpg(sweep.pid, signal.SIGINT)
    code, output, errors = ended(sweep)
    assert code == 130
    assert json.loads(output)["runs"] == []
    assert errors == (
        "prime-node: error: 0 of 5 seeds came to an end, then the sweep was interrupted\n"
    )
    assert not any(is_running(process.pid) for process in running)


def test_no_seed_outlives_its_sweep(start):
    sweep = start(*LONG, "--seeds", 2, "--processes", 2)
    running = simulating(sweep, 2)
    sweep.kill()
    wait_until(lambda: not any(is_running(process.pid) for process in running))
