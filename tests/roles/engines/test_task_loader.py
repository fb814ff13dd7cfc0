import json
import re

import pytest

from protocol.run.model_files import encode_bundle
from roles.engines.task_loader import task_of
from roles.environments.code import Code
from roles.environments.math import Math
from roles.environments.reasoning_gym import ReasoningGym
from roles.environments.threaded import InBackground
from roles.ports.engines import Answer
from simulations.runtime.loop import SimBackground
from tests.worlds.messages import run_manifest
from tests.worlds.text import byte_tokenizer, exchange, needs_jail, program_row, write_rows


@pytest.fixture
def data(tmp_path):
    byte_tokenizer(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    (tmp_path / "bundle").write_bytes(encode_bundle(files))
    return tmp_path


def task(data, name, **section):
    manifest = run_manifest(
        model={"config": {"vocab_size": 400, "eos_token_id": 256}},
        environment={"name": name, **section},
    )
    return task_of(manifest, data, SimBackground())


async def test_tasks_over_characters_need_no_files(data):
    made = task(data, "sorting")
    assert isinstance(made, InBackground)
    await made.open()
    with pytest.raises(ValueError, match="character tasks: arithmetic, sorting"):
        task(data, "math")


SUMS = [program_row("Add.", exchange("1 2", "3"))]
HALVES = [{"prompt": "1/2?", "answer": "0.5"}]


@needs_jail
@pytest.mark.parametrize(
    ("name", "kind", "rows", "right"),
    [
        ("code/sums", Code, SUMS, "```python\nprint(sum(map(int, input().split())))\n```"),
        ("math/halves", Math, HALVES, "\\boxed{\\frac{1}{2}}"),
        ("reasoning-gym/gcd", ReasoningGym, None, None),
    ],
)
async def test_tasks_in_text_are_made_of_the_files_of_the_run(
    data, tmp_path, name, kind, rows, right
):
    made = task(data, name)
    assert (type(made), made.name) == (kind, name)
    if rows is not None:  # added after the task was made
        write_rows(tmp_path / "dataset", rows)
    await made.open()
    prompt = await made.prompt(3, None)
    tokenizer = byte_tokenizer(tmp_path / "another")
    assert tokenizer.decode(prompt)
    if right is not None:
        answers = [Answer(3, tokenizer.encode_chat(text)[1:-1]) for text in (right, "0", right)]
        assert await made.score_batch(answers) == [1.0, 0.0, 1.0]
    if kind is not Code:
        await made.close()


@needs_jail
async def test_only_rows_within_the_pass_rates_are_asked(data, tmp_path):
    rows = [{"prompt": f"{n}", "answer": "0", "pass_rate": n / 10} for n in range(10)]
    write_rows(tmp_path / "dataset", rows)
    made = task(data, "math/all", pass_rates=(0.3, 0.4))
    await made.open()
    assert {await made.question(seed) for seed in range(40)} == {"3", "4"}
    none = task(data, "math/all", pass_rates=(0.31, 0.39))
    with pytest.raises(ValueError, match=r"a pass rate from 0\.31 to 0\.39"):
        await none.open()


@needs_jail
async def test_options_reach_the_generator(data):
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "operators": ("+",)}
    small |= {"allow_parentheses": False, "allow_negation": False}
    made = task(data, "reasoning-gym/basic_arithmetic", options=small)
    await made.open()
    for seed in range(5):
        question = await made.question(seed)
        assert re.match(r"Calculate \d \+ \d\.\n", question), question
    await made.close()


@needs_jail
@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("chess/games", {}, "text tasks: code"),
        ("reasoning-gym/n_queens", {}, "is none of"),
        ("reasoning-gym/gcd", {"size": 3}, "must not hold 'size'"),
        ("reasoning-gym/gcd", {"seed": 3}, "must not hold 'seed'"),
    ],
)
def test_what_this_machine_cannot_run_is_told_in_one_line(data, name, options, told):
    with pytest.raises(ValueError, match=told) as raised:
        task(data, name, options=options)
    assert "\n" not in str(raised.value)


@needs_jail
@pytest.mark.parametrize(("rows", "told"), [(None, "not a data set"), (SUMS, "no column answer")])
async def test_files_that_are_not_what_they_should_be_are_told(data, tmp_path, rows, told):
    if rows is not None:
        write_rows(tmp_path / "dataset", rows)
    made = task(data, "math/sums")
    with pytest.raises(ValueError, match=told) as raised:
        await made.open()
    assert "\n" not in str(raised.value)


def test_names_of_tasks_are_checked():
    for name in ("math/", "/math", "math/a/b", "math/../x", "Math/a", json.dumps("x")):
        with pytest.raises(ValueError, match="name"):
            run_manifest(environment={"name": name})
