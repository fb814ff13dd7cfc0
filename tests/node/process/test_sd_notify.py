import asyncio
import os
import socket

import pytest

from node.api.status import Stage
from node.process.sd_notify import LOOK_SECONDS, ServiceManager
from tests.worlds.network import run_virtual

pytestmark = pytest.mark.virtual


@pytest.fixture
def manager(tmp_path):
    """Return a service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def received(listening):
    messages = []
    while True:
        try:
            messages.append(listening.recv(1 << 16).decode().split("\n"))
        except BlockingIOError:
            return messages


def told(listening, *stages, **variables):
    """Return the messages sent during the stages, each a pair (seconds, stage).

    Each message is a list of its lines.
    """
    name = listening.getsockname()
    address = name if isinstance(name, str) else "@" + name[1:].decode()
    messages = []

    async def scenario():
        at = stages[0][1]
        running = asyncio.create_task(
            ServiceManager(lambda: at, {"NOTIFY_SOCKET": address, **variables}).run()
        )
        for seconds, at in stages:  # noqa: B007 - the task reads it
            for _ in range(int(seconds / LOOK_SECONDS)):
                await asyncio.sleep(LOOK_SECONDS)
                messages.extend(received(listening))  # the kernel keeps ten
        running.cancel()
        await asyncio.wait([running])
        messages.extend(received(listening))

    run_virtual(scenario())
    return messages


def test_ready_is_said_once_when_it_no_longer_starts(manager):
    assert told(
        manager,
        (2, Stage("starting", "loading libraries")),
        (2, Stage("joining", "looking for peers")),
        (2, Stage("starting", "reading stored messages")),
        (2, Stage("ready")),
        (2, Stage("draining")),
    ) == [
        ["STATUS=starting: loading libraries"],
        ["READY=1", "STATUS=joining: looking for peers"],
        ["STATUS=starting: reading stored messages"],
        ["STATUS=ready"],
        ["STOPPING=1", "STATUS=draining"],
    ]


def test_a_node_that_ends_without_draining_says_that_it_stops(manager):
    assert told(manager, (1, Stage("starting", "loading libraries"))) == [
        ["STATUS=starting: loading libraries"],
        ["STOPPING=1", "STATUS=draining"],
    ]


def test_the_watchdog_is_fed_at_half_of_its_time(manager):
    messages = told(manager, (60, Stage("ready")), WATCHDOG_USEC="20000000")
    beats = [message for message in messages if "WATCHDOG=1" in message]
    assert 6 <= len(beats) <= 7


def test_a_watchdog_shorter_than_a_look_is_fed_in_time(manager):
    messages = told(manager, (4, Stage("ready")), WATCHDOG_USEC="400000")
    assert sum("WATCHDOG=1" in message for message in messages) >= 4 / 0.2 - 1


def test_the_watchdog_of_another_process_is_not_ours(manager):
    other = {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getppid())}
    assert all(
        "WATCHDOG=1" not in message for message in told(manager, (5, Stage("ready")), **other)
    )


def test_a_reason_from_an_untrusted_peer_makes_no_other_message(manager):
    (lines, *_) = told(manager, (1, Stage("paused", "refused:\nMAINPID=1\nREADY=0")))
    assert lines == ["READY=1", "STATUS=paused: refused: MAINPID=1 READY=0"]


def test_an_abstract_socket_is_reached():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0prime-node-test-{os.getpid()}")
        listening.setblocking(False)
        assert told(listening, (1, Stage("ready")))[0] == ["READY=1", "STATUS=ready"]


async def test_a_manager_that_is_gone_or_does_not_read_holds_nothing_up(tmp_path, manager):
    gone = {"NOTIFY_SOCKET": str(tmp_path / "gone")}
    deaf = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000000"}
    both = [ServiceManager(lambda: Stage("ready"), each).run() for each in (gone, deaf)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*both), 60)
    assert 1 <= len(received(manager)) < 60


def test_children_do_not_inherit_what_they_could_speak_with():
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager(lambda: Stage("ready"), environment)
    assert environment == {"HOME": "/"}


async def test_without_a_manager_nothing_runs():
    await ServiceManager(lambda: Stage("ready"), {}).run()
