import json
import subprocess
import sys
from dataclasses import replace

import pytest

from roles.environments.code import (
    LIMITS,
    PROGRAM_BYTES_MAX,
    Code,
    program_of,
    read_tests,
    read_tolerance,
)
from roles.environments.jail import Jail
from roles.ports.engines import Answer, EngineError, Unscorable
from simulations.runtime.loop import SimBackground
from tests.worlds.text import MemoryRows, byte_tokenizer, exchange, needs_jail, opened, program_row

pytestmark = needs_jail

SUMS = [exchange("3 4\n", "7\n"), exchange("-1 1", "0")]
ADD = "print(sum(map(int, input().split())))"
SHORT = replace(LIMITS, cpu_soft_seconds=0.5, cpu_hard_seconds=2, wall_seconds=40.0)


@pytest.fixture(scope="module")
def jail():
    return Jail(libraries=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


async def task(jail, tokenizer, *tests, limits=SHORT):
    rows = MemoryRows(program_row("Add two numbers.", *tests))
    return await opened(
        Code("code/sums", lambda: rows, lambda: tokenizer, SimBackground(), jail, limits)
    )


def fenced(program):
    return f"```python\n{program}\n```"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (fenced(ADD), 1.0),
        (fenced("print(7)"), 0.0),
        (ADD, 0.0),
        (f"{fenced('print(1)')}\nor rather\n{fenced(ADD)}\nas said", 1.0),
        (f"{fenced(ADD)}\nor rather\n{fenced('print(1)')}", 0.0),
        (fenced(ADD) + "\n```text\n7\n```", 1.0),
        (fenced(f"{ADD}\nprint()\n"), 1.0),
        (fenced(f"{ADD}\nprint(1)"), 0.0),
        (fenced(f"{ADD}\nraise SystemExit(1)"), 0.0),
        (fenced(ADD + "\n" + "#" * PROGRAM_BYTES_MAX), 0.0),
        (fenced("'\ud800'"), 0.0),
        ("", 0.0),
    ],
)
async def test_the_last_program_must_pass_all_tests(jail, tokenizer, answer, score):
    assert await (await task(jail, tokenizer, *SUMS)).grade(1, answer) == score


@pytest.mark.parametrize(
    ("program", "score"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return a - b", 0.0),
        ("def add(a, b): return a + b\nif __name__ == '__main__': raise SystemExit", 1.0),
        ("raise SystemExit(0)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit", 0.0),
        ("'''", 0.0),
        ("class Yes:\n    def __eq__(self, o): return False\ndef add(a, b): return Yes()", 0.0),
    ],
)
async def test_asserts_must_be_reached_and_hold(jail, tokenizer, program, score):
    asked = await task(jail, tokenizer, {"assert": "assert add(3, 4) == 7\nassert add(-1, 1) == 0"})
    assert await asked.grade(1, fenced(program)) == score


@pytest.mark.parametrize(
    ("seconds", "score"), [(0.05, 1.0), (0.9, "s of processor time"), (3.0, 0.0)]
)
async def test_processor_time_decides(jail, tokenizer, seconds, score):
    program = f"import time\nwhile time.process_time() < {seconds}: pass\nprint(7)"
    given = await (await task(jail, tokenizer, exchange("", "7"))).grade(1, fenced(program))
    told = given.reason if isinstance(given, Unscorable) else given
    assert (score in told) if isinstance(score, str) else told == score


async def test_processor_time_adds_up_over_tests(jail, tokenizer):
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(7)"
    tests = [exchange("", "7")] * 3
    assert isinstance(
        await (await task(jail, tokenizer, *tests)).grade(1, fenced(program)), Unscorable
    )


