import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.streams.framing import read_frame, write_frame
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from roles.ports.transport import TransportError
from tests.worlds.network import Hub

pytestmark = pytest.mark.virtual


async def pair():
    hub = Hub()
    one, other = PeerId("one"), PeerId("other")
    for peer in (one, other):
        hub.transport(peer)
    hub.connect(one, other)
    return hub.open(one, other)


@given(st.lists(st.binary(max_size=300), max_size=5), st.sampled_from([2, 4]))
async def test_frames_come_out_as_they_went_in(frames, length_bytes):
    ours, theirs = await pair()
    for frame in frames:
        await write_frame(ours, frame, length_bytes=length_bytes)
    assert [await read_frame(theirs, 300, length_bytes=length_bytes) for _ in frames] == frames


async def test_the_limit_is_checked_before_anything_is_read():
    ours, theirs = await pair()
    await ours.write((11).to_bytes(4, "big"))
    fault = await read_frame(theirs, 10)
    assert isinstance(fault, Fault)
    assert fault.code == "oversize"
    await write_frame(ours, bytes(10))
    assert await read_frame(theirs, 10) == bytes(10)


@pytest.mark.parametrize("sent", [b"", b"\0\0", (5).to_bytes(4, "big") + b"abc"])
async def test_a_frame_that_breaks_off_is_a_broken_stream(sent):
    ours, theirs = await pair()
    await ours.write(sent)
    await ours.close()
    with pytest.raises(TransportError):
        await read_frame(theirs, 10)
