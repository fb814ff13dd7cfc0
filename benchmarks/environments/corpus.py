"""Scores of several hundred answers on different machines, which must be equal.

Programs, mathematics answers and reasoning-gym answers are graded as root and as a user, under
three stack limits, with each given interpreter. For one interpreter all scores must be equal (no
score counts as no other score). Differences between interpreters are listed: a run's scoring
runtime names its interpreter.

    python benchmarks/environments/corpus.py --python VENV/bin/python --python OTHER/bin/python

Each interpreter needs the packages of ``prime-node[envs]``. Only root can also test other users.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from protocol.run.recipe import EnvironmentSection
from roles.environments.checker import Checker
from roles.environments.code import Code
from roles.environments.held_out import SplitRows
from roles.environments.jail import Jail
from roles.environments.math import Math
from roles.environments.reasoning_gym import ADMITTED, ReasoningGym, solution_of
from roles.environments.text import TextTask, answer_of
from roles.ports.engines import Unscorable
from roles.ports.text import ChatMessage

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
NOBODY = 65534

STACKS = {"8 MiB": f"{8 << 20}:unlimited", "64 MiB": f"{64 << 20}", "unlimited": "unlimited"}
"""Soft and hard stack limits under which a node starts."""

MADE_TESTS: Mapping[str, Mapping[str, str]] = {
    "c10": {"input": "", "output": "\n".join(map(str, range(140_000)))},
    "c10b": {"input": "", "output": "\n".join(map(str, range(300_000)))},
    "c30": {"input": "1 " * 400_000, "output": "1"},
}
"""Tests of ``code.json`` that are too large for the file."""

GENERATED_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, its reference, and its score if known."""

    name: str
    task: str
    """code, math or the name of a data set of reasoning-gym."""
    text: str
    row: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    score: float | None = None


def programs(python: str) -> Iterable[Answer]:
    """Return the programs of ``corpus.toml``, with their scores under a minor version of Python."""
    for family in tomllib.loads((CASES / "corpus.toml").read_text())["family"]:
        for value in map(str, family.get("values", [""])):
            yield _program(family, value, python)


def _program(family: Mapping[str, Any], value: str, python: str) -> Answer:
    def filled(key: str) -> str:
        text: str = family.get(key, "").replace("<n>", value)
        times: int = family.get(f"{key}_repeat", 1)
        return text * times * (int(value) if "repeat_by_value" in family and times > 1 else 1)

    if "asserts" in family:
        test = {"assert": filled("asserts")}
    else:
        test = {"input": filled("input"), "output": filled("output")}
    program = filled("program").strip("\n") if family["program"] != "<n>" else value
    text = program if "fence" in family else f"```python\n{program}\n```"
    score = family.get("score", 1) if python in family.get("pythons", [python]) else 0
    row = {"prompt": "", "tests": json.dumps([test])}
    return Answer(f"{family['kind']} {value}".strip(), "code", text, row, score=float(score))


def reported() -> Iterable[Answer]:
    """Return the answers of ``code.json``, ``math.json`` and ``golds.txt``."""
    for case in json.loads((CASES / "code.json").read_text()):
        tests = [MADE_TESTS[case["id"]]] if case["tests"] == "(large)" else case["tests"]
        row = {"prompt": "", "tests": json.dumps(tests)}
        yield Answer(f"{case['id']} {case['kind']}", "code", case["answer"], row)
    for case in json.loads((CASES / "math.json").read_text()):
        row = {"prompt": "", "answer": case["gold"]}
        yield Answer(f"{case['id']} {case['kind']}", "math", case["answer"], row)
    for gold in (CASES / "golds.txt").read_text().splitlines():
        yield Answer(gold, "math", f"\\boxed{{{gold}}}", {"prompt": "", "answer": gold})


def generated() -> Iterable[Answer]:
    """Return a right and a wrong answer to problems of each data set."""
    for dataset in ADMITTED:
        section = EnvironmentSection(name=f"reasoning-gym/{dataset}")
        for seed in range(GENERATED_SEEDS):
            wrong = seed == GENERATED_SEEDS - 1
            answer = solution_of(section, 0 if wrong else seed).answer
            yield Answer(f"{dataset} {seed}", dataset, f"so</think>{answer}", seed=seed)


def corpus(python: str) -> list[Answer]:
    """Return all answers, with the scores of programs under a minor version of Python."""
    return [*programs(python), *reported(), *generated()]


class InPlace:
    """Runs functions in the calling thread."""

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function and return its result."""
        return function()


class NoTokens:
    """Tokenizer stub that is never used."""

    vocabulary_size = 0

    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        """Return no tokens."""
        del question, before
        return ()

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return no text."""
        del tokens
        return ""


@dataclass(frozen=True, slots=True)
class OneRow:
    """A data set of one row."""

    columns: Mapping[str, str]
    count = 1

    def row(self, index: int) -> Mapping[str, str]:
        """Return the row."""
        del index
        return self.columns


class Grader:
    """The scorers of one machine."""

    def __init__(self) -> None:
        self._jail = Jail(libraries=False)
        self._math, self._generated = Checker("math"), Checker("reasoning")

    async def grade(self, answers: Sequence[Answer]) -> list[float | str]:
        """Return scores, or reasons for none; programs and other answers run concurrently."""
        scores: dict[int, float | str] = {}

        async def of(places: Iterable[int]) -> None:
            for place in places:
                answer = answers[place]
                score = await self._task(answer).grade(answer.seed, answer_of(answer.text))
                scores[place] = score.reason if isinstance(score, Unscorable) else score

        everything = range(len(answers))
        code = [place for place in everything if answers[place].task == "code"]
        others = [place for place in everything if answers[place].task != "code"]
        await asyncio.gather(of(code), of(others))
        return [scores[place] for place in everything]

    def _task(self, answer: Answer) -> TextTask:
        here = InPlace()

        def rows() -> OneRow:
            return OneRow(answer.row)

        task: TextTask
        match answer.task:
            case "code":
                task = Code("code/corpus", rows, NoTokens, here, self._jail)
            case "math":
                task = Math("math/corpus", {}, rows, NoTokens, here, self._math)
            case dataset:
                name = f"reasoning-gym/{dataset}"
                return ReasoningGym(name, dataset, {}, NoTokens, here, self._generated)
        task._rows = SplitRows(rows(), rows())  # noqa: SLF001 - opened without a tokenizer
        return task

    async def close(self) -> None:
        """End the checkers."""
        await self._math.close()
        await self._generated.close()


