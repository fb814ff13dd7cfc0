"""Capacity of a line: flows share it, small writes overtake and still use their part."""

import asyncio

import pytest

from simulations.runtime.loop import VirtualLoop
from tests.simulations.network.machines import (
    MEGABYTE,
    SMALL_BYTES,
    Machines,
    everything,
    now,
)

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

TICK_SECONDS = 0.001
"""Small writes arrive at the next tick of the loop."""


async def send(stream, count, piece_bytes=100_000):
    """Write ``count`` bytes and close."""
    for _ in range(count // piece_bytes):
        await stream.write(bytes(piece_bytes))
    await stream.close()


async def read_at(stream):
    """Return the time at which all of a stream has been read."""
    await everything(stream)
    return now()


async def seconds_of_flows(machines, *pairs, count=10 * MEGABYTE):
    """Send ``count`` bytes from each source to its target at once; return each duration."""
    ends = [await machines.stream(*pair) for pair in pairs]
    began = now()
    reading = [asyncio.create_task(read_at(theirs)) for _, theirs in ends]
    await asyncio.gather(*(send(ours, count) for ours, _ in ends))
    return [at - began for at in await asyncio.gather(*reading)]


async def star(*, centre, others):
    """Return machines of which ``centre`` has other lines than ``a`` and ``b``."""
    machines = Machines()
    await machines.add("centre", **centre)
    await machines.add("a", "b", **others)
    return machines


FAST, SLOW = 100.0 * MEGABYTE, 10.0 * MEGABYTE


@pytest.mark.parametrize(
    ("centre", "pairs"),
    [
        ({"up": SLOW, "down": FAST}, [("centre", "a"), ("centre", "b")]),
        ({"up": FAST, "down": SLOW}, [("a", "centre"), ("b", "centre")]),
    ],
    ids=["upload", "download"],
)
async def test_two_flows_share_a_line_equally(centre, pairs):
    machines = await star(centre=centre, others={"up": FAST, "down": FAST})
    alone = await seconds_of_flows(machines, pairs[0])
    assert alone == [pytest.approx(1.0, rel=0.05)]
    together = await seconds_of_flows(machines, *pairs)
    assert together == [pytest.approx(2.0, rel=0.1), pytest.approx(2.0, rel=0.1)]


async def test_upload_and_download_do_not_share():
    machines = await star(centre={"up": SLOW, "down": SLOW}, others={"up": FAST, "down": FAST})
    both = await seconds_of_flows(machines, ("centre", "a"), ("b", "centre"))
    assert both == [pytest.approx(1.0, rel=0.05)] * 2


async def test_a_flow_that_is_held_up_elsewhere_leaves_its_share_to_the_other():
    machines = Machines()
    await machines.add("centre", up=SLOW)
    await machines.add("a", down=FAST)
    await machines.add("b", down=SLOW / 10)
    fast, slow = await seconds_of_flows(machines, ("centre", "a"), ("centre", "b"))
    assert fast == pytest.approx(10 / 9, rel=0.1)
    assert slow == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("dialler", ["a", "b"])
@pytest.mark.parametrize(("up", "down"), [(SLOW, SLOW), (SLOW, FAST), (FAST, SLOW)])
async def test_a_large_write_takes_the_time_of_the_slower_line_and_the_way(up, down, dialler):
    """The write passes the second line while it still leaves the first one."""
    machines = Machines()
    await machines.add("a", up=up)
    await machines.add("b", down=down)
    await machines.connect(*("ab" if dialler == "a" else "ba"))
    ours, theirs = await machines.stream("a", "b")
    began = now()
    await ours.write(bytes(500_000))
    await theirs.read_exactly(500_000)
    expected = machines.latency("a", "b") + 500_000 / SLOW
    assert now() - began == pytest.approx(expected, abs=TICK_SECONDS)


async def busy_line(line):
    """Return machines, and two streams from ``a`` to ``b`` over a slow line."""
    machines = Machines()
    await machines.add("a", up=line, down=line)
    await machines.add("b", up=line, down=line)
    return machines, await machines.stream("a", "b"), await machines.stream("a", "b")


async def test_a_small_write_does_not_wait_behind_bulk():
    machines, (bulk, _), (ours, theirs) = await busy_line(line=1.0 * MEGABYTE)
    began = now()
    await bulk.write(bytes(MEGABYTE))
    await ours.write(bytes(1000))
    await theirs.read_exactly(1000)
    expected = machines.latency("a", "b") + 2 * 1000 / MEGABYTE
    assert now() - began == pytest.approx(expected, abs=TICK_SECONDS)


async def test_small_writes_take_their_capacity_from_bulk():
    machines, (bulk, reader), (ours, _) = await busy_line(line=1.0 * MEGABYTE)
    began = now()
    for _ in range(100):
        await ours.write(bytes(SMALL_BYTES))
    await bulk.write(bytes(500_000))
    await reader.read_exactly(500_000)
    expected = machines.latency("a", "b") + (100 * SMALL_BYTES + 500_000) / MEGABYTE
    assert now() - began == pytest.approx(expected, abs=TICK_SECONDS)


async def test_small_writes_queue_behind_each_other():
    machines, (one, reader), (other, _) = await busy_line(line=1.0 * MEGABYTE)
    began = now()
    for _ in range(50):
        await other.write(bytes(SMALL_BYTES))
        await one.write(bytes(SMALL_BYTES))
    await reader.read_exactly(50 * SMALL_BYTES)
    expected = machines.latency("a", "b") + 101 * SMALL_BYTES / MEGABYTE
    assert now() - began == pytest.approx(expected, abs=TICK_SECONDS)


async def test_a_changed_capacity_holds_from_the_next_write_on():
    machines, (ours, theirs), _ = await busy_line(line=1.0 * MEGABYTE)
    machines.network.set_capacity("a", 10.0 * MEGABYTE, MEGABYTE)
    machines.network.set_capacity("b", MEGABYTE, 10.0 * MEGABYTE)
    began = now()
    await ours.write(bytes(500_000))
    await theirs.read_exactly(500_000)
    expected = machines.latency("a", "b") + 0.05
    assert now() - began == pytest.approx(expected, abs=TICK_SECONDS)


async def test_meters_count_what_was_sent_and_what_was_received():
    machines, (ours, theirs), _ = await busy_line(line=1.0 * MEGABYTE)
    await ours.write(bytes(300_000))
    await theirs.write(bytes(100))
    await asyncio.sleep(1)
    a, b = (machines.network.hosts[name].meters["test"] for name in "ab")
    assert (a.sent, b.received, b.sent, a.received) == (300_000, 300_000, 100, 100)
