import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.environments.base import END, ENVIRONMENTS, VOCABULARY_SIZE, environment, solved

SEEDS = st.integers(0, 2**64 - 1)
NAMES = st.sampled_from(sorted(ENVIRONMENTS))


def text(task, tokens):
    return "".join(task.vocabulary[token] for token in tokens)


@pytest.mark.parametrize(
    ("name", "seed", "question", "answer"),
    [
        ("arithmetic", 0, "2+0=", "2"),
        ("arithmetic", 2**64 - 1, "3+3=", "6"),
        ("sorting", 0, "s 9736=", "3679"),
        ("sorting", 2**64 - 1, "s 5077=", "0577"),
    ],
)
def test_problems_never_change(name, seed, question, answer):
    task = solved(environment(name))
    assert text(task, task.prompt(seed, None)) == question
    assert text(task, task.solution(seed)) == answer + "<end>"


@given(NAMES, SEEDS)
def test_only_the_solution_with_its_end_token_is_rewarded(name, seed):
    task = solved(environment(name))
    solution = task.solution(seed)
    assert task.score(seed, solution) == 1.0
    assert task.score(seed, list(solution)) == 1.0
    assert task.score(seed, solution[:-1]) == 0.0
    assert task.score(seed, (*solution, END)) == 0.0
    assert task.score(seed, ()) == 0.0
    assert task.score(seed, (VOCABULARY_SIZE - 1, END)) == 0.0


@given(NAMES, SEEDS, st.integers(1, 10**6))
def test_a_length_target_stands_before_the_question(name, seed, target):
    task = environment(name)
    said = text(task, task.prompt(seed, target))
    assert said == f"{target}=" + text(task, task.prompt(seed, None))


@given(SEEDS)
def test_sums_are_right(seed):
    task = solved(environment("arithmetic"))
    left, right = text(task, task.prompt(seed, None)).rstrip("=").split("+")
    assert text(task, task.solution(seed)[:-1]) == str(int(left) + int(right))


@given(SEEDS)
def test_digits_are_sorted(seed):
    task = solved(environment("sorting"))
    digits = text(task, task.prompt(seed, None)).removeprefix("s ").removesuffix("=")
    assert text(task, task.solution(seed)[:-1]) == "".join(sorted(digits))
    assert len(digits) == 4


@given(NAMES, SEEDS, SEEDS)
def test_prompts_have_one_width_and_known_tokens(name, seed, other):
    task = environment(name)
    assert len(task.prompt(seed, None)) == len(task.prompt(other, None))
    assert all(END < token < VOCABULARY_SIZE for token in task.prompt(seed, None))


@given(NAMES)
def test_vocabularies_have_one_size_and_no_duplicates(name):
    task = environment(name)
    assert task.name == name
    assert len(task.vocabulary) == len(set(task.vocabulary)) == VOCABULARY_SIZE


def test_all_sums_occur():
    task = environment("arithmetic")
    assert len({task.prompt(seed, None) for seed in range(2000)}) == 100


def test_a_character_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="not found"):
        environment("arithmetic").encode("x")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="arithmetic, sorting"):
        environment("chess")


def test_a_task_without_solutions_cannot_be_supervised():
    class Unsolved:
        name = "unsolved"

    with pytest.raises(ValueError, match="unsolved"):
        solved(Unsolved())


@pytest.mark.parametrize("name", ["arithmetic", "sorting"])
def test_tokens_are_read_as_they_were_written(name):
    task = environment(name)
    prompt, answer = task.prompt(7, 12), solved(task).solution(7)
    assert task.text(prompt).startswith("12=") and task.encode(task.text(prompt)) == prompt
    assert task.text(answer) == f"{task.answer(7)}<end>"
    assert task.text((0, -1, 32, 10**9)) == "<pad><unknown><unknown><unknown>"
