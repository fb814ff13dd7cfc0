"""Programming tasks: run the last Python block of an answer in a jail against every test.

A row has a ``prompt`` and ``tests``, a JSON list. ``{"input": …, "output": …}`` passes input to the
program and compares its output; ``{"assert": …}`` are lines that run after it. All must pass.
Programs see the standard library. Random numbers and machine properties are fixed as far as
possible; results of a program that reads the time of day may still differ.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from protocol.core.crypto import digest
from roles.environments.fences import blocks
from roles.environments.held_out import SplitRows
from roles.environments.jail import Jail, jail_slots
from roles.environments.limits import Ended, JailLimits, Use
from roles.environments.text import RowTask
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Rows, Tokenizer

COLUMNS = ("prompt", "tests")

TESTS_MAX = 64
TOLERANCE_MAX = 0.1
PROGRAM_BYTES_MAX = 64 << 10
"""Four times the longest completions of INTELLECT-2."""

OUTPUT_BYTES_MAX = 4 << 20
"""Four times the size limit of a row, and so more than any expected output."""

LIMITS = JailLimits(
    cpu_soft_seconds=5.0,
    cpu_hard_seconds=20,
    memory_soft_bytes=768 << 20,
    memory_hard_bytes=1 << 30,
    wall_seconds=60.0,
    output_bytes_max=OUTPUT_BYTES_MAX,
    processes_max=1,
    threads_max=32,
)
"""Limits for all tests of an answer together. Guesses, except for the factor between soft and hard:
training machines differ by less than four times in the speed of one core."""


@dataclass(frozen=True, slots=True)
class Test:
    """One run of a program: its input and the expected output, or asserts."""

    given: str = ""
    expected: str = ""
    asserts: str = ""
    """Lines that run after the program, instead of input and output."""

    def parts(self, program: str) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the input of the jail: program, asserts, mark and the program's input."""
        texts = (program, self.asserts, self._mark(program), self.given)
        first, second, third, fourth = (text.encode(errors="replace") for text in texts)
        return first, second, third, fourth

    def _mark(self, program: str) -> str:
        """Return the mark written after the asserts, which proves that they all ran.

        A program can find the mark in the stack frames below its own. But a policy does not see the
        tests, and workers earn nothing for answers that the policy did not sample.
        """
        return digest(f"{self.asserts}\0{program}".encode(errors="replace")).hex()

    def passed(self, program: str, ended: Ended, tolerance: float = 0.0) -> bool:
        """Return whether a program passed; trailing blanks of lines are ignored."""
        if ended.status != 0:
            return False
        written = _lines(ended.output.decode(errors="replace"))
        if self.asserts:
            return self._mark(program) in written
        expected = _lines(self.expected)
        if written == expected or not tolerance:
            return written == expected
        pairs = zip(written, expected, strict=False)
        return len(written) == len(expected) and all(
            _close(one.split(), other.split(), tolerance) for one, other in pairs
        )


