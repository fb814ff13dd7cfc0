"""Group of ranks: it answers as rank 0 does, and ends as one."""

import asyncio
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.core.types import Digest, Version
from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts
from roles.engines.subprocess.group import EngineGroup, begin
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.supervisor import EngineSupervisor
from roles.ports.engines import EngineError, VerificationRequest
from roles.ports.storage import StorageFullError
from tests.roles.engines.subprocess.engine_processes import (
    BRISK,
    Played,
    eventually,
    exists,
    make,
)
from tests.roles.engines.training.batches import batch_of

HASTY = CallTimeouts(silence_seconds=0.5)
REQUEST = VerificationRequest((2, 3), 7, (5, 1), (-0.5, -0.1), (b"proof",))


# Ranks played by a test


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """A played rank never exits by itself: do not give it half a second for it."""
    if "verifier" not in request.fixturenames:
        monkeypatch.setattr("roles.engines.subprocess.process.KILL_SECONDS", 0.5)


class PlayedRanks:
    """Forks ranks that the test plays, for a group that it begins."""

    def __init__(self) -> None:
        self.played: list[Played] = []

    async def fork(self, seconds: float):
        played, process = await Played.begin()
        self.played.append(played)
        played.say(wire.Hello(version=wire.VERSION, software="a test"))
        return process

    def starting(self, patience=BRISK, devices=("cpu", "cpu")):
        return asyncio.create_task(begin(self, make("training"), devices, patience))

    async def makes(self) -> list[wire.Make]:
        await eventually(lambda: len(self.played) == 2)
        return [await one.hear() for one in self.played]


async def begun(patience=BRISK):
    ranks = PlayedRanks()
    starting = ranks.starting(patience)
    await ranks.makes()
    for one in ranks.played:
        one.say(wire.Made())
    return ranks.played, await starting


def called(group, name="policy_digest", arguments=(), items=1):
    return asyncio.create_task(group.call(name, arguments, items, 0))


async def questions(played):
    heard = [await one.hear() for one in played]
    assert heard[0] == heard[1], "all ranks get the same calls"
    return heard[0]


def fail(played, question, error, reason="it says why"):
    played.say(wire.Failed(id=question.id, error=error, reason=reason, trace="where"))


async def ended(played, group, call, match):
    with pytest.raises(EngineError, match=match):
        await call
    assert all(one.killed for one in played)
    assert "rank" in group.reason
    with pytest.raises(EngineError, match=match):
        await group.call("policy_digest", (), 1, 0)


async def test_each_rank_is_told_its_place_and_device_and_a_file_that_is_not_there_yet():
    ranks = PlayedRanks()
    starting = ranks.starting(devices=("cuda:2", "cuda:5"))
    makes = await ranks.makes()
    for one in ranks.played:
        one.say(wire.Made())
    group = await starting
    assert isinstance(group, EngineGroup)
    assert [(one.rank, one.ranks, one.device) for one in makes] == [
        (0, 2, "cuda:2"),
        (1, 2, "cuda:5"),
    ]
    (rendezvous,) = {Path(one.rendezvous) for one in makes}
    assert rendezvous.parent.stat().st_mode & 0o777 == 0o700
    assert not rendezvous.exists()
    rendezvous.write_text("the ranks met")
    await group.close()
    assert not rendezvous.parent.exists()


async def test_the_result_is_that_of_rank_0_when_all_have_one():
    played, group = await begun()
    call = called(group)
    question = await questions(played)
    played[0].say(wire.Item(id=question.id, value=b"0" * 32))
    played[0].say(wire.CallDone(id=question.id))
    await asyncio.sleep(0.1)
    assert not call.done(), "rank 1 still computes"
    played[1].say(wire.CallDone(id=question.id))
    assert await call == [b"0" * 32]
    await group.close()
    assert all(one.killed for one in played)


async def test_a_rank_that_sends_items_ends_the_group():
    played, group = await begun()
    call = called(group)
    question = await questions(played)
    played[1].say(wire.Item(id=question.id, value=b"1" * 32))
    await ended(played, group, call, "rank 1 of 2: .*more items than expected")


