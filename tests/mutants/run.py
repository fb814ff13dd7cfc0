"""Mutation testing (``make mutants``): apply one wrong line at a time; its tests must fail.

The lists are ``tests/mutants/<area>.toml``. An entry has an ``id``, the ``file``, ``what`` the
mutant breaks, ``old`` (text that occurs exactly once in the file) and ``new``. ``tests`` are the
paths or node ids that must detect it. An undetectable entry gives its reason in ``explained``; it
is listed and not run. Mutants run in a copy of the tree; the checkout is never touched.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent

NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__")
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line")
SEEDED = "--hypothesis-seed=0"
"""An entry is detected every time or never."""

WORDS = {0: "passed", 1: "failed"}
"""By exit code of pytest; other codes mean that it could not run the tests."""

UNMUTATED_SECONDS_MAX = 600.0
HUNG_SECONDS_MIN = 60.0
HUNG_FACTOR = 5.0
"""Tests that take this multiple of their unmutated time count as hung."""

PACKAGES = ("protocol", "roles", "node", "simulations")
"""Packages that are broken once in the copy, to prove that tests import them from there."""


class UnfitError(Exception):
    """A list does not match the tree, or its tests fail without a mutation."""


@dataclass(frozen=True)
class Mutant:
    """One wrong line and the tests that must detect it."""

    area: str
    id: str
    file: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    explained: str = ""

    def applied(self, root: Path) -> str:
        """Return the file's text with the wrong line; raises ``UnfitError`` for a stale entry."""
        text = (root / self.file).read_text()
        count = text.count(self.old)
        if count != 1:
            raise UnfitError(f"{self.id}: old occurs {count} times in {self.file}, not once")
        mutated = text.replace(self.old, self.new)
        compile(mutated, self.file, "exec")  # a mutant must compile
        if _tokens(mutated) == _tokens(text):
            raise UnfitError(f"{self.id}: new says the same as old")
        return mutated


@lru_cache(maxsize=128)  # of the files themselves, many of which have several entries
def _tokens(text: str) -> list[str]:
    """Return the tokens of a file, without comments and empty lines."""
    silent = (tokenize.COMMENT, tokenize.NL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type not in silent]


@dataclass(frozen=True)
class Result:
    """Test result: ``passed``, ``failed``, ``hung``, or ``broken`` if they could not run."""

    word: str
    seconds: float
    output: str


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """Return the entries of all lists; raises ``UnfitError`` for a duplicate id."""
    mutants = [
        Mutant(area=path.stem, **{**table, "tests": tuple(table.get("tests", ()))})
        for path in sorted(folder.glob("*.toml"))
        for table in tomllib.loads(path.read_text())["mutant"]
    ]
    twice = [name for name, count in Counter(one.id for one in mutants).items() if count > 1]
    if twice:
        raise UnfitError(f"several entries are called {', '.join(twice)}")
    return mutants


@contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    """Replace the text of a source file for a while."""
    before = path.read_text()
    try:
        _write(path, text)
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python reuses a compiled file if size and second of modification are the same.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(copy: Path, tests: tuple[str, ...], limit_seconds: float) -> Result:
    """Run tests in a copy of the tree; above ``limit_seconds`` they count as hung."""
    # Child processes of tests must import from the copy, too.
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *PYTEST, SEEDED, f"--timeout={limit_seconds}", *tests]
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_seconds + 10)
        except subprocess.TimeoutExpired:
            process.kill()
            return Result("hung", time.monotonic() - began, "")
    word = WORDS.get(process.returncode, "broken")
    hung = word == "failed" and "Timeout (>" in output
    return Result("hung" if hung else word, time.monotonic() - began, output)


