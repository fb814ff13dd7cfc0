"""Connection to an engine process played by a test, on real sockets."""

import asyncio
import random

import pytest

from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts
from roles.ports.engines import EngineError, Generation, GenerationRequest
from roles.ports.storage import StorageFullError
from tests.roles.engines.subprocess.engine_processes import BRISK, Played, conversation, eventually

REQUESTS = (GenerationRequest((2, 3), 7, 4), GenerationRequest((2,), 2**64 - 1, 4))
ANSWER = Generation((5, 1), (-0.5, -0.1), (b"proof",))


async def begun(patience=BRISK):
    played, process = await Played.begin()
    played.hello()
    talk = await conversation(process, patience)
    assert isinstance(await played.hear(), wire.Make)
    return played, talk


def generate(talk, items=2, tokens=8, elements=()):
    return asyncio.create_task(talk.call("generate", (1.0,), items, tokens, elements))


def item(call, value=ANSWER):
    fields = {"tokens": value.tokens, "logprobs": value.logprobs, "proofs": value.proofs}
    return wire.Item(id=call.id, value=fields)


async def test_calls_in_flight_are_answered_by_their_number_as_items_come():
    played, talk = await begun()
    first, second = generate(talk), generate(talk, items=1)
    one, other = await played.hear(), await played.hear()
    assert {one.id, other.id} == {1, 2}
    assert one.method == "generate"
    calls = {1: one, 2: other} if one.id == 1 else {1: other, 2: one}
    played.say(item(calls[1]))
    played.say(item(calls[2]))
    played.say(wire.CallDone(id=2))
    assert await second == [ANSWER]
    played.say(item(calls[1]))
    played.say(wire.CallDone(id=1))
    assert await first == [ANSWER, ANSWER]
    await talk.close()
    assert played.killed


async def test_a_long_argument_is_sent_before_its_call():
    played, talk = await begun()
    call = generate(talk, items=1, elements=REQUESTS)
    part, question = await played.hear(), await played.hear()
    assert (part.id, question.id, question.arguments) == (1, 1, (1.0,))
    assert [wire.unpacked(one)["seed"] for one in part.elements] == [7, 2**64 - 1]
    played.say(item(question))
    played.say(wire.CallDone(id=1))
    assert await call == [ANSWER]
    await talk.close()


async def test_a_call_that_is_cancelled_while_it_is_sent_is_dropped_on_both_sides():
    """The process does not read, so the sender waits."""
    played, talk = await begun()
    call = generate(talk, elements=[b"x" * wire.PART_BYTES] * 20)
    await asyncio.sleep(0.2)
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while isinstance(message := await played.hear(), wire.CallPart):
        assert message.id == 1
    assert message == wire.CancelCall(id=1)
    again = generate(talk, items=0)
    played.say(wire.CallDone(id=(await played.hear()).id))
    assert await again == []
    await talk.close()


async def test_a_call_fails_if_the_process_dies_while_it_is_sent():
    played, talk = await begun()
    call = generate(talk, elements=[b"x" * wire.PART_BYTES] * 20)
    await asyncio.sleep(0.2)
    played.die(b"-9\n")
    with pytest.raises(EngineError, match="engine process"):
        await call
    await talk.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError", ValueError),
        ("LookupError", LookupError),
        ("StorageFullError", StorageFullError),
        ("EngineError", EngineError),
    ],
)
async def test_what_a_port_documents_comes_back_as_it_is_and_the_process_lives(error, kind):
    played, talk = await begun()
    call = generate(talk)
    question = await played.hear()
    played.say(wire.Failed(id=question.id, error=error, reason="it says why", trace="where"))
    with pytest.raises(kind, match="it says why") as raised:
        await call
    assert type(raised.value) is kind
    assert getattr(raised.value, "trace", "where") == "where"
    assert talk.reason == ""
    await talk.close()


@pytest.mark.parametrize("how", ["older", "newer", "silent about it"])
async def test_a_process_of_another_version_is_refused_and_told_why(how):
    played, process = await Played.begin()
    if how == "silent about it":
        played.say(wire.Made())
    else:
        version = wire.VERSION + (1 if how == "newer" else -1)
        played.say(wire.Hello(version=version, software="prime-node/9"))
    with pytest.raises(EngineError) as raised:
        await conversation(process, CallTimeouts(start_seconds=3))
    if how != "silent about it":
        assert "another version (prime-node/9" in str(raised.value)
        assert "--engine-python" in str(raised.value)
    assert played.killed


async def test_an_engine_that_cannot_be_made_is_told():
    played, process = await Played.begin()
    played.say(wire.Hello(version=wire.VERSION, software=""))
    played.say(wire.EngineHeartbeat(memory_bytes=1, tokens=0))
    failed = wire.Failed(id=None, error="ValueError", reason="no such device", trace="where")
    played.say(failed)
    with pytest.raises(EngineError, match="no engine: no such device"):
        await conversation(process)
    assert played.killed


async def test_a_kill_that_is_cancelled_lets_go_of_the_leash_and_the_channel():
    played, process = await Played.begin()
    played.watching.cancel()  # it does not end
    await asyncio.wait([played.watching])
    killing = asyncio.create_task(process.kill())
    await asyncio.sleep(0)
    killing.cancel()
    await asyncio.wait([killing])
    assert killing.cancelled()
    async with asyncio.timeout(60):
        assert await played.leash[0].read() == await played.reader.read() == b""
    await played.close()


