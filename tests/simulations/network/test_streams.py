"""Simulated streams deliver all bytes in order, under any splits and delays."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.rng import Rng
from simulations.runtime.loop import VirtualLoop
from tests.simulations.network.machines import (
    MEGABYTE,
    SMALL_BYTES,
    Machines,
    everything,
    now,
)

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

SIZES = st.one_of(st.integers(1, 200), st.integers(SMALL_BYTES - 2, 3 * SMALL_BYTES))
PAUSES = st.sampled_from([0.0, 0.0, 0.0003, 0.001, 0.2])
WRITES = st.lists(st.tuples(SIZES, PAUSES), min_size=1, max_size=30)


async def opened(seed, *, loss=0.0, bytes_per_second=60.0 * MEGABYTE):
    """Return both ends of a stream between two machines, and the machines to keep them alive."""
    machines = Machines(seed=seed, jitter=0.2, loss=loss)
    await machines.add("ours", "theirs", up=bytes_per_second, down=bytes_per_second)
    return *await machines.stream("ours", "theirs"), machines


@settings(max_examples=100)
@given(WRITES, st.sampled_from([0.0, 0.2]), st.binary(max_size=4))
async def test_what_was_written_is_read_in_its_order(writes, loss, seed):
    rng = Rng(seed)
    stream, other, _machines = await opened(seed, loss=loss)
    reading = asyncio.create_task(everything(other))
    sent = []
    for size, pause in writes:
        sent.append(rng.bytes(size))
        await stream.write(sent[-1])
        if pause:
            await asyncio.sleep(pause)
    await stream.close()
    assert await reading == b"".join(sent)


@pytest.mark.parametrize("piece_bytes", [2 * SMALL_BYTES, 1 << 16, 1 << 18])
async def test_a_stream_alone_gets_the_whole_line(piece_bytes):
    """A window of a megabyte and a round trip of 30 ms carry more than that."""
    line = 20.0 * MEGABYTE
    stream, other, _machines = await opened(b"1", bytes_per_second=line)
    reading = asyncio.create_task(everything(other))
    began, count = now(), 0
    while count < 20 * MEGABYTE:
        await stream.write(bytes(piece_bytes))
        count += piece_bytes
    await stream.close()
    await reading
    seconds = now() - began
    assert count / line < seconds < 1.1 * count / line + 0.1