async def grade(answers: Sequence[Answer]) -> list[float | str]:
    """Return scores, or reasons for none, from this process."""
    grader = Grader()
    try:
        return await grader.grade(answers)
    finally:
        await grader.close()


def command(python: str, user: str, stack: str) -> list[str]:
    """Return the command that grades answers from stdin under one machine's conditions."""
    limit = ["prlimit", f"--stack={STACKS[stack]}", "--", python, "-B", __file__, "--grade"]
    if user == "root" or os.geteuid() != 0:
        return limit
    question = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    asked = subprocess.run([python, "-c", question], capture_output=True, check=True)
    needed = list(dict.fromkeys([str(ROOT), *json.loads(asked.stdout)]))
    closed = {str(top) for path in needed if (top := _closed(Path(path)))}
    staged = ["unshare", "--mount", "sh", "-ec", _STAGED, "sh", *needed, "--", *closed, "--"]
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    return [*staged, "setpriv", *identity, *limit]


def _closed(path: Path) -> Path | None:
    """Return the topmost directory above a path that other users may not enter."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & 0o001:
            return directory
    return None


_STAGED = """
mount -t tmpfs -o mode=755 stage /mnt
number=0
needed=
while [ "$1" != -- ]; do
    mkdir /mnt/$number
    mount --rbind "$1" /mnt/$number
    needed="$needed $1"
    number=$((number + 1))
    shift
done
shift
umask 022
while [ "$1" != -- ]; do
    mount -t tmpfs -o mode=755 open "$1"
    shift
done
shift
number=0
for path in $needed; do
    mkdir -p "$path"
    mount --rbind /mnt/$number "$path"
    number=$((number + 1))
done
exec "$@"
"""
"""Makes directories visible to a user without access to a directory above them."""


def scores_of(python: str, user: str, stack: str, answers: Sequence[Answer]) -> list[float | str]:
    """Return a child's scores under one machine's conditions."""
    given = json.dumps([[one.name, one.task, one.text, one.row, one.seed] for one in answers])
    done = subprocess.run(
        command(python, user, stack),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise RuntimeError(f"{python}, {user}, {stack}: {done.stderr[-2000:]}")
    scores: list[float | str] = json.loads(done.stdout)
    return scores


def differences(
    answers: Sequence[Answer], scores: Mapping[str, Sequence[float | str]]
) -> list[str]:
    """Return the answers with different scores, and the scores of each machine."""
    found = []
    for place, answer in enumerate(answers):
        given = {machine: all_[place] for machine, all_ in scores.items()}
        if len({score for score in given.values() if isinstance(score, float)}) > 1:
            told = ", ".join(f"{machine}: {score}" for machine, score in given.items())
            found.append(f"{answer.name!r}: {told}")
    return found


def main() -> None:
    """Grade on all machines and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="interpreters; default: this one")
    parser.add_argument("--grade", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["code", "math", "reasoning-gym"], help="one family")
    parser.add_argument("--every", type=int, default=1, help="grade every N-th answer")
    parser.add_argument("--json", type=Path, help="write all scores to this file")
    options = parser.parse_args()
    if options.grade:
        answers = [Answer(*one) for one in json.load(sys.stdin)]
        print(json.dumps(asyncio.run(grade(answers))))
        return
    users = ("root", "user") if os.geteuid() == 0 else ("user",)
    answers = corpus(f"{sys.version_info.major}.{sys.version_info.minor}")
    answers = [one for one in answers if options.only in {None, _family(one)}][:: options.every]
    print(f"{len(answers)} answers: {dict(Counter(_family(one) for one in answers))}")
    print(f"{'interpreter':48} {'user':5} {'stack':10} {'0':>5} {'1':>5} {'other':>6} {'none':>5}")
    found, by_python, everything = [], {}, {}
    for python in options.python or [sys.executable]:
        machines = {}
        for user in users:
            for stack in STACKS:
                scores = scores_of(python, user, stack, answers)
                machines[f"{user}, {stack}"] = scores
                none = sum(isinstance(score, str) for score in scores)
                zero, one = scores.count(0.0), scores.count(1.0)
                other = len(scores) - none - zero - one
                row = f"{python:48} {user:5} {stack:10} {zero:5} {one:5} {other:6} {none:5}"
                print(row, flush=True)
        found += [f"{python}: {line}" for line in differences(answers, machines)]
        everything[python] = machines
        by_python[python] = next(iter(machines.values()))
    print(f"\nscores that differ under one interpreter: {len(found)}", *found, sep="\n  ")
    between = differences(answers, by_python)
    print(f"\nscores that differ between interpreters: {len(between)}", *between, sep="\n  ")
    if options.json:
        names = [answer.name for answer in answers]
        options.json.write_text(json.dumps({"answers": names, "scores": everything}, indent=1))
    sys.exit(bool(found))


def _family(answer: Answer) -> str:
    return answer.task if answer.task in {"code", "math"} else "reasoning-gym"


if __name__ == "__main__":
    main()
