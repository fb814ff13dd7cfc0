"""Signal handling, in child processes; a second signal ends them."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from node.process.signals import watch_signals

async def main():
    stopping = asyncio.Event()
    watch_signals(stopping, lambda: print("drains", flush=True))
    print("here", flush=True)
    await stopping.wait()
    await asyncio.sleep(30)

asyncio.run(main())
"""


NO_NOHUP = ("env", "--default-signal=HUP")
"""The tests themselves may run under nohup."""


@pytest.fixture
def program():
    started = []

    def start(*before):
        process = subprocess.Popen(
            [*(before or NO_NOHUP), sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        started.append(process)
        while process.stdout.readline() != "here\n":
            assert process.poll() is None
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(process, number):
    process.send_signal(number)
    while line := process.stdout.readline():
        if line == "drains\n":
            return True
    return False


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains_and_the_second_ends(program, first):
    process = program()
    assert told(process, first)
    for _ in range(2):  # a closing terminal may send several
        process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_node_under_nohup_outlives_its_terminal(program):
    process = program("nohup")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert told(process, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):  # the first signal drains
        process.wait(0.5)
