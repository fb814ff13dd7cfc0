"""Scores of the corpus and of reported cases, with this machine's runtimes."""

import asyncio
import json
import os
import sys

import pytest

from benchmarks.environments import corpus
from tests.worlds.text import needs_jail

pytestmark = needs_jail

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

ONE_PROCESS = "a program is one process: memory is limited per process"
OTHERWISE = {
    "c12": "programs see the standard library alone, and so no numpy",
    "c21": ONE_PROCESS,
    "c21b": ONE_PROCESS,
    "c35": ONE_PROCESS,
}
"""Cases of ``code.json`` that score 0 here and 1 where ``python answer.py`` runs, with reasons."""

LONG = {"recursion without an end"}
"""Programs that take as long as all others; benchmarks/environments/corpus.py grades them."""


def grades(answers):
    return asyncio.run(corpus.grade(answers))


@pytest.mark.long
def test_programs_have_their_score():
    everything = [*corpus.programs(PYTHON)]
    assert len(everything) > 300
    answers = [answer for answer in everything[::3] if answer.name not in LONG]
    scores = corpus.scores_of(sys.executable, "user", "unlimited", answers)
    scored = zip(answers, scores, strict=True)
    wrong = {answer.name: score for answer, score in scored if score != answer.score}
    assert wrong == {}


def test_reported_programs_have_the_score_of_python_but_for_named_ones():
    answers = [answer for answer in corpus.reported() if answer.task == "code"]
    cases = json.loads((corpus.CASES / "code.json").read_text())
    expected = {case["id"]: 0.0 if case["id"] in OTHERWISE else case["right"] for case in cases}
    assert len(expected) == len(answers) >= 50
    assert dict(zip(expected, grades(answers), strict=True)) == expected


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_root_with_a_small_stack_and_a_user_with_any_give_the_same_scores():
    answers = corpus.corpus(PYTHON)
    assert len(answers) > 400
    kept = answers[::12]
    machines = [("root", "8 MiB"), ("user", "unlimited")]
    scores = {
        f"{user}, {stack}": corpus.scores_of(sys.executable, user, stack, kept)
        for user, stack in machines
    }
    assert corpus.differences(kept, scores) == []
    first = scores["root, 8 MiB"]
    assert sum(isinstance(score, float) for score in first) > 0.95 * len(kept)
    assert {0.0, 1.0} <= {*first}


def test_two_scores_of_an_answer_are_noticed_and_none_is_no_score():
    answers = [corpus.Answer(name, "code", "") for name in "abc"]
    scores = {"one": [1.0, 0.0, 1.0], "two": [1.0, 1.0, "7.0 s of processor time"]}
    assert corpus.differences(answers, scores) == ["'b': one: 0.0, two: 1.0"]
