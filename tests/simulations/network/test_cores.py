"""Message cores: work takes its time, in order; an idle core is never late."""

import asyncio

import pytest

from simulations.runtime.cores import (
    BYTE_SECONDS,
    LATE_SECONDS_MIN,
    OPEN_SECONDS,
    OPENS_WAITING_MAX,
    READ_SECONDS,
)
from simulations.runtime.loop import VirtualLoop, run_virtual
from tests.simulations.network.machines import MEGABYTE, PROTOCOL, Machines, now
from tests.worlds.messages import identity

pytestmark = pytest.mark.virtual(loop=VirtualLoop)


async def answered_after(busy_seconds):
    """Return when a small message is read on a machine with this much queued work."""
    machines = Machines()
    await machines.add("ours", "theirs", up=60.0 * MEGABYTE, down=60.0 * MEGABYTE)
    stream, other = await machines.stream("ours", "theirs")
    began = now()
    machines.network.hosts["theirs"].core.spend(busy_seconds)
    await stream.write(bytes(100))
    await other.read_exactly(100)
    return now() - began


def test_who_is_busy_reads_late_and_who_is_not_reads_at_once():
    at_once = run_virtual(answered_after(0.0))
    assert at_once < 0.05
    assert run_virtual(answered_after(LATE_SECONDS_MIN / 2)) == at_once
    assert run_virtual(answered_after(3.0)) == pytest.approx(3.0, abs=LATE_SECONDS_MIN)


async def test_only_the_machine_that_reads_is_kept_busy_by_what_it_reads():
    machines = Machines()
    await machines.add("ours", "theirs", up=60.0 * MEGABYTE, down=60.0 * MEGABYTE)
    stream, other = await machines.stream("ours", "theirs")
    await stream.write(bytes(1000))
    await other.read_exactly(1000)
    ours, theirs = (machines.network.hosts[name].core for name in ("ours", "theirs"))
    assert ours.spent_seconds == 0.0
    spent = OPEN_SECONDS + READ_SECONDS + 1000 * BYTE_SECONDS
    assert theirs.spent_seconds == pytest.approx(spent)


async def test_a_stream_takes_its_time_of_whom_it_is_opened_to_and_is_served_after_that():
    machines = Machines()
    await machines.add("ours", "theirs", up=60.0 * MEGABYTE, down=60.0 * MEGABYTE)
    ours, theirs = (machines.network.hosts[name].core for name in ("ours", "theirs"))
    await machines.stream("ours", "theirs")
    assert (ours.spent_seconds, theirs.spent_seconds) == (0.0, OPEN_SECONDS)
    theirs.spend(2.0)
    began = now()
    await machines.stream("ours", "theirs")  # returns when it is served
    assert now() - began == pytest.approx(2.0, abs=0.1)


async def test_so_many_streams_wait_to_be_opened_and_what_is_read_waits_for_these_once():
    machines = Machines()
    await machines.add("ours", "theirs", "flood", up=60.0 * MEGABYTE, down=60.0 * MEGABYTE)
    stream, other = await machines.stream("ours", "theirs")
    core = machines.network.hosts["theirs"].core
    await machines.connect("flood", "theirs")
    transport, peer = machines.transports["flood"], identity("theirs").peer_id

    async def floods():
        while True:
            await asyncio.sleep(0.001)
            opening = (transport.open_stream(peer, PROTOCOL) for _ in range(20))
            opened.append(asyncio.gather(*opening))  # four times what there is time for

    async def read_after():
        began = now()
        async with asyncio.timeout(5.0):
            await stream.write(b"x")
            await other.read_exactly(1)
        return now() - began

    at_once, opened = await read_after(), []
    spent_seconds, flood = core.spent_seconds, asyncio.create_task(floods())
    await asyncio.sleep(1.0)
    assert core.spent_seconds - spent_seconds == pytest.approx(1.0, abs=0.1)
    queue_seconds = OPENS_WAITING_MAX * OPEN_SECONDS
    for _ in range(10):
        assert await read_after() == pytest.approx(at_once + queue_seconds, abs=0.005)
    flood.cancel()
    await asyncio.gather(*opened)


async def test_work_that_comes_at_once_is_done_in_turn():
    machines = Machines()
    await machines.add("ours", up=60.0 * MEGABYTE, down=60.0 * MEGABYTE)
    core = machines.network.hosts["ours"].core
    core.spend(1.0)
    core.spend(1.0)
    assert core.late_seconds == pytest.approx(2.0)
    await asyncio.sleep(1.5)
    assert core.late_seconds == pytest.approx(0.5)
    await asyncio.sleep(1.5)
    core.spend(1.0)
    assert core.late_seconds == pytest.approx(1.0)
    assert core.spent_seconds == pytest.approx(3.0)
