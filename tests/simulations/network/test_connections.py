"""Effects of jitter, loss and cuts on a connection."""

import asyncio
import math

import pytest

from roles.ports.transport import TransportError
from simulations.runtime.loop import VirtualLoop
from tests.simulations.network.machines import (
    KEEPALIVE_SECONDS,
    RETRANSMISSION_SECONDS_MIN,
    WINDOW_BYTES,
    Machines,
    everything,
    now,
)

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

TICK_SECONDS = 0.001
SEGMENT_BYTES = 1460
"""Payload of a TCP segment over Ethernet."""


async def two(**conditions):
    """Return two machines and both ends of a stream from ``a`` to ``b``."""
    machines = Machines(**conditions)
    await machines.add("a", "b")
    return machines, *await machines.stream("a", "b")


async def delays_of_small_writes(machines, ours, theirs, count):
    """Write now and then; return each write's delay beyond the latency."""
    extra = []
    for _ in range(count):
        began = now()
        await ours.write(b"x")
        await theirs.read_exactly(1)
        extra.append(now() - began - machines.latency("a", "b"))
    return extra


# Jitter and loss


async def test_jitter_adds_up_to_its_share_of_the_latency():
    machines, ours, theirs = await two(jitter=0.5, round_trip_seconds=0.4)
    latency = machines.latency("a", "b")
    extra = await delays_of_small_writes(machines, ours, theirs, 1000)
    assert min(extra) >= 0
    assert max(extra) <= 0.5 * latency + 2 * TICK_SECONDS
    assert sum(extra) / len(extra) == pytest.approx(0.25 * latency, rel=0.1)


async def test_without_jitter_and_loss_every_write_takes_the_latency():
    machines, ours, theirs = await two()
    extra = await delays_of_small_writes(machines, ours, theirs, 100)
    assert all(0 <= seconds <= 1.1 * TICK_SECONDS for seconds in extra)


@pytest.mark.parametrize("round_trip_seconds", [0.03, 0.3])
async def test_a_small_write_that_is_lost_comes_after_a_retransmission(round_trip_seconds):
    """A timeout of two round trips, and not below the kernel's minimum."""
    machines, ours, theirs = await two(loss=1.0, round_trip_seconds=round_trip_seconds)
    timeout = max(RETRANSMISSION_SECONDS_MIN, 4 * machines.latency("a", "b"))
    for seconds in await delays_of_small_writes(machines, ours, theirs, 20):
        assert seconds == pytest.approx(timeout, abs=1.1 * TICK_SECONDS)


async def test_as_many_small_writes_are_lost_as_the_loss_says():
    machines, ours, theirs = await two(loss=0.05)
    extra = await delays_of_small_writes(machines, ours, theirs, 4000)
    late = sum(seconds > RETRANSMISSION_SECONDS_MIN / 2 for seconds in extra)
    assert 0.04 < late / len(extra) < 0.06


async def test_what_follows_a_lost_write_waits_for_it():
    _, ours, theirs = await two(loss=0.2)
    sent = bytes(range(256))
    for byte in sent:
        await ours.write(bytes([byte]))
        await asyncio.sleep(0.01)
    await ours.close()
    assert await everything(theirs) == sent


@pytest.mark.parametrize(
    ("loss", "round_trip_seconds"), [(0.0001, 0.02), (0.001, 0.1), (0.02, 0.2)]
)
async def test_loss_gives_a_stream_the_pace_of_mathis(loss, round_trip_seconds):
    """Mathis, Semke, Mahdavi, Ott 1997: segment / round trip * sqrt(3/2) / sqrt(loss)."""
    machines, ours, theirs = await two(loss=loss, round_trip_seconds=round_trip_seconds)
    round_trip = 2 * machines.latency("a", "b")
    pace = SEGMENT_BYTES / round_trip * math.sqrt(3 / 2) / math.sqrt(loss)
    began, count = now(), 0
    reading = asyncio.create_task(everything(theirs))
    while count < 20 * pace:
        await ours.write(bytes(10_000))
        count += 10_000
    await ours.close()
    await reading
    assert count / (now() - began) == pytest.approx(pace, rel=0.05)


# Cuts


async def test_nothing_is_lost_on_a_cut_way_and_all_of_it_comes_in_its_order():
    machines, ours, theirs = await two()
    cut = machines.network.one_way(["a"], ["b"])
    await ours.write(b"1")
    await ours.write(bytes(10_000))
    await ours.write(b"2")
    await ours.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(theirs.read(1), KEEPALIVE_SECONDS - 1)
    machines.network.heal(cut)
    assert await everything(theirs) == b"1" + bytes(10_000) + b"2"


