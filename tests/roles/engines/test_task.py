import json

import pytest

from roles.engines.task import task_of
from roles.environments.blocking import InBackground
from roles.environments.code import Code
from roles.environments.math import Math
from roles.environments.reasoning_gym import ReasoningGym
from roles.ports.engines import Answer
from simulations.ports.background import SimBackground
from tests.worlds.messages import run_manifest
from tests.worlds.text import byte_tokenizer, exchange, needs_jail, program_row, write_rows


@pytest.fixture
def data(tmp_path):
    byte_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "sums.parquet", [program_row("Add.", exchange("1 2", "3"))])
    write_rows(tmp_path / "halves.parquet", [{"prompt": "1/2?", "answer": "0.5"}])
    return tmp_path


def task(data, name):
    return task_of(run_manifest(environment={"name": name}), data, SimBackground())


def test_tasks_over_characters_need_no_files(data):
    assert isinstance(task(data, "sorting"), InBackground)
    with pytest.raises(ValueError, match="over characters there are arithmetic, sorting"):
        task(data, "math")


@needs_jail
@pytest.mark.parametrize(
    ("name", "kind", "right"),
    [
        ("code/sums", Code, "```python\nprint(sum(map(int, input().split())))\n```"),
        ("math/halves", Math, "\\boxed{\\frac{1}{2}}"),
        ("reasoning-gym/gcd", ReasoningGym, None),
    ],
)
async def test_tasks_in_text_are_made_of_the_files_of_the_run(data, tmp_path, name, kind, right):
    made = task(data, name)
    assert (type(made), made.name) == (kind, name)
    prompt = await made.prompt(3, None)
    tokenizer = byte_tokenizer(tmp_path / "another")
    assert tokenizer.decode(prompt)
    if right is not None:
        answers = [Answer(3, tokenizer.encode_chat(text)[1:-1]) for text in (right, "0", right)]
        assert await made.score_batch(answers) == [1.0, 0.0, 1.0]
    if kind is not Code:
        await made._checker.close()


@needs_jail
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("code/nothing", "no data set"),
        ("math/sums", "no column answer"),
        ("chess/games", "in text there are code"),
        ("reasoning-gym/n_queens", "is none of"),
    ],
)
def test_what_this_machine_cannot_run_is_told_in_one_line(data, name, told):
    with pytest.raises(ValueError, match=told) as raised:
        task(data, name)
    assert "\n" not in str(raised.value)


def test_names_of_tasks_are_checked():
    for name in ("math/", "/math", "math/a/b", "math/../x", "Math/a", json.dumps("x")):
        with pytest.raises(ValueError, match="name"):
            run_manifest(environment={"name": name})