async def test_a_start_has_a_deadline():
    played, process = await Played.begin()
    with pytest.raises(EngineError, match=r"not made within 0\.2 s"):
        await conversation(process, CallTimeouts(start_seconds=0.2))
    assert played.killed


NONSENSE = {
    "too many items": lambda call: [item(call)] * 3,
    "too few items": lambda call: [item(call), wire.CallDone(id=call.id)],
    "an item of another type": lambda call: [wire.Item(id=call.id, value={"tokens": "x"})],
    "an answer to nothing": lambda call: [wire.CallDone(id=call.id + 1)],
    "a second engine": lambda _: [wire.Made()],
    "a second hello": lambda _: [wire.Hello(version=wire.VERSION, software="")],
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_ends_the_process_and_fails_what_is_in_flight(name):
    played, talk = await begun()
    call = generate(talk)
    for message in NONSENSE[name](await played.hear()):
        played.say(message)
    with pytest.raises(EngineError, match="sent an invalid message"):
        await call
    assert played.killed
    with pytest.raises(EngineError, match="sent an invalid message"):
        await generate(talk)


@pytest.mark.parametrize("seed", range(40))
async def test_no_bytes_do_more_than_end_the_conversation(seed):
    """Random bytes, truncated frames, and damaged frames."""
    dice = random.Random(seed)
    played, talk = await begun()
    call = generate(talk)
    question = await played.hear()
    frame = bytearray(wire.encode(item(question), wire.ANSWER_BYTES_MAX))
    match seed % 3:
        case 0:
            noise = dice.randbytes(dice.randrange(1, 300))
        case 1:
            noise = bytes(frame[: dice.randrange(len(frame))])
        case _:
            for _ in range(dice.randrange(1, 4)):
                frame[dice.randrange(4, len(frame))] = dice.randrange(256)
            noise = bytes(frame) + b"\0\0\0\2ok"
    played.writer.write(noise)
    await played.writer.drain()
    played.die(b"1\n")
    with pytest.raises(EngineError) as raised:
        await call
    assert str(raised.value) == talk.reason
    assert len(talk.reason) <= 300
    await talk.close()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (b"-9\n", "was killed by signal 9, perhaps because memory ran out"),
        (b"-6\n", "was killed by signal 6"),
        (b"3\n", "exited with code 3"),
        (b"", "lost its fork server"),
    ],
)
async def test_a_death_is_told_with_its_size_and_the_last_line(how, told):
    played, talk = await begun()
    played.say(wire.EngineHeartbeat(memory_bytes=812_000_000, tokens=5))
    await eventually(lambda: talk.memory_bytes > 0)
    call = generate(talk)
    await played.hear()
    played.errors.send(b"first\nlibrary: no memory" + b" and so on" * 1000 + b"\n")
    played.die(how)
    with pytest.raises(EngineError) as raised:
        await call
    assert f"the engine process {told} at 812 MB: library: no memory" in str(raised.value)
    assert len(str(raised.value)) < 300
    assert raised.value.trace.startswith("first\n")


async def test_silence_ends_the_process():
    played, talk = await begun(CallTimeouts(silence_seconds=0.3))
    call = generate(talk)
    with pytest.raises(EngineError, match=r"no heartbeat for 0\.3 s"):
        await call
    assert played.killed


async def beating(played):
    while True:
        played.say(wire.EngineHeartbeat(memory_bytes=1, tokens=0))
        await asyncio.sleep(0.05)


async def test_a_call_without_progress_ends_the_process_while_its_heart_beats():
    played, talk = await begun(
        CallTimeouts(silence_seconds=5, call_seconds=0.5, tokens_per_second_min=1000)
    )
    heart = asyncio.create_task(beating(played))
    call = generate(talk, tokens=100)
    started_at = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=r"no progress for 0\.6 s"):
            await call
    assert 0.55 < asyncio.get_running_loop().time() - started_at < 3
    heart.cancel()


async def test_a_call_that_waits_for_others_has_its_own_time_when_it_is_its_turn():
    played, talk = await begun(
        CallTimeouts(silence_seconds=5, call_seconds=0.5, tokens_per_second_min=1e9)
    )
    heart = asyncio.create_task(beating(played))
    calls = [generate(talk, items=1) for _ in range(4)]
    for _ in calls:
        question = await played.hear()
        await asyncio.sleep(0.3)
        played.say(item(question))
        played.say(wire.CallDone(id=question.id))
    assert await asyncio.gather(*calls) == [[ANSWER]] * 4
    heart.cancel()
    await talk.close()


async def test_a_cancelled_call_is_told_and_its_late_answer_is_nobodys():
    played, talk = await begun()
    call = generate(talk)
    question = await played.hear()
    call.cancel()
    assert await played.hear() == wire.CancelCall(id=question.id)
    with pytest.raises(asyncio.CancelledError):
        await call
    for message in (item(question), item(question), wire.CallDone(id=question.id)):
        played.say(message)
    again = generate(talk, items=1)
    question = await played.hear()
    played.say(item(question))
    played.say(wire.CallDone(id=question.id))
    assert await again == [ANSWER]
    await talk.close()


async def test_a_cancelled_call_that_hangs_still_ends_the_process():
    played, talk = await begun(
        CallTimeouts(silence_seconds=5, call_seconds=0.3, tokens_per_second_min=1e9)
    )
    call = generate(talk)
    await played.hear()
    call.cancel()
    heart = asyncio.create_task(beating(played))
    await eventually(lambda: talk.reason != "")
    assert "no progress" in talk.reason
    heart.cancel()