class Code(RowTask):
    """Task over rows with tests, scored 0 or 1."""

    def __init__(
        self,
        name: str,
        read_rows: Callable[[], Rows | SplitRows],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        jail: Jail,
        limits: JailLimits = LIMITS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise ``ValueError`` for ``options`` other than ``tolerance``."""
        super().__init__(name, read_rows, read_tokenizer, background)
        self._jail = jail
        self._limits = limits
        self._tolerance = read_tolerance(options or {})
        self._places = jail_slots()

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        program = program_of(answer)
        if program is None or len(program.encode(errors="replace")) > PROGRAM_BYTES_MAX:
            return 0.0
        tests = read_tests((await self.row(seed))["tests"])
        async with self._places:
            return await self._pass_all(program, tests)

    async def _pass_all(self, program: str, tests: list[Test]) -> Score:
        """Return 1 when a program passes all tests; stop at the first failure."""
        limits, loop = self._limits, asyncio.get_running_loop()
        until = loop.time() + limits.wall_seconds
        used = Use(0.0, 0)
        for number, test in enumerate(tests):
            *parts, given = test.parts(program)
            ended = await self._jail.run(
                _RUNNER,
                [str(len(part)) for part in parts],
                b"".join(parts) + given,
                replace(limits, wall_seconds=max(0.0, until - loop.time())),
            )
            used = used.and_then(ended.use)
            if ended.flooded or used.over(limits):
                return 0.0
            if ended.expired:
                return Unscorable(f"test {number}: timed out after {limits.wall_seconds:g} s")
            if ended.killed:
                return Unscorable(f"test {number}: killed, perhaps out of memory")
            between = used.between(limits)
            if between is not None:
                return between
            if not test.passed(program, ended, self._tolerance):
                return 0.0
        return 1.0


def program_of(answer: str) -> str | None:
    """Return the program of an answer, None when there is none.

    It is the last fenced block marked as Python, or without one the last unmarked block. Blank
    blocks and interpreter sessions (``>>>``) do not count.
    """
    found: dict[bool, str] = {}
    for block in blocks(answer):
        marked = block.language in _PYTHON
        text = block.text.lstrip()
        if text and not text.startswith(">>>") and (marked or not block.language):
            found[marked] = block.text
    return found.get(True, found.get(False))


def read_tolerance(options: Mapping[str, Any]) -> float:
    """Return the tolerance in the options of a task, 0 by default; raises ``ValueError``."""
    unknown = sorted(set(options) - {"tolerance"})
    if unknown:
        raise ValueError(f"code takes the option tolerance alone, not {', '.join(unknown)}")
    tolerance = options.get("tolerance", 0.0)
    if type(tolerance) not in {int, float} or not 0 <= tolerance <= TOLERANCE_MAX:
        raise ValueError(
            f"environment.options.tolerance must be a number from 0 to {TOLERANCE_MAX:g}, "
            f"not {tolerance!r}"
        )
    return float(tolerance)


def read_tests(text: str) -> list[Test]:
    """Return the tests of a row; raises ``ValueError`` for invalid ones."""
    try:
        items = json.loads(text)
    except RecursionError:
        raise ValueError("tests are nested too deeply") from None
    if not isinstance(items, list) or not 1 <= len(items) <= TESTS_MAX:
        raise ValueError(f"tests must be a list of 1 to {TESTS_MAX}")
    return [_test(item) for item in items]


def _test(item: Any) -> Test:
    match item:
        case {"input": str(given), "output": str(expected)} if len(item) == 2:
            return Test(given=given.replace("\r\n", "\n"), expected=expected)
        case {"assert": str(asserts)} if len(item) == 1 and asserts.strip():
            return Test(asserts=asserts)
        case _:
            raise ValueError(f"invalid test: {str(item)[:80]}")


def _lines(text: str) -> list[str]:
    """Return lines without trailing blanks, and without trailing blank lines."""
    lines = [line.rstrip(_BLANKS) for line in text.split("\n")]
    while len(lines) > 1 and not lines[-1]:
        lines.pop()
    return lines


def _close(written: list[str], expected: list[str], tolerance: float) -> bool:
    """Return whether the words of two lines are equal, numbers within a tolerance.

    The tolerance is absolute and relative; for an expected integer, absolute only.
    """
    if len(written) != len(expected):
        return False
    for one, other in zip(written, expected, strict=True):
        if one == other:
            continue
        if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
            return False
        difference, size = abs(float(one) - float(other)), abs(float(other))
        whole = other.lstrip("+-").isdecimal()
        bound = tolerance if whole else tolerance * max(1.0, size)
        if not (math.isfinite(difference) and difference <= bound):
            return False
    return True


_BLANKS = " \t\r\f\v"
"""Without other white space: a no-break space is part of the text."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

_PYTHON = frozenset({"python", "python3", "py", "py3"})

_RUNNER = Path(__file__).with_name("jailed").joinpath("program.py").read_text()