async def test_who_sleeps_has_no_score_and_who_floods_has_none_left(jail, tokenizer):
    limits = replace(SHORT, wall_seconds=1.5, output_bytes_max=1000)
    asked = await task(jail, tokenizer, exchange("", "7"), limits=limits)
    sleeping = await asked.grade(1, fenced("import time\ntime.sleep(9)\nprint(7)"))
    assert sleeping == Unscorable("test 0: timed out after 1.5 s")
    assert await asked.grade(1, fenced("print('7' * 10**6)")) == 0.0


async def test_memory_between_the_limits_has_no_score(jail, tokenizer):
    limits = replace(SHORT, memory_soft_bytes=50 << 20, memory_hard_bytes=100 << 20)
    asked = await task(jail, tokenizer, exchange("", "7"), limits=limits)
    grow = "x = bytearray({} << 20)\nx[::4096] = b'x' * len(x[::4096])\nprint(7)"
    assert await asked.grade(1, fenced(grow.format(20))) == 1.0
    assert isinstance(await asked.grade(1, fenced(grow.format(70))), Unscorable)
    assert await asked.grade(1, fenced(grow.format(105))) == 0.0
    assert await asked.grade(1, fenced(grow.format(500))) == 0.0


async def test_what_programs_draw_is_the_same_each_time(jail, tokenizer, monkeypatch):
    draw = (
        "import os, random, secrets, uuid\nrandom.seed()\n"
        "print(random.random(), random.Random().random(), os.urandom(4), secrets.token_hex(4))\n"
        "print(random.SystemRandom().random(), uuid.uuid4(), hash('x'), id(object()))"
    )
    background = SimBackground()
    rows = MemoryRows(program_row("", exchange("", "")))
    asked = await opened(
        Code("code/draws", lambda: rows, lambda: tokenizer, background, jail, SHORT)
    )
    outputs = []
    original = jail.run

    async def noted(*arguments):
        outputs.append(await original(*arguments))
        return outputs[-1]

    monkeypatch.setattr(jail, "run", noted)
    for _ in range(3):
        assert await asked.grade(1, fenced(draw)) == 0.0
    assert len({ended.output for ended in outputs}) == 1
    assert b"0." in outputs[0].output


@pytest.mark.parametrize(
    "program",
    [
        "print(open('/dev/stdin').read())",
        "print(open('/dev/stdin').read(), open(0).read())",
        "import os; open('/dev/stdout', 'w').write(os.read(0, os.fstat(0).st_size).decode())",
        "import sys; print(sys.stdin.read() and sys.stdin.seek(0) or sys.stdin.read())",
    ],
)
async def test_standard_streams_can_be_opened_by_any_user(jail, tokenizer, program):
    asked = await task(jail, tokenizer, exchange("7", "7" if "open(0)" not in program else "7 7"))
    assert await asked.grade(1, fenced(program)) == 1.0


DEPTH = """
def f(n):
    global depth
    depth = n
    f(n + 1)
try:
    f(1)
except RecursionError:
    pass
"""


@pytest.fixture(scope="module")
def plain_depth():
    command = [sys.executable, "-c", f"{DEPTH}print(depth)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("behind", ["print(depth)", None])
async def test_recursion_ends_where_python_ends_it(jail, tokenizer, plain_depth, behind):
    test = exchange("", plain_depth) if behind else {"assert": f"assert depth == {plain_depth}"}
    asked = await task(jail, tokenizer, test)
    assert await asked.grade(1, fenced(DEPTH + (behind or ""))) == 1.0


async def test_answers_are_scored_after_the_thoughts_and_in_order(jail, tokenizer):
    asked = await task(jail, tokenizer, *SUMS)
    texts = [f"{fenced(ADD)}</think>so", f"hm</think>{fenced(ADD)}", fenced(ADD)]
    answers = [Answer(5, tokenizer.encode(text)) for text in texts]
    assert await asked.score_batch(answers) == [0.0, 1.0, 1.0]


async def test_prompts_are_chats_that_tell_the_length(jail, tokenizer):
    asked = await task(jail, tokenizer, *SUMS)
    assert tokenizer.decode(await asked.prompt(1, None)) == "Add two numbers."
    told = "Add two numbers.\n\nThink for 600 tokens before giving a response."
    assert tokenizer.decode(await asked.prompt(1, 600)) == told
    assert asked.name == "code/sums"


async def test_a_row_that_cannot_be_read_is_no_ones_fault(jail, tokenizer):
    rows = MemoryRows({"prompt": "", "tests": "[]"})
    asked = await opened(
        Code("code/broken", lambda: rows, lambda: tokenizer, SimBackground(), jail)
    )
    with pytest.raises(ValueError, match="1 to 64"):
        await asked.grade(1, fenced(ADD))
    answer = Answer(1, tokenizer.encode(fenced(ADD)))
    with pytest.raises(EngineError, match="1 to 64"):
        await asked.score_batch([answer])


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '[{"input": "1"}]',
        '[{"assert": " "}]',
        json.dumps([{}] * 65),
    ],
)
def test_tests_that_are_none(tests):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error is one
        read_tests(tests)


