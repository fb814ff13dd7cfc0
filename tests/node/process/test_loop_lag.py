import asyncio
import os
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from node.api.status import LOOP_DELAY_BOUNDS
from node.process import loop_lag
from node.process.loop_lag import LoopLagMonitor

BLOCKED_SECONDS = 0.4


@pytest.fixture
async def watch():
    made = LoopLagMonitor()
    made.start()
    await asyncio.sleep(3 * loop_lag.BEAT_SECONDS)
    yield made
    made.stop()
    made.stop()


def block(seconds=BLOCKED_SECONDS):
    time.sleep(seconds)


async def blocked(seconds=BLOCKED_SECONDS):
    block(seconds)
    await asyncio.sleep(3 * loop_lag.BEAT_SECONDS)


def test_what_was_not_watched_has_no_delays():
    status = LoopLagMonitor().status()
    assert (sum(status.delays), status.delay_seconds_max) == (0, 0.0)
    assert len(status.delays) == len(LOOP_DELAY_BOUNDS) + 1


async def test_what_blocks_the_loop_is_measured_and_named(watch):
    with capture_logs() as logs:
        await blocked()
    status = watch.status()
    # The beat was due within one beat of the beginning.
    least = BLOCKED_SECONDS - loop_lag.BEAT_SECONDS
    assert least <= status.own_delay_seconds_max <= status.delay_seconds_max <= status.delay_seconds
    assert sum(status.delays[LOOP_DELAY_BOUNDS.index(0.25) + 1 :]) >= 1
    (said,) = logs
    assert said["seconds"] == pytest.approx(status.delay_seconds_max, abs=0.001)
    assert said["computed_seconds"] < BLOCKED_SECONDS / 4, "it slept"
    assert said["where"].startswith(f"test_loop_lag.py:{block.__code__.co_firstlineno + 1} block")


async def test_warnings_are_few_and_the_others_are_counted(watch, monkeypatch):
    monkeypatch.setattr(loop_lag, "WARNINGS_PAUSE_SECONDS", 2.0)
    with capture_logs() as logs:
        for _ in range(3):
            await blocked(0.2)
        assert len(logs) == 1
        await asyncio.sleep(2.0)
        await blocked(0.2)
    first, second = (said["untold_before"] for said in logs)
    assert first == 0
    assert second >= 2, "a busy machine may add some"


async def test_short_delays_are_nobodys_business(watch):
    with capture_logs() as logs:
        await blocked(loop_lag.STALL_SECONDS / 3)
    assert logs == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no cores to choose from")
def test_time_without_a_core_is_the_machines():
    """The loop computes on a core shared equally with another process."""
    core = min(os.sched_getaffinity(0))
    command = f"import os; os.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    rival = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE)
    before = os.sched_getaffinity(0)
    try:
        rival.stdout.readline()
        os.sched_setaffinity(0, {core})
        status = asyncio.run(computing())
    finally:
        os.sched_setaffinity(0, before)
        rival.kill()
        rival.communicate()
    assert status.delay_seconds_max > 0.3
    assert status.own_delay_seconds_max < 0.8 * status.delay_seconds_max


async def computing():
    watch = LoopLagMonitor()
    watch.start()
    await asyncio.sleep(2 * loop_lag.BEAT_SECONDS)
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
    await asyncio.sleep(2 * loop_lag.BEAT_SECONDS)
    watch.stop()
    return watch.status()
