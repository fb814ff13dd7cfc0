"""Interpreter of a run's scoring runtime on this machine.

It is the node's own interpreter if that fits, else one from ``prime-node scoring install``. Each
use queries the interpreter's versions, since its path does not prove them.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.core.codec import encode
from protocol.core.crypto import digest
from protocol.core.types import Digest
from protocol.run.recipe import EnvironmentSection
from protocol.run.sections import RuntimeSection, runtime_digest

PYTHONS = ("3.11", "3.12", "3.13")
"""Supported versions of the programs in ``jailed``."""

PACKAGES: Mapping[str, Sequence[str]] = {
    "code": (),
    "math": ("mpmath",),
    "reasoning-gym": ("reasoning-gym", "bfi", "sympy", "mpmath"),
    "verifiers": (),
}
"""Packages that determine the scores of each task family. For reasoning-gym, only the dependencies
that the admitted data sets use. ``environment.options`` pins a package for verifiers."""

_BESIDE_THE_NODE = ("verifiers",)
"""Families whose packages are installed in the node's own environment, their only runtime."""

ASK_SECONDS = 30
"""Timeout (wall clock) of a query to an interpreter; 0.1 s is usual."""

_QUESTION = """
import importlib.metadata, json, platform, sys
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": platform.python_version(),
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "packages": packages,
}))
"""


class NoRuntimeError(ValueError):
    """No interpreter on this machine fits the scoring runtime that ``needs`` describes.

    It is ``installable`` unless the task's packages belong in the node's own environment.
    """

    def __init__(self, needs: str, *, installable: bool) -> None:
        self.needs = needs
        self._installable = installable
        super().__init__(self.told("--run RUN.toml"))

    def told(self, options: str) -> str:
        """Return one line with the missing runtime and the command, with ``options``, to fix it."""
        return f"{self.needs}: {self.remedy(options)}"

    def remedy(self, options: str) -> str:
        """Return the command that fixes it."""
        if not self._installable:
            return "start prime-node under that Python"
        return f"run prime-node scoring install {options}".rstrip()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """CPython on this machine, with the versions of the queried packages."""

    executable: Path
    """Interpreter with installed packages."""
    prefix: Path
    base_prefix: Path
    version: str
    """Full version, such as 3.12.1."""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def minor(self) -> str:
        """Minor version, such as 3.12."""
        return ".".join(self.version.split(".")[:2])

    @property
    def bare(self) -> Path:
        """Base interpreter, with the standard library only."""
        return self.base_prefix / "bin" / f"python{self.minor}"

    @property
    def digest(self) -> Digest:
        """Digest in a node's record."""
        return runtime_digest(self.version, self.packages)

    def fits(self, runtime: RuntimeSection) -> bool:
        """Return whether this interpreter is ``runtime``, all of whose packages were queried."""
        return self.minor == runtime.python and self.packages == runtime.packages


def own_interpreter() -> Interpreter:
    """Return the interpreter of this process, without querying packages."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Interpreter(Path(sys.executable), Path(sys.prefix), Path(sys.base_prefix), version)


def ask(executable: Path, packages: Sequence[str] = ()) -> Interpreter | None:
    """Query an interpreter for its versions; None unless it is a working CPython.

    Blocks for 0.1 s.
    """
    command = [str(executable), "-IB", "-c", _QUESTION, *packages]
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter of this machine
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=ASK_SECONDS, check=True
        )
        said = json.loads(done.stdout)
        if said["implementation"] != "cpython":
            return None
        directories = Path(said["prefix"]), Path(said["base_prefix"])
        return Interpreter(executable, *directories, said["version"], said["packages"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def interpreter_of(section: EnvironmentSection, runtimes: Sequence[Path]) -> Interpreter:
    """Return an interpreter for the task; ``runtimes`` are directories of installed ones.

    Raises ``NoRuntimeError`` if none fits, and ``ValueError`` for a runtime that this software does
    not support. Blocks for less than 1 s.
    """
    runtime = required(section)
    own = ask(Path(sys.executable), [*runtime.packages])
    if own is not None and own.fits(runtime):
        return own
    installable = _family(section) not in _BESIDE_THE_NODE
    for directory in runtimes if installable else ():
        installed = ask(executable_in(directory / name_of(runtime)), [*runtime.packages])
        if installed is not None and installed.fits(runtime):
            return installed
    here = _described(own or own_interpreter(), runtime)
    needs = f"{section.name} needs the scoring runtime {runtime}; here is {here}"
    raise NoRuntimeError(needs, installable=installable)


def required(section: EnvironmentSection) -> RuntimeSection:
    """Return the runtime that the task names; raises ``ValueError`` for one that cannot score it.

    It may name only the packages of its family: every node installs them.
    """
    runtime, name = section.runtime, section.name
    if runtime is None:
        raise ValueError(f"environment.runtime is missing: {name} is scored under one")
    if runtime.python not in PYTHONS:
        supported = ", ".join(PYTHONS)
        raise ValueError(
            f"environment.runtime.python is {runtime.python}; this software scores {name} under "
            f"{supported}"
        )
    expected = sorted(PACKAGES.get(_family(section), ()))
    if sorted(runtime.packages) != expected:
        raise ValueError(
            f"environment.runtime.packages must name {', '.join(expected) or 'none'} for {name}, "
            f"not {', '.join(sorted(runtime.packages)) or 'none'}"
        )
    return runtime


def completed(section: EnvironmentSection) -> RuntimeSection:
    """Return the runtime of a recipe, completed with the versions installed here.

    Raises ``ValueError`` for a missing package.
    """
    named = section.runtime
    packages = dict(named.packages) if named else {}
    absent = [one for one in PACKAGES.get(_family(section), ()) if one not in packages]
    own = ask(Path(sys.executable), absent) or own_interpreter()
    if unknown := [one for one in absent if one not in own.packages]:
        raise ValueError(
            f"{section.name} is scored by {unknown[0]}, which is not installed: run "
            "pip install 'prime-node[envs]', or name its version in environment.runtime.packages"
        )
    python = named.python if named else own.minor
    return RuntimeSection(python=python, packages=packages | dict(own.packages))


def name_of(runtime: RuntimeSection) -> str:
    """Return a runtime's directory name among installed runtimes."""
    return f"python{runtime.python}-{digest(encode(runtime.model_dump())).hex()[:16]}"


def executable_in(directory: Path) -> Path:
    """Return the interpreter path in a virtual environment."""
    return directory / "bin" / "python"


def _family(section: EnvironmentSection) -> str:
    return section.name.partition("/")[0]


def _described(found: Interpreter, runtime: RuntimeSection) -> str:
    """Describe an interpreter by its differences from a runtime."""
    if found.minor != runtime.python:
        return f"Python {found.minor}"
    others = [
        f"{name} {found.packages[name]}" if name in found.packages else f"no {name}"
        for name, version in runtime.packages.items()
        if found.packages.get(name) != version
    ]
    return f"Python {found.minor} with {', '.join(others)}" if others else f"Python {found.minor}"
