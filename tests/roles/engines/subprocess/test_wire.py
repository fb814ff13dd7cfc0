import asyncio
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.engines.subprocess import wire
from roles.ports.engines import StoredNumbers, TrainingSequence
from tests.roles.engines.subprocess.engine_processes import make

ANSWERS = [
    wire.Hello(version=1, software="prime-node/1"),
    wire.Made(),
    wire.Item(id=3, value={"tokens": (1, 2), "logprobs": (-0.5, float("-inf"))}),
    wire.CallDone(id=3),
    wire.Failed(id=None, error="EngineError", reason="no memory", trace="where"),
    wire.EngineHeartbeat(memory_bytes=10, tokens=0),
]


async def through(data: bytes, known, bytes_max=wire.ANSWER_BYTES_MAX):
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await wire.read(reader, known, bytes_max)


@pytest.mark.parametrize("message", ANSWERS, ids=lambda one: type(one).__name__)
async def test_what_is_said_is_heard_whole_or_not_at_all(message):
    frame = wire.encode(message, wire.ANSWER_BYTES_MAX)
    assert await through(frame, wire.ANSWERS) == message
    for end in range(len(frame)):
        with pytest.raises(EOFError):
            await through(frame[:end], wire.ANSWERS)


async def test_a_side_does_not_say_what_is_for_the_other():
    with pytest.raises(wire.WireError):
        await through(wire.encode(make(), wire.QUESTION_BYTES_MAX), wire.ANSWERS)
    with pytest.raises(wire.WireError):
        await through(wire.encode(wire.Made(), wire.ANSWER_BYTES_MAX), wire.QUESTIONS)


async def test_a_long_frame_is_refused_before_it_is_read():
    with pytest.raises(wire.WireError, match="too long"):
        await through((101).to_bytes(4, "big"), wire.ANSWERS, bytes_max=100)
    with pytest.raises(wire.WireError, match="too long"):
        wire.encode(wire.Item(id=1, value=b"x" * 100), 100)


@given(st.lists(st.binary(max_size=60)), st.integers(1, 200))
def test_a_long_argument_travels_whole_in_short_frames(elements, part_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PART_BYTES", part_bytes)
        frames = [*wire.call_parts(7, elements)]
    parts = [wire.decode(frame[4:], wire.QUESTIONS) for frame in frames]
    assert {part.id for part in parts} <= {7}
    assert [wire.unpacked(one) for part in parts for one in part.elements] == elements
    for part in parts:
        assert len(part.elements) == 1 or sum(map(len, part.elements)) <= part_bytes


def test_an_element_longer_than_a_frame_is_refused():
    with pytest.raises(wire.WireError, match="too long"):
        list(wire.call_parts(1, [b"x" * wire.QUESTION_BYTES_MAX]))


def test_no_frame_grows_with_a_batch():
    """As large as ours for a batch of INTELLECT-2: 4,096 answers, 131 million tokens."""
    place = StoredNumbers(Path("/" + "x" * 200), 2**40, 32_000)
    row = TrainingSequence(4095, place, place, place, 1.0, place, 9, place)
    frames = [len(frame) for frame in wire.call_parts(1, [row] * 4096)]
    assert max(frames) < 1.01 * wire.PART_BYTES
    assert sum(frames) < 6_000_000


def test_what_cannot_be_written_is_told():
    with pytest.raises(wire.WireError, match="cannot be written"):
        wire.encode(wire.Item(id=1, value=Path("\udcff")), 100)


@pytest.mark.parametrize(
    "body",
    [
        ["Done", {"id": 0}],
        ["Done", {"id": 2**62 + 1}],
        ["Done", {"id": 1, "more": 1}],
        ["Done"],
        ["Beat", {"memory_bytes": -1, "tokens": 0}],
        ["Failed", {"id": 1, "error": "KeyboardInterrupt", "reason": "", "trace": ""}],
        ["Failed", {"id": 1, "error": "ValueError", "reason": "x" * 1001, "trace": ""}],
        {"Done": 1},
        None,
    ],
)
def test_what_breaks_a_bound_is_refused(body):
    with pytest.raises(wire.WireError):
        wire.decode(msgpack.packb(body), wire.ANSWERS)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(body):
    try:
        message = wire.decode(body, wire.ANSWERS)
    except wire.WireError:
        return
    assert isinstance(message, wire.EngineMessage)


@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from(ANSWERS))
def test_a_damaged_message_is_a_message_or_refused(place, value, message):
    body = bytearray(wire.encode(message, wire.ANSWER_BYTES_MAX)[4:])
    body[place % len(body)] = value
    with suppress(wire.WireError):
        assert isinstance(wire.decode(bytes(body), wire.ANSWERS), wire.EngineMessage)
