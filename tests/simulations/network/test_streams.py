"""A simulated stream is a stream: all bytes, in their order, however they were cut and delayed."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.rng import Rng
from simulations.network.connections import LinkConditions
from simulations.network.links import SMALL_BYTES
from simulations.network.network import SimNetwork
from simulations.network.transport import address_of
from simulations.runtime.loop import run_virtual
from tests.worlds.messages import identity

MEGABYTE = 1_000_000
SIZES = st.one_of(st.integers(1, 200), st.integers(SMALL_BYTES - 2, 3 * SMALL_BYTES))
PAUSES = st.sampled_from([0.0, 0.0, 0.0003, 0.001, 0.2])
WRITES = st.lists(st.tuples(SIZES, PAUSES), min_size=1, max_size=30)


async def opened(rng, *, loss=0.0, bytes_per_second=60.0 * MEGABYTE):
    """Return both ends of a stream between two machines, and the network that holds them."""
    loop = asyncio.get_running_loop()
    network = SimNetwork(
        loop, rng, LinkConditions(rng.child("weather"), 0.2, loss), lambda *_: 0.03
    )
    transports = []
    for name in ("ours", "theirs"):
        host = network.add_host(
            name,
            identity(name).peer_id,
            region="eu",
            upload_bytes_per_second=bytes_per_second,
            download_bytes_per_second=bytes_per_second,
        )
        transports.append(network.attach(name, lambda error: loop.call_soon(print, error)))
    ours, theirs = transports
    accepted = loop.create_future()
    done = asyncio.Event()

    async def serve(stream):
        accepted.set_result(stream)
        await done.wait()

    await theirs.handle("/test", serve)
    await ours.connect(address_of(host))
    return await ours.open_stream(theirs.peer_id, "/test"), await accepted, network


async def everything(stream):
    pieces = []
    while piece := await stream.read(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@settings(max_examples=100)
@given(WRITES, st.sampled_from([0.0, 0.2]), st.binary(max_size=4))
def test_what_was_written_is_read_in_its_order(writes, loss, seed):
    async def scenario():
        rng = Rng(seed)
        stream, other, _network = await opened(rng.child("network"), loss=loss)
        reading = asyncio.create_task(everything(other))
        sent = []
        for size, pause in writes:
            sent.append(rng.bytes(size))
            await stream.write(sent[-1])
            if pause:
                await asyncio.sleep(pause)
        await stream.close()
        assert await reading == b"".join(sent)

    run_virtual(scenario())


@pytest.mark.parametrize("piece_bytes", [2 * SMALL_BYTES, 1 << 16, 1 << 18])
def test_a_stream_alone_gets_the_whole_line(piece_bytes):
    """A window of a megabyte and a round trip of 30 ms carry more than that."""

    async def scenario():
        line = 20.0 * MEGABYTE
        stream, other, _network = await opened(Rng(b"1"), bytes_per_second=line)
        reading = asyncio.create_task(everything(other))
        began, count = asyncio.get_running_loop().time(), 0
        while count < 20 * MEGABYTE:
            await stream.write(bytes(piece_bytes))
            count += piece_bytes
        await stream.close()
        await reading
        seconds = asyncio.get_running_loop().time() - began
        assert count / line < seconds < 1.1 * count / line + 0.1

    run_virtual(scenario())