async def test_what_is_on_its_way_when_the_way_is_cut_waits_too():
    machines, ours, theirs = await two(round_trip_seconds=1.0)
    await ours.write(b"1")
    machines.network.one_way(["a"], ["b"])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(theirs.read(1), 2)


async def test_the_other_way_stays_open():
    machines, ours, theirs = await two()
    machines.network.one_way(["a"], ["b"])
    await theirs.write(b"answer")
    assert await asyncio.wait_for(ours.read(10), 1) == b"answer"


@pytest.mark.parametrize("dialler", ["a", "b"])
async def test_a_path_does_not_depend_on_the_dialler_or_the_opener(dialler):
    machines = Machines()
    await machines.add("a", "b")
    await machines.connect(*("ab" if dialler == "a" else "ba"))
    a, b = await machines.stream("a", "b")
    other_b, other_a = await machines.stream("b", "a")
    machines.network.one_way(["a"], ["b"])
    for end in (a, b, other_a, other_b):
        await end.write(b"1")
    for end in (a, other_a):
        assert await asyncio.wait_for(end.read(1), 1) == b"1"
    for end in (b, other_b):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(end.read(1), 5)


async def test_a_cut_both_ways_holds_both():
    machines, ours, theirs = await two()
    cut = machines.network.partition(["a"])
    await ours.write(b"1")
    await theirs.write(b"2")
    await asyncio.sleep(5)
    for end in (ours, theirs):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(end.read(1), 1)
    machines.network.heal(cut)
    assert (await theirs.read(1), await ours.read(1)) == (b"1", b"2")


async def test_acknowledgements_do_not_pass_a_cut_way_either():
    """All bytes are read, and the writer learns of it only when the path is open again."""
    machines, ours, theirs = await two()
    cut = machines.network.one_way(["b"], ["a"])
    await ours.write(bytes(WINDOW_BYTES))
    await theirs.read_exactly(WINDOW_BYTES)
    writing = asyncio.create_task(ours.write(b"more"))
    await asyncio.sleep(10)
    assert not ours.offer(b"more")
    assert not writing.done()
    machines.network.heal(cut)
    await asyncio.wait_for(writing, 1)
    assert await theirs.read(10) == b"more"


@pytest.mark.parametrize("both", [True, False], ids=["both ways", "one way"])
async def test_a_cut_ends_a_connection_after_its_keep_alive(both):
    machines, ours, theirs = await two()
    if both:
        machines.network.partition(["a"])
    else:
        machines.network.one_way(["b"], ["a"])
    await asyncio.sleep(KEEPALIVE_SECONDS - 0.1)
    assert machines.connected("a", "b")
    await asyncio.sleep(0.2)
    assert not machines.connected("a", "b")
    for end in (ours, theirs):
        with pytest.raises(TransportError):
            await end.read(1)
        with pytest.raises(TransportError):
            await end.write(b"1")
        assert not end.offer(b"1")


async def test_cuts_that_end_before_do_not_add_up():
    machines, *_ = await two()
    for _ in range(3):
        cut = machines.network.partition(["a"])
        await asyncio.sleep(0.7 * KEEPALIVE_SECONDS)
        machines.network.heal(cut)
        await asyncio.sleep(1)
    assert machines.connected("a", "b")


async def test_a_second_cut_does_not_prolong_the_first():
    machines, *_ = await two()
    machines.network.one_way(["a"], ["b"])
    await asyncio.sleep(KEEPALIVE_SECONDS / 2)
    machines.network.partition(["a"])
    await asyncio.sleep(KEEPALIVE_SECONDS / 2 + 0.1)
    assert not machines.connected("a", "b")


async def test_a_connection_that_was_closed_meanwhile_is_not_closed_again():
    machines, *_ = await two()
    cut = machines.network.partition(["a"])
    machines.network.break_connections("a", "b")
    machines.network.heal(cut)
    ours, theirs = await machines.stream("a", "b")
    await asyncio.sleep(2 * KEEPALIVE_SECONDS)
    await ours.write(b"1")
    assert await theirs.read(1) == b"1"


# Windows


async def test_a_writer_waits_when_a_window_is_unread_and_goes_on_when_it_is_read():
    _, ours, theirs = await two()
    await ours.write(bytes(WINDOW_BYTES))
    writing = asyncio.create_task(ours.write(b"more"))
    await asyncio.sleep(60)
    assert not writing.done()
    await theirs.read(1)
    await asyncio.wait_for(writing, 1)


