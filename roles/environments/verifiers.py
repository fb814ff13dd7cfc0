"""Tasks of environment packages for the verifiers library, pinned by version and file digest.

A package is third-party code, so it runs only in jails, even when a run is founded. Its
dependencies must have the versions that the run names.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from protocol.run.recipe import EnvironmentSection
from protocol.run.toml import first_error
from roles.environments.checker import Checker
from roles.environments.checker_task import CheckerTask
from roles.environments.held_out import HoldOut, row_of
from roles.environments.jailed.installed import package_digest
from roles.environments.limits import JailLimits
from roles.environments.text import require
from roles.ports.background import Background
from roles.ports.engines import EngineError
from roles.ports.text import Chat, ChatMessage, Tokenizer

LIBRARIES = ("math-verify", "verifiers")
"""Libraries with which every package scores; math-verify parses mathematics."""

LIMITS = JailLimits(
    cpu_soft_seconds=2.0,
    cpu_hard_seconds=8,
    memory_soft_bytes=768 << 20,
    memory_hard_bytes=1 << 30,
    wall_seconds=30.0,
    output_bytes_max=1 << 16,
    processes_max=16,
)
"""Limits for the answers to one problem. The library takes 182 MiB and an answer some ms
(measured); the package's problems are in memory, too. The rest is a guess."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Package pins of a run."""

    version: str
    digest: str
    requires: Mapping[str, str]
    """Versions of other packages."""
    arguments: Mapping[str, Any]


def package_of(name: str) -> str:
    """Return the package of a task name."""
    return name.partition("/")[2]


def pinned(section: EnvironmentSection) -> EnvironmentSection:
    """Return the section, completed with the installed versions when a run is founded.

    Raises ``ValueError`` where it names other versions than the installed ones.
    """
    named = _named(section)
    package = package_of(section.name)
    found: dict[str, Any] = {"version": _installed(package), "digest": package_digest(package)}
    names = sorted({*LIBRARIES, *_requirements(package)})
    requires = {one: _installed(one) for one in names} | named.get("requires", {})
    try:
        values = {**dict(section), "options": {**found, **named, "requires": requires}}
        whole = EnvironmentSection(**values)
    except ValidationError as error:
        raise ValueError(first_error(error, "environment")) from None
    _check(whole)
    return whole


def require_package(section: EnvironmentSection) -> Chat:
    """Load the package in a jail and return its first problem; raises ``ValueError``. Takes 10 s.

    For founding a run; call it outside of an event loop.
    """
    pins = _check(section)
    checker = _checker(section.name, pins)

    async def first() -> Chat:
        try:
            await _count_problems(section.name, checker)
            return _chat_of(section.name, await checker.ask({"index": 0}))
        except EngineError as error:
            raise ValueError(f"{section.name}: {error}") from None
        finally:
            await checker.close()

    return asyncio.run(first())


def _named(section: EnvironmentSection) -> dict[str, Any]:
    """Return the options by name; raises ``ValueError`` for an invalid one."""
    known = {"version": str, "digest": str, "requires": dict, "arguments": dict}
    for key, value in section.options.items():
        if key not in known or not isinstance(value, known[key]):
            raise ValueError(f"environment.options must not hold {key!r} as {value!r}")
    if not all(isinstance(one, str) for one in section.options.get("requires", {}).values()):
        raise ValueError("environment.options.requires holds versions, which are text")
    return section.options


def _check(section: EnvironmentSection) -> Pins:
    """Return the section's pins; raises ``ValueError`` unless they match what is installed."""
    named = _named(section)
    if missing := {"version", "digest", "requires"} - named.keys():
        raise ValueError(f"environment.options names no {min(missing)} of {section.name}")
    package = package_of(section.name)
    pins = Pins(**{"arguments": {}, **named})
    if absent := [name for name in LIBRARIES if name not in pins.requires]:
        raise ValueError(f"environment.options.requires names no version of {absent[0]}")
    require(package, pins.version, section.name)
    if (found := package_digest(package)) != pins.digest:
        raise ValueError(
            f"{section.name} needs {package} {pins.version} of digest {pins.digest}, "
            f"installed: {found}"
        )
    for name, required in pins.requires.items():
        require(name, required, section.name)
    return pins


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ValueError(f"the package {package} is not installed") from None


def _requirements(package: str) -> Iterator[str]:
    """Yield the installed dependencies of an installed package."""
    for need in distribution(package).requires or ():
        name = re.split(r"[^\w.-]", need, maxsplit=1)[0].lower()
        with suppress(PackageNotFoundError):
            version(name)
            yield name


def _checker(name: str, pins: Pins) -> Checker:
    package = package_of(name)
    settings = {"package": package, **asdict(pins)}
    directory = Path(str(distribution(package).locate_file(""))).resolve()
    seen = directory.is_relative_to(Path(sys.prefix).resolve())
    return Checker("verifiers", LIMITS, settings, {} if seen else {"packages": directory})


async def _count_problems(name: str, checker: Checker) -> int:
    """Return the number of problems; raises ``ValueError`` for an unusable package."""
    said = await checker.ask({})
    match said:
        case {"count": int(count)} if count > 0:
            return count
        case {"refused": str(reason)}:
            raise ValueError(f"{name}: {reason}")
        case _:
            raise ValueError(f"{name} does not report its problems: {said}")


def _chat_of(name: str, said: Any) -> Chat:
    if not isinstance(said, list):
        raise ValueError(f"{name} has no such problem: {said}")  # noqa: TRY004
    *before, (_, question) = said
    return Chat(question, tuple(ChatMessage(role, content) for role, content in before))


class Verifiers(CheckerTask):
    """Task of one package; the score is the sum of the package's rewards, from 0 to 1."""

    _row_of: Callable[[int], int]

    def __init__(
        self,
        section: EnvironmentSection,
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        rows_per_held_out_row: int | None = None,
    ) -> None:
        """Raise ``ValueError`` unless the package is installed as the run pins it."""
        pins = _check(section)
        super().__init__(section.name, read_tokenizer, background, _checker(section.name, pins))
        self._rows_per_held_out_row = rows_per_held_out_row

    @override
    async def open(self) -> None:
        """Read the tokenizer and load the package; raises ``ValueError`` for an unusable one."""
        await super().open()
        count = await _count_problems(self.name, self._checker)
        per = self._rows_per_held_out_row
        every = partial(row_of, self.name, count=count)
        self._row_of = every if per is None else HoldOut(self.name, per, count).row_of

    @override
    def problem(self, seed: int) -> dict[str, Any]:
        return {"index": self._row_of(seed)}

    @override
    async def chat(self, seed: int) -> Chat:
        return _chat_of(self.name, await self._checker.ask(self.problem(seed)))

    @override
    async def question(self, seed: int) -> str:
        return (await self.chat(seed)).question