class Runner:
    """Runs tests in parallel, each in one of several copies of the tree."""

    def __init__(self, root: Path, copies: list[Path]) -> None:
        self._root = root
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            shutil.copytree(root, copy, ignore=NOT_COPIED)
            self._copies.put(copy)
        self._pool = ThreadPoolExecutor(len(copies))
        self._seconds: dict[str, float] = {}
        """Duration of the tests of a file."""

    def unmutated(self, tests: Iterable[str]) -> Iterator[str]:
        """Yield faults of the unmutated tests: each must pass before it can detect a mutant."""
        by_file: dict[str, tuple[str, ...]] = {}
        for test in tests:
            by_file[file_of(test)] = (*by_file.get(file_of(test), ()), test)
        for file, result in zip(by_file, self._pool.map(self._run, by_file.values()), strict=True):
            self._seconds[file] = result.seconds
            if result.word != "passed":
                yield f"{file}: {result.word} without a mutation\n{result.output}"
        if by_file and self._broken(next(iter(by_file.values()))).word == "passed":
            yield "the tests do not import the copy: they pass with broken packages in it"

    def attempts(self, mutants: list[Mutant]) -> Iterator[Result]:
        """Yield each entry's result, in order."""
        return self._pool.map(self._attempt, mutants)

    def _attempt(self, mutant: Mutant) -> Result:
        seconds = sum(self._seconds[file] for file in dict.fromkeys(map(file_of, mutant.tests)))
        limit_seconds = max(HUNG_SECONDS_MIN, HUNG_FACTOR * seconds)
        return self._run(mutant.tests, limit_seconds, {mutant.file: mutant.applied(self._root)})

    def _broken(self, tests: tuple[str, ...]) -> Result:
        files = [f"{package}/__init__.py" for package in PACKAGES]
        wrong = {file: "raise AssertionError" for file in files if (self._root / file).exists()}
        return self._run(tests, wrong=wrong)

    def _run(
        self,
        tests: tuple[str, ...],
        limit_seconds: float = UNMUTATED_SECONDS_MAX,
        wrong: Mapping[str, str] = MappingProxyType({}),
    ) -> Result:
        """Run tests with replaced texts in some files."""
        copy = self._copies.get()
        try:
            with ExitStack() as stack:
                for file, text in wrong.items():
                    stack.enter_context(written(copy / file, text))
                return run_tests(copy, tests, limit_seconds)
        finally:
            self._copies.put(copy)


def file_of(test: str) -> str:
    """Return the path in a node id."""
    return test.partition("::")[0]


def run(mutants: list[Mutant], root: Path = ROOT, jobs: int = 2) -> list[str]:
    """Try all entries and print each result; return the ids of undetected ones."""
    if not mutants:
        raise UnfitError("no such entry")
    for mutant in mutants:
        mutant.applied(root)
    tried = [mutant for mutant in mutants if not mutant.explained]
    tests = list(dict.fromkeys(test for mutant in tried for test in mutant.tests))
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        runner = Runner(root, [Path(folder) / str(number) for number in range(jobs)])
        say(f"the tests without a mutation: {len(tests)}")
        faults = list(runner.unmutated(tests))
        if faults:
            raise UnfitError("\n".join(faults))
        for number, (mutant, result) in enumerate(zip(tried, runner.attempts(tried), strict=True)):
            word = {"failed": "noticed", "passed": "UNNOTICED"}.get(result.word, result.word)
            place = f"{number + 1}/{len(tried)}"
            say(f"{place:>8}  {mutant.id:<5} {word:<9} {result.seconds:6.1f} s  {mutant.what}")
            if result.word not in {"failed", "hung"}:
                missed.append(mutant.id)
            if result.word == "broken":
                say(result.output)
    for mutant in mutants:
        if mutant.explained:
            say(f"{'':>8}  {mutant.id:<5} explained            {mutant.what}: {mutant.explained}")
    return missed


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="these entries or areas only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        mutants = [
            mutant
            for mutant in read_lists()
            if options.only is None or {mutant.id, mutant.area} & set(options.only)
        ]
        missed = run(mutants, jobs=options.jobs)
    except UnfitError as error:
        say(str(error))
        return 1
    explained = sum(bool(mutant.explained) for mutant in mutants)
    noticed = len(mutants) - explained - len(missed)
    seconds = time.monotonic() - began
    say(f"{noticed} noticed, {explained} explained, {len(missed)} unnoticed in {seconds:.0f} s")
    if missed:
        say(f"unnoticed: {' '.join(missed)}", f"again: make mutants ARGS='--only {missed[0]}'")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
