import asyncio
import math
from dataclasses import replace

import pytest

from roles.environments.checker import LIMITS, Checker
from roles.environments.math import Math
from roles.environments.reasoning_gym import ADMITTED, INSTRUCTION, ReasoningGym
from roles.environments.text import ANSWER_CHARACTERS_MAX
from roles.ports.engines import EngineError, Unscorable
from simulations.ports.background import SimBackground
from tests.worlds.text import MemoryRows, byte_tokenizer, needs_jail, opened

pytestmark = needs_jail

SHORT = replace(LIMITS, cpu_soft_seconds=1.0, cpu_hard_seconds=2)


@pytest.fixture
async def checker():
    made = Checker("math", SHORT)
    yield made
    await made.close()


@pytest.fixture
def tokenizer(tmp_path):
    return byte_tokenizer(tmp_path)


async def task(checker, answer="1/2"):
    rows = MemoryRows({"prompt": "How much?", "answer": answer})
    return await opened(Math("math/halves", lambda: rows, lambda: None, SimBackground(), checker))


async def test_answers_that_mean_the_same(checker):
    asked = await task(checker)
    for answer, score in (
        ("So it is $0.5$.", 1.0),
        ("\\boxed{\\frac{1}{2}}", 1.0),
        ("$\\frac12$", 1.0),
        ("\\boxed{1/3}", 0.0),
        ("first \\boxed{1/2}, then \\boxed{1/3}", 0.0),
        ("half", 0.0),
        ("", 0.0),
        ("\\boxed{1/2}" + " " * ANSWER_CHARACTERS_MAX, 0.0),
        ("x" * 10**6 + "\\boxed{1/2}", 1.0),
        ("\0\ud800", 0.0),
    ):
        assert await asked.grade(0, answer) == score, answer[:40]


async def test_who_never_ends_has_no_points_and_who_comes_next_is_answered(checker):
    asked = await task(checker)
    hung, right = await asyncio.gather(
        asked.grade(0, "$9^{9^{9^{9}}}$"), asked.grade(0, "\\boxed{1/2}")
    )
    assert (hung, right) == (0.0, 1.0)


async def test_between_the_limits_there_is_no_score():
    limits = replace(SHORT, cpu_soft_seconds=0.001)
    checker = Checker("math", limits)
    given = await (await task(checker)).grade(0, "\\boxed{1/2}")
    assert isinstance(given, Unscorable)
    assert "processor time" in given.reason
    await checker.close()


async def test_a_deadline_replaces_the_checker():
    checker = Checker("math", replace(SHORT, wall_seconds=0.0))
    assert await checker.ask({"expected": "1", "answer": "1"}) == Unscorable("no end within 0 s")
    assert checker._idle == []
    await checker.close()


async def test_a_checker_that_was_ended_is_replaced(checker):
    asked = await task(checker)
    assert await asked.grade(0, "$0.5$") == 1.0
    checker._idle[0].kill()
    await checker._idle[0].wait()
    assert await asked.grade(0, "$0.5$") == Unscorable("its checker has ended")
    assert await asked.grade(0, "$0.5$") == 1.0


async def test_a_cancelled_question_leaves_no_checker_in_the_middle(checker):
    asked = await task(checker)
    assert await asked.grade(0, "$0.5$") == 1.0
    hung = asyncio.create_task(asked.grade(0, "$9^{9^{9^{9}}}$"))
    await asyncio.sleep(0.3)
    hung.cancel()
    await asyncio.wait([hung])
    assert await asked.grade(0, "$0.5$") == 1.0


async def test_a_checker_that_is_not_installed_is_a_failure_of_this_machine():
    checker = Checker("nothing", SHORT)
    with pytest.raises(EngineError, match="could not be made"):
        await checker.ask({})


async def test_reasoning_gym_asks_by_seed_and_scores_its_own_answers(tokenizer):
    checker = Checker("reasoning", SHORT)
    first, second = (
        ReasoningGym("reasoning-gym/gcd", "gcd", {}, lambda: tokenizer, SimBackground(), checker)
        for _ in range(2)
    )
    question = await first.question(1)
    assert question == await second.question(1) != await first.question(2)
    assert question.endswith(INSTRUCTION)
    numbers = [int(word.strip(",.")) for word in question.split() if word.strip(",.").isdigit()]
    right = math.gcd(*numbers)
    assert await first.grade(1, f"I say <answer>{right}</answer>") == 1.0
    assert await first.grade(1, f"<answer>{right + 1}</answer>") < 1.0
    assert await first.grade(1, str(right)) == 0.0
    assert await first.grade(1, "<answer>") == 0.0
    await checker.close()


def test_only_admitted_data_sets(tokenizer):
    def made(dataset):
        return ReasoningGym(
            f"reasoning-gym/{dataset}", dataset, {}, lambda: tokenizer, SimBackground(), None
        )

    for name in ("n_queens", "nothing", ""):
        with pytest.raises(ValueError, match="is none of"):
            made(name)
    assert made(ADMITTED[0]).name == "reasoning-gym/acre"