def test_tests_within_tests_without_an_end_are_none():
    with pytest.raises(ValueError, match="nested too deeply"):
        read_tests("[" * 9999)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\na\n```", "a"),
        ("```py\na\n\nb\n```\n", "a\n\nb"),
        ("```python\na", "a"),
        ("```\na\n```", "a"),
        ("```\na\n```\n```python\nb\n```\n```\nc\n```", "b"),
        ("```python\na\n```\n```python\nb", "b"),
        ("```python\na\n```\n```python\n\n>>> f()\n1\n```", "a"),
        ("```python\na\n```\n```python\n \n```", "a"),
        ("```\na\n```\n```text\nb\n```\n```python-repl\nc\n```\n```pycon\nd\n```", "a"),
        ("```python\n```", None),
        ("```c\na\n```", None),
        ("a", None),
        ("`" * 100_000, None),
    ],
)
def test_the_program_is_the_last_block_of_python(answer, program):
    assert program_of(answer) == program


@pytest.mark.parametrize(
    ("written", "expected", "score"),
    [
        ("0.30000000000000004", "0.3", 1.0),
        ("0.3001", "0.3", 0.0),
        ("x = 1e-9, 2", "x = 0, 2", 0.0),
        ("x 1e-9", "x 0", 1.0),
        ("5.0", "5", 1.0),
        ("1000001", "1000000", 0.0),
        ("1000000.4", "1000000.5", 1.0),
        ("1000002.0", "1000000.0", 0.0),
        ("nan", "0.1", 0.0),
        ("1e999", "1e998", 0.0),
        ("1_0", "10", 0.0),
        ("0.1 0.2", "0.1\n0.2", 0.0),
        ("0.1 0.2", "0.1", 0.0),
        ("a b", "a  b", 1.0),
        ("a", "b", 0.0),
    ],
)
async def test_numbers_may_differ_by_the_tolerance(jail, tokenizer, written, expected, score):
    rows = MemoryRows(program_row("", exchange("", expected)))
    code = Code(
        "code/close",
        lambda: rows,
        lambda: tokenizer,
        SimBackground(),
        jail,
        SHORT,
        options={"tolerance": 1e-6},
    )
    assert await (await opened(code)).grade(1, fenced(f"print({written!r})")) == score


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tolerance": -1.0}, "must be a number from 0 to 0.1, not -1.0"),
        ({"tolerance": 1}, "must be a number from 0 to 0.1, not 1"),
        ({"tolerance": True}, "not True"),
        ({"tolerance": "1e-6"}, "not '1e-6'"),
        ({"tolerances": 1e-6}, "takes the option tolerance alone, not tolerances"),
    ],
)
def test_options_that_are_none(options, reason):
    with pytest.raises(ValueError, match=reason):
        read_tolerance(options)


def test_without_an_option_there_is_no_tolerance():
    assert read_tolerance({}) == 0.0
