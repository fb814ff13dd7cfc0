import asyncio
import threading
import time

import pytest

from node.local.system import ThreadBackground
from protocol.rollout.assignment import SequenceAssignment
from roles.environments.threaded import InBackground
from roles.ports.engines import EngineError
from roles.runtime.scoring import Task as AskedTask
from roles.runtime.scoring import reward
from simulations.runtime.loop import SimBackground
from tests.worlds.flow_world import ANSWER, END, FlowWorld, Task
from tests.worlds.messages import run_manifest
from tests.worlds.network import run_virtual

ITEMS = [SequenceAssignment(0, seed, 2, None) for seed in range(4)]
ANSWERS = [(ANSWER, END)] * 4


def asked(manifest, task, background):
    return AskedTask(manifest, InBackground(task, background))


@pytest.fixture
def manifest(tmp_path):
    async def scenario():
        return FlowWorld(tmp_path, "worker 0").manifest

    return run_virtual(scenario())


@pytest.fixture
def background():
    made = ThreadBackground()
    yield made
    made.close()


def raising(error):
    def raise_it(seed):
        if seed == 2:
            raise error

    return raise_it


async def test_a_task_that_thinks_does_not_hold_up_the_loop(manifest, background):
    task = Task()
    task.on_score = lambda _seed: time.sleep(0.5)
    beats = 0

    async def heart():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(heart())
    roles = asked(manifest, task, background)
    assert await roles.rewards(ITEMS[:1], ANSWERS[:1]) == [1_000_000]
    beating.cancel()
    assert beats >= 10


async def test_prompts_are_made_beside_the_loop_too(manifest, background):
    task, threads = Task(), []
    prompt = task.prompt
    task.prompt = lambda *asked: threads.append(threading.get_ident()) or prompt(*asked)
    made = await asked(manifest, task, background).prompts(ITEMS)
    assert made == [prompt(item.problem_seed, None) for item in ITEMS]
    assert len(set(threads)) == 1 and threading.get_ident() not in threads


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        MemoryError(),
        RecursionError("deep"),
        StopIteration(),
        asyncio.CancelledError(),
        SystemExit(3),
        ExceptionGroup("several", [OSError("one")]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("threaded", [True, False])
async def test_whatever_a_task_raises_is_told_as_what_broke(manifest, background, error, threaded):
    """Some of these errors would end the loop; one would leave the caller waiting for ever."""
    task = Task()
    task.on_score = raising(error)
    where = background if threaded else SimBackground()
    roles = asked(manifest, task, where)
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=type(error).__name__) as raised:
            await roles.rewards(ITEMS, ANSWERS)
    assert "raise_it" in raised.value.trace, "where it broke"


async def test_a_person_who_interrupts_is_obeyed(manifest):
    task = Task()
    task.on_score = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        await asked(manifest, task, SimBackground()).rewards(ITEMS, ANSWERS)


@pytest.mark.parametrize("prompt", [(), (2, 32), (-1,)])
async def test_a_prompt_that_no_model_can_take_is_no_prompt(manifest, prompt):
    task = Task()
    task.prompt = lambda *_: prompt
    with pytest.raises(EngineError, match="prompt of problem 0"):
        await asked(manifest, task, SimBackground()).prompts(ITEMS)


async def test_tasks_are_not_asked_about_tokens_that_do_not_exist(manifest):
    task, seeds = Task(), []
    task.on_score = seeds.append
    roles = asked(manifest, task, SimBackground())
    answers = [(ANSWER, END), (32, END), (-1, END), (7, END)]
    assert await roles.rewards(ITEMS, answers) == [1_000_000, 0, 0, 0]
    assert seeds == [0, 3]


@pytest.mark.parametrize("score", [None, "1"])
async def test_a_score_that_is_no_number_is_what_broke(manifest, score):
    task = Task()
    task.score = lambda *_: score
    with pytest.raises(EngineError, match="TypeError"):
        await asked(manifest, task, SimBackground()).rewards(ITEMS, ANSWERS)


def test_what_broke_is_told_in_one_bounded_line():
    long = EngineError.of(ValueError("first\n  second " + 300 * "x"))
    assert str(long).startswith("ValueError: first second xxx")
    assert len(str(long)) == 200
    assert str(EngineError.of(MemoryError())) == "MemoryError"
    assert str(EngineError.of(EngineError("as it is"))) == "as it is"


def test_a_reward_is_the_tasks_less_what_the_length_costs():
    manifest = run_manifest(sampling={"length_targets": (4,), "length_penalty": 0.25})
    plain = SequenceAssignment(0, 1, 2, None)
    aimed = SequenceAssignment(0, 1, 2, 4)
    assert reward(manifest, 0.5, plain, 2) == 500_000
    assert reward(manifest, 1.0, aimed, 3) == 750_000
    assert reward(manifest, 1.0, aimed, 5) == 750_000
    assert reward(manifest, 0.125, aimed, 1) == -625_000
    assert reward(manifest, 1.0, aimed, 12) == -1_000_000
    assert reward(manifest, 7.0, aimed, 4) == 1_000_000
    assert reward(manifest, -7.0, aimed, 4) == 0
    assert reward(manifest, float("nan"), plain, 1) == 0