async def test_memory_is_the_sum_and_tokens_are_those_of_a_call():
    played, group = await begun()
    for rank, one in enumerate(played):
        one.say(wire.EngineHeartbeat(memory_bytes=100 + rank, tokens=7))
    await eventually(lambda: group.memory_bytes == 201)
    assert group.tokens == 7
    await group.close()


async def test_calls_have_the_same_order_at_all_ranks():
    played, group = await begun()
    batch = tuple(batch_of())
    calls = [
        called(group, "begin_step", (batch,), items=0),  # takes longest to encode
        called(group, "save_state", (Path("state"),), items=0),
        called(group),
    ]
    heard = [await questions(played) for _ in calls]
    assert sorted(one.id for one in heard) == [1, 2, 3]
    await group.close("the node stops")
    for call in calls:
        with pytest.raises(EngineError, match="the node stops"):
            await call


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError", ValueError),
        ("LookupError", LookupError),
        ("StorageFullError", StorageFullError),
    ],
)
async def test_a_documented_error_of_all_ranks_is_raised_and_the_group_lives(error, kind):
    played, group = await begun()
    call = called(group)
    question = await questions(played)
    fail(played[1], question, error, "of rank 1")
    await asyncio.sleep(0.1)
    fail(played[0], question, error, "of rank 0")
    with pytest.raises(kind, match="of rank 0"):
        await call
    again = called(group, "save_state", (Path("state"),), items=0)
    question = await questions(played)
    for one in played:
        one.say(wire.CallDone(id=question.id))
    assert await again == []
    assert group.reason == ""
    await group.close()


@pytest.mark.parametrize("other", ["succeeds", "LookupError", "is silent"])
async def test_a_documented_error_of_one_rank_ends_the_group(other):
    played, group = await begun(HASTY)
    heart = asyncio.create_task(beating(played))
    call = called(group, "save_state", (Path("state"),), items=0)
    question = await questions(played)
    fail(played[1], question, "ValueError")
    match other:
        case "succeeds":
            played[0].say(wire.CallDone(id=question.id))
        case "LookupError":
            fail(played[0], question, "LookupError")
    alone = r"rank [01] of 2: (Value|Lookup)Error, unlike other ranks: it says why"
    await ended(played, group, call, alone)
    heart.cancel()


async def beating(played):
    while True:
        for one in played:
            one.say(wire.EngineHeartbeat(memory_bytes=1, tokens=0))
        await asyncio.sleep(0.05)


async def test_an_internal_error_of_one_rank_ends_the_group_although_the_other_hangs():
    played, group = await begun()
    heart = asyncio.create_task(beating(played))
    calls = [called(group), called(group)]
    question = await questions(played)
    async with asyncio.timeout(BRISK.silence_seconds):
        fail(played[1], question, "EngineError")
        for call in calls:
            await ended(played, group, call, "^rank 1 of 2: it says why$")
    assert {raised.exception().trace for raised in calls} == {"where"}
    heart.cancel()


async def test_the_rank_that_died_is_named_although_another_one_says_first_that_it_lost_it():
    played, group = await begun()
    call = called(group)
    question = await questions(played)
    played[1].die(b"-9\n")
    fail(played[0], question, "EngineError", "connection closed by peer, " * 20)
    with pytest.raises(EngineError, match=r"rank 1 of 2: .*killed by signal 9"):
        await call
    assert played[0].killed


async def test_a_rank_that_dies_between_calls_ends_the_group():
    played, group = await begun()
    played[1].die(b"3\n")
    await eventually(lambda: group.reason, seconds=10)
    assert "rank 1 of 2: the engine process exited with code 3" in group.reason
    assert played[0].killed


async def test_a_cancelled_call_is_completed_by_all_ranks():
    """And ends the group if they fail: nobody awaits it any more."""
    played, group = await begun()
    call = called(group)
    question = await questions(played)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    later = called(group)
    question_later = await questions(played)
    assert isinstance(question_later, wire.Call), "and no CancelCall"
    for one in played:
        fail(one, question, "ValueError")
    played[0].say(wire.Item(id=question_later.id, value=b"0" * 32))
    for one in played:
        one.say(wire.CallDone(id=question_later.id))
    assert await later == [b"0" * 32]
    call = called(group)
    question = await questions(played)
    call.cancel()
    fail(played[1], question, "EngineError")
    await eventually(lambda: group.reason)
    assert group.reason == "rank 1 of 2: it says why"
    assert all(one.killed for one in played)