async def test_an_offer_is_refused_when_a_window_is_unread():
    _, ours, theirs = await two()
    assert ours.offer(bytes(WINDOW_BYTES - 1))
    assert ours.offer(b"1")
    assert not ours.offer(b"2")
    await theirs.read_exactly(WINDOW_BYTES)
    assert ours.offer(b"3")
    assert await theirs.read(10) == b"3"


async def test_each_stream_has_a_window_of_its_own():
    machines, ours, _ = await two()
    other, _ = await machines.stream("a", "b")
    await ours.write(bytes(WINDOW_BYTES))
    assert not ours.offer(b"1")
    assert other.offer(b"1")


async def test_a_long_way_carries_a_window_at_a_time():
    """A reader returns window at once, so one window passes per latency."""
    machines, ours, theirs = await two(round_trip_seconds=2.0)
    reading = asyncio.create_task(everything(theirs))
    began = now()
    for _ in range(100):
        await ours.write(bytes(WINDOW_BYTES // 10))
    await ours.close()
    await reading
    latency = machines.latency("a", "b")
    assert now() - began == pytest.approx(10 * latency, rel=0.1)


async def test_writers_of_one_stream_all_go_on_in_their_order_when_there_is_room():
    _, ours, theirs = await two()
    await ours.write(bytes(WINDOW_BYTES))
    writing = [asyncio.create_task(ours.write(bytes([number]))) for number in range(5)]
    await asyncio.sleep(1)
    await theirs.read_exactly(WINDOW_BYTES)
    await asyncio.wait_for(asyncio.gather(*writing), 1)
    assert await theirs.read_exactly(5) == bytes(range(5))


async def test_a_writer_that_gives_up_leaves_its_turn_to_the_next():
    _, ours, theirs = await two()
    await ours.write(bytes(WINDOW_BYTES))
    first, second = (asyncio.create_task(ours.write(b"1")) for _ in range(2))
    await asyncio.sleep(1)
    await theirs.read_exactly(WINDOW_BYTES)
    first.cancel()
    await asyncio.wait_for(second, 1)


# Ends


async def test_who_has_closed_writes_no_more_and_the_reader_comes_to_the_end():
    _, ours, theirs = await two()
    await ours.write(b"all")
    await ours.close()
    await ours.close()
    with pytest.raises(TransportError):
        await ours.write(b"more")
    assert not ours.offer(b"more")
    assert await everything(theirs) == b"all"
    assert await theirs.read(1) == b""
    with pytest.raises(TransportError):
        await theirs.read_exactly(1)


async def test_a_read_takes_what_it_may_and_leaves_the_rest():
    _, ours, theirs = await two()
    await ours.write(b"hello world")
    await ours.write(b"!")
    await asyncio.sleep(1)
    assert await theirs.read(2) == b"he"
    assert await theirs.read_exactly(3) == b"llo"
    assert await theirs.read(100) == b" world"
    assert await theirs.read_exactly(1) == b"!"


async def test_a_writer_learns_that_its_reader_has_closed():
    _, ours, theirs = await two()
    await ours.write(bytes(WINDOW_BYTES))
    writing = asyncio.create_task(ours.write(b"more"))
    await asyncio.sleep(1)
    await theirs.close()
    with pytest.raises(TransportError):
        await asyncio.wait_for(writing, 1)
    assert not ours.offer(b"more")


async def test_a_connection_forgets_its_streams_when_they_are_over():
    machines, ours, theirs = await two()
    (connection,) = machines.network.hosts["a"].connections.values()
    for one, other in ((ours, theirs), reversed(await machines.stream("b", "a"))):
        assert connection.streams
        await one.close()
        assert await everything(other) == b""
    assert not connection.streams


async def test_a_reset_wakes_a_reader_and_a_writer_with_an_error():
    machines, ours, theirs = await two()
    await ours.write(bytes(WINDOW_BYTES))
    writing = asyncio.create_task(ours.write(b"more"))
    reading = asyncio.create_task(ours.read(1))
    await asyncio.sleep(1)
    machines.network.break_streams("a", "b")
    for task in (writing, reading):
        with pytest.raises(TransportError):
            await task
    with pytest.raises(TransportError):
        await theirs.read(1)
    assert machines.connected("a", "b")
    await machines.stream("b", "a")


async def test_two_readers_of_one_stream_are_an_error():
    _, ours, _ = await two()
    first = asyncio.create_task(ours.read(1))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks read"):
        await ours.read(1)
    first.cancel()
