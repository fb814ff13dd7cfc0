import asyncio
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.run.recipe import EnvironmentSection
from roles.environments.checker import LIMITS, Checker
from roles.environments.jailed.math import check
from roles.environments.math import Math
from roles.environments.reasoning_gym import ADMITTED, INSTRUCTION, ReasoningGym
from roles.environments.registry import require_task
from roles.environments.text import ANSWER_CHARACTERS_MAX
from roles.ports.engines import EngineError, Unscorable
from simulations.runtime.loop import SimBackground
from tests.worlds.text import MemoryRows, byte_tokenizer, needs_jail, opened

CASES = Path(__file__).parents[2] / "cases"
SHORT = replace(LIMITS, cpu_soft_seconds=1.0, cpu_hard_seconds=2)

JUDGED_OTHERWISE: dict[str, str] = {}
"""Cases with a wrong score, by id, with the reason."""


def cases():
    return [
        pytest.param(case, id=case["id"])
        for name in ("math.json", "math_more.json")
        for case in json.loads((CASES / name).read_text())
    ]


def golds():
    return (CASES / "golds.txt").read_text().splitlines()


def score(gold, answer, **options):
    return check({"expected": gold, "answer": answer, **options})


@pytest.mark.parametrize("case", cases())
def test_answers_are_scored_as_a_mathematician_marks_them(case):
    known = {"prompt", "require_box"}
    found = score(case["gold"], case["answer"], **{key: case[key] for key in known & case.keys()})
    assert found is (bool(case["right"]) ^ (case["id"] in JUDGED_OTHERWISE))


@pytest.mark.parametrize("gold", golds())
def test_a_gold_is_right_in_a_box(gold):
    assert score(gold, f"So it is $\\boxed{{{gold}}}$.", require_box=True) is True


def test_a_question_of_too_much_work_scores_0():
    gammas = "+".join(["x!"] * 100)
    assert score(gammas, f"\\boxed{{{gammas}}}") is True
    few = "+".join(["x!"] * 5)
    assert score(few, f"\\boxed{{{few[2:]} + x!}}") is True
    assert score(f"0+{few}", f"\\boxed{{{few}}}") is True
    assert score(f"0+{gammas}", f"\\boxed{{{gammas}}}") is False


def test_every_answer_to_another_gold_costs_less_than_the_soft_limit():
    answers = [case.values[0]["answer"] for case in cases() if len(case.values[0]["answer"]) > 600]
    for gold in ("12", "x < 5", "(1, 2)", "\\{1, 2\\}", "B", "1:2", "3:00", "x = 1, y = 2"):
        for answer in answers:
            before = time.process_time()
            score(gold, answer)
            assert time.process_time() - before < LIMITS.cpu_soft_seconds / 2


@pytest.mark.parametrize(
    "piece",
    ["$", "\\boxed{", "answer is ", "1+", "**", "(", "a+", "{", "|", "1,", "^", "-", "x=", "\\or "],
)
def test_repeated_pieces_cost_less_than_the_soft_limit(piece):
    for answer in (piece * 4000, f"\\boxed{{{piece * 2000}}}", f"\\boxed{{1{piece * 150}1}}"):
        before = time.process_time()
        score("x < 5", answer[:ANSWER_CHARACTERS_MAX])
        assert time.process_time() - before < LIMITS.cpu_soft_seconds / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"require_box": "yes"}, r"environment.options.require_box must be true or false"),
        ({"require_box": 1}, r"environment.options.require_box must be true or false"),
        ({"box": True}, r"environment.options must not hold 'box': math has 'require_box' alone"),
    ],
)
def test_options_are_checked_when_a_run_is_founded_and_when_it_is_opened(options, message):
    section = EnvironmentSection(name="math/sums", options=options)
    with pytest.raises(ValueError, match=message):
        require_task(section, has_dataset=True)
    with pytest.raises(ValueError, match=message):
        Math("math/sums", options, list, lambda: None, SimBackground(), None)
    boxed = EnvironmentSection(name="math/sums", options={"require_box": True})
    require_task(boxed, has_dataset=True)


@pytest.fixture
async def checker():
    made = Checker("math", SHORT)
    yield made
    await made.close()


@pytest.fixture
def tokenizer(tmp_path):
    return byte_tokenizer(tmp_path)


async def task(checker, answer="1/2", prompt="How much?", **options):
    rows = MemoryRows({"prompt": prompt, "answer": answer})
    made = Math("math/halves", options, lambda: rows, lambda: None, SimBackground(), checker)
    return await opened(made)


@needs_jail
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
        ("$9^{9^{9^{9}}}$", 0.0),
    ):
        assert await asked.grade(0, answer) == score, answer[:40]


@needs_jail
async def test_the_options_and_the_prompt_reach_the_checker(checker):
    asked = await task(checker, "x^2+2x+1", "Expand $(x+1)^2$.", require_box=True)
    assert await asked.grade(0, "\\boxed{x^2 + 2x + 1}") == 1.0
    assert await asked.grade(0, "\\boxed{(1+x)^2}") == 1.0
    assert await asked.grade(0, "\\boxed{(x+1)^2}") == 0.0
    assert await asked.grade(0, "It is $x^2 + 2x + 1$.") == 0.0


@needs_jail
async def test_between_the_limits_there_is_no_score():
    limits = replace(SHORT, cpu_soft_seconds=0.0)
    checker = Checker("math", limits)
    given = await (await task(checker)).grade(0, "\\boxed{1/2}")
    assert isinstance(given, Unscorable)
    assert "processor time" in given.reason
    await checker.close()


@needs_jail
async def test_a_deadline_replaces_the_checker():
    checker = Checker("math", replace(SHORT, wall_seconds=0.0))
    assert await checker.ask({"expected": "1", "answer": "1"}) == Unscorable("timed out after 0 s")
    await checker.close()


@needs_jail
async def test_a_checker_that_was_ended_is_replaced(checker):
    asked = await task(checker)
    assert await asked.grade(0, "$0.5$") == 1.0
    (jailed,) = checker._idle
    jailed.kill()
    await jailed.wait()
    assert await asked.grade(0, "$0.5$") == Unscorable("its checker exited")
    assert await asked.grade(0, "$0.5$") == 1.0


@needs_jail
async def test_a_cancelled_question_leaves_no_checker_in_the_middle(checker):
    asked = await task(checker)
    assert await asked.grade(0, "$0.5$") == 1.0
    cancelled = asyncio.create_task(asked.grade(0, "$0.5$"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert await asked.grade(0, "$0.5$") == 1.0


@needs_jail
async def test_a_checker_that_is_not_installed_is_a_failure_of_this_machine():
    checker = Checker("nothing", SHORT)
    with pytest.raises(EngineError, match="cannot start a jail"):
        await checker.ask({})


@needs_jail
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