async def test_a_group_of_which_one_rank_cannot_be_made_is_none():
    ranks = PlayedRanks()
    starting = ranks.starting()
    rendezvous = Path((await ranks.makes())[0].rendezvous)
    ranks.played[0].say(wire.Made())
    ranks.played[1].say(
        wire.Failed(id=None, error="ValueError", reason="no such device", trace="where")
    )
    with pytest.raises(EngineError, match="rank 1 of 2: no engine: no such device"):
        await starting
    assert all(one.killed for one in ranks.played)
    assert not rendezvous.parent.exists()


async def test_a_disk_without_room_for_the_rendezvous_is_a_failure_of_the_engine(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    ranks = PlayedRanks()
    with pytest.raises(EngineError, match="/nowhere/prime-node-ranks-"):
        await ranks.starting()
    assert not ranks.played


async def test_a_group_whose_start_is_cancelled_is_none():
    ranks = PlayedRanks()
    starting = ranks.starting()
    rendezvous = Path((await ranks.makes())[0].rendezvous)
    ranks.played[0].say(wire.Made())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    for one in ranks.played:
        async with asyncio.timeout(10):
            assert await one.reader.read() == b""
    assert not rendezvous.parent.exists()


async def test_a_daemon_that_ends_leaves_no_rendezvous_behind():
    """The end of its event loop cancels all tasks; nobody closes the group."""
    ranks = PlayedRanks()
    starting = ranks.starting()
    rendezvous = Path((await ranks.makes())[0].rendezvous)
    for one in ranks.played:
        one.say(wire.Made())
    group = await starting
    assert rendezvous.parent.exists()
    watching = [one for one in asyncio.all_tasks() if "EngineGroup._watch" in repr(one)]
    for task in watching:
        task.cancel()
    await asyncio.wait(watching)
    assert not rendezvous.parent.exists()
    await group.close()


# Ranks in real processes


@pytest.fixture
async def verifier(fork_server, policies):
    """Two real verification engines that a group calls; it has one policy."""
    processes = EngineProcesses(shared=fork_server[0])

    async def restore(group):
        await group.call("load", (policies[0],), 0, 0)

    patience = replace(BRISK, silence_seconds=2.0)
    one = EngineSupervisor(processes, make("verification"), patience, restore, ("cpu", "cpu"))
    await one.start()
    yield one
    await one.close()
    processes.close()


def measure(supervisor, version=0):
    requests = (REQUEST,) * 3
    return supervisor.call("measure", Version(version), 1.0, elements=requests, items=3, tokens=6)


async def test_real_ranks_answer_as_one_engine_does(verifier, policies):
    assert len(await measure(verifier)) == 3
    assert len(verifier.pids) == 2
    assert verifier.pid == verifier.pids[0]
    with pytest.raises(LookupError):
        await measure(verifier, 5)
    with pytest.raises(ValueError, match="does not hold the policy"):
        await verifier.call("load", replace(policies[0], digest=Digest(bytes(32))))
    pids = verifier.pids
    assert len(await measure(verifier)) == 3
    assert verifier.pids == pids, "errors that the port documents replace no process"


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGKILL, "was killed by signal 9"), (signal.SIGSTOP, "no heartbeat for 2 s")],
)
async def test_a_rank_that_is_killed_or_stopped_during_a_call_takes_the_group_with_it(
    verifier, number, told
):
    pids = verifier.pids
    os.kill(pids[1], signal.SIGSTOP)
    call = asyncio.create_task(measure(verifier))
    await eventually(lambda: verifier.tokens)  # rank 0 has done its part
    os.kill(pids[1], number)
    with pytest.raises(EngineError, match=f"rank 1 of 2: .*{told}"):
        await call
    assert not any(map(exists, pids)), "no rank is left when the call fails"
    assert len(await measure(verifier)) == 3, "by new ranks, to which the policy was restored"
    assert not set(verifier.pids) & set(pids)
