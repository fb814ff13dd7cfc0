"""Programs: the last fenced Python block of an answer, run in a jail against every test.

A row has a ``prompt`` and ``tests``, a JSON list. ``{"input": …, "output": …}`` gives a program its
input and compares what it writes; ``{"assert": …}`` are lines that run behind it. All must pass.
Programs see the standard library. What they draw at random is the same each time, as far as that
is done here: one that reads the time of day may still differ from machine to machine.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from protocol.crypto import digest
from roles.environments.jail import Jail, places
from roles.environments.jailed.serve import READY
from roles.environments.limits import Ended, Limits, Use
from roles.environments.text import RowTask
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Rows, Tokenizer

COLUMNS = ("prompt", "tests")

TESTS_MAX = 64
PROGRAM_BYTES_MAX = 64 << 10
"""Four times what the longest completions of INTELLECT-2 could write."""

LIMITS = Limits(
    cpu_soft_seconds=5.0,
    cpu_hard_seconds=20,
    memory_soft_bytes=384 << 20,
    memory_hard_bytes=512 << 20,
    wall_seconds=60.0,
    output_bytes_max=1 << 20,
    processes_max=4,
)
"""For all tests of an answer together. Guesses, but for the factor between soft and hard: machines
with which people train differ less than four times in the speed of one core."""


@dataclass(frozen=True, slots=True)
class Test:
    """One run of a program: what it is given, and what it must write."""

    given: str = ""
    expected: str = ""
    asserts: str = ""
    """Lines that run behind the program, instead of input and output."""

    def source(self, program: str) -> bytes:
        """Return what runs."""
        if not self.asserts:
            return program.encode(errors="replace")
        behind = f"\n\n{self.asserts}\nprint({self._token(program)!r})\n"
        return (program + behind).encode(errors="replace")

    def _token(self, program: str) -> str:
        """Return what is written behind the asserts: a program that ends before does not know it.

        One that looks for it in its own source can find it; but tests are not known to who writes
        a program, and nobody is paid for more than the policy's own samples.
        """
        return digest(f"{self.asserts}\0{program}".encode(errors="replace")).hex()

    def passed(self, program: str, ended: Ended) -> bool:
        """Tell whether a program did what it must; white space at the ends of lines is free."""
        if ended.status != 0:
            return False
        written = _lines(ended.output.decode(errors="replace"))
        if self.asserts:
            return written[-1:] == [self._token(program)]
        return written == _lines(self.expected)


class Code(RowTask):
    """Rows with tests, scored 0 or 1."""

    def __init__(
        self,
        name: str,
        read_rows: Callable[[], Rows],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        jail: Jail,
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(name, read_rows, read_tokenizer, background)
        self._jail = jail
        self._limits = limits
        self._places = places()

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        program = last_block(answer)
        if program is None or len(program.encode(errors="replace")) > PROGRAM_BYTES_MAX:
            return 0.0
        tests = read_tests((await self.row(seed))["tests"])
        async with self._places:
            return await self._pass_all(program, tests)

    async def _pass_all(self, program: str, tests: list[Test]) -> Score:
        """Return 1 when a program passes all tests; the first that it does not pass decides."""
        limits, loop = self._limits, asyncio.get_running_loop()
        until = loop.time() + limits.wall_seconds
        used = Use(0.0, 0)
        for number, test in enumerate(tests):
            source = test.source(program)
            arguments = [str(len(source)), "answer" if test.asserts else "__main__"]
            ended = await self._jail.run(
                _RUNNER,
                arguments,
                source + test.given.encode(),
                replace(limits, wall_seconds=max(0.0, until - loop.time())),
            )
            used = used.and_then(ended.use)
            if ended.flooded or used.over(limits):
                return 0.0
            if ended.expired:
                return Unscorable(f"test {number}: no end within {limits.wall_seconds:g} s")
            if ended.killed:
                return Unscorable(f"test {number}: killed, perhaps for want of memory")
            between = used.between(limits)
            if between is not None:
                return between
            if not test.passed(program, ended):
                return 0.0
        return 1.0


def last_block(answer: str) -> str | None:
    """Return what stands in the last fenced block of Python, None when there is none."""
    found: str | None = None
    block: list[str] | None = None
    for line in answer.splitlines():
        fence = line.strip()
        if block is None:
            if fence in _FENCES:
                block = []
        elif fence == "```":
            found, block = "\n".join(block), None
        else:
            block.append(line)
    return found


def read_tests(text: str) -> list[Test]:
    """Return the tests of a row; raises ``ValueError`` for what is none."""
    try:
        items = json.loads(text)
    except RecursionError:
        raise ValueError("tests within tests, too many") from None
    if not isinstance(items, list) or not 1 <= len(items) <= TESTS_MAX:
        raise ValueError(f"tests must be a list of 1 to {TESTS_MAX}")
    return [_test(item) for item in items]


def _test(item: Any) -> Test:
    match item:
        case {"input": str(given), "output": str(expected)} if len(item) == 2:
            return Test(given=given, expected=expected)
        case {"assert": str(asserts)} if len(item) == 1 and asserts.strip():
            return Test(asserts=asserts)
        case _:
            raise ValueError(f"no test: {str(item)[:80]}")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


_FENCES = ("```python", "```py", "```python3")

_RUNNER = f"""
import os, sys
def _take(count):
    parts = []
    while count:
        part = os.read(0, count)
        if not part:
            sys.exit(3)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
os.write(1, {READY!r})
_source, _name = _take(int(sys.argv[1])), sys.argv[2]
os.urandom = lambda count: bytes(count)
import random
random._urandom = os.urandom
random.seed(0)
def _seed(self, a=None, version=2, seed=random.Random.seed):
    seed(self, 0 if a is None else a, version)
random.Random.seed = _seed
sys.argv[:] = ["answer.py"]
exec(compile(_source, "answer.py", "exec"), {{"__name__": _name}})
"""
