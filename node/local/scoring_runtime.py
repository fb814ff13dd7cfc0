"""Scoring runtimes: lookup of the one that a run needs, and atomic installation.

A runtime is a virtual environment, one per combination of packages.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from node.local.config import NodeConfig, default_data_dir, runtime_directories
from node.local.errors import ExitCode, NodeError
from node.local.interpreters import find_interpreter
from protocol.core.types import Role
from protocol.run.manifest import RunManifest
from protocol.run.sections import RuntimeSection
from roles.environments.runtime import (
    PACKAGES,
    Interpreter,
    NoRuntimeError,
    ask,
    executable_in,
    interpreter_of,
    name_of,
)

_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Environment variables with which an interpreter would import foreign packages."""

_UMASK = 0o022
"""The jail runs as another user, which must be able to read the runtime."""


def scoring_digest(manifest: RunManifest, config: NodeConfig) -> bytes:
    """Return the digest of the node's scoring runtime; empty for roles that do not score.

    Raises ``NodeError`` if the runtime is missing. Blocks for a fraction of a second.
    """
    if not manifest.environment.in_text or not scores(config.roles):
        return b""
    try:
        return interpreter_of(manifest.environment, runtime_directories(os.environ)).digest
    except NoRuntimeError as error:
        options = run_options(config.run, config.data_dir)
        raise NodeError(error.told(options), ExitCode.CONFIG) from None
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None


def scores(roles: Collection[Role]) -> bool:
    """Return whether one of these roles scores answers: all but the relay do."""
    return bool(set(roles) - {Role.RELAY})


def run_options(run: Path | None, data_dir: Path) -> str:
    """Return the command-line options that select a node's run."""
    if run is not None:
        return f"--run {run}"
    return "" if data_dir == default_data_dir(os.environ) else f"--data-dir {data_dir}"


def install_runtime(
    runtime: RuntimeSection,
    directory: Path,
    named: Path | None,
    say: Callable[[str], None],
) -> Interpreter:
    """Return the runtime in ``directory``, installed if missing; raises ``NodeError``.

    ``named`` is the interpreter to use. Packages come from the indexes of pip's configuration. The
    next call removes what a crash left behind.
    """
    try:
        with _locked(directory, say):
            target = directory / name_of(runtime)
            found = _fitting(target, runtime)
            if found is not None:
                return found
            base = find_interpreter(runtime.python, os.environ, named)
            say(f"making {target} with {base.executable} (Python {base.version})")
            with tempfile.TemporaryDirectory(
                prefix=".", dir=directory, ignore_cleanup_errors=True
            ) as made:
                _make(Path(made, "venv"), base, runtime, say)
                if target.exists():  # and is broken
                    target.rename(Path(made, "damaged"))
                Path(made, "venv").rename(target)
    except OSError as error:
        raise NodeError(f"cannot write {directory}: {error.strerror}", ExitCode.LOCKED) from None
    found = _fitting(target, runtime)
    assert found is not None, "it worked before it was renamed"
    return found


def installed_runtimes(directories: Sequence[Path]) -> list[Interpreter]:
    """Return the working runtimes, with their versions of the scoring packages."""
    names = sorted({name for packages in PACKAGES.values() for name in packages})
    places = [place for directory in directories for place in sorted(directory.glob("python*"))]
    found = (ask(executable_in(place), names) for place in places)
    return [runtime for runtime in found if runtime is not None]


@contextmanager
def _locked(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock a directory of runtimes for this process, and remove leftovers of crashes."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777 & ~_UMASK)  # independent of the process's umask
    lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that installs into {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.glob(".*"):
            if left.is_dir():
                shutil.rmtree(left)
        yield
    finally:
        os.close(lock)


def _fitting(directory: Path, runtime: RuntimeSection) -> Interpreter | None:
    found = ask(executable_in(directory), [*runtime.packages])
    return found if found is not None and found.fits(runtime) else None


def _make(
    directory: Path, base: Interpreter, runtime: RuntimeSection, say: Callable[[str], None]
) -> None:
    """Create a virtual environment with the runtime's packages; raises ``NodeError``."""
    failed = f"{base.executable} made no virtual environment; its output is above"
    _run([base.executable, "-Im", "venv", "--without-pip", directory], failed)
    python = executable_in(directory)
    wanted = [f"{name}=={version}" for name, version in runtime.packages.items()]
    if wanted:
        say(f"installing {' '.join(wanted)}")
        failed = "pip could not install these versions; its output is above"
        _run([*_pip(python), "install", "--no-input", *wanted], failed)
    if _fitting(directory, runtime) is None:
        raise NodeError(
            f"what was installed is not {runtime}: see what pip wrote above", ExitCode.CRASH
        )


def _pip(python: Path) -> list[str | Path]:
    """Return a pip command for a virtual environment: our pip, else its Python's bundled one."""
    if find_spec("pip") is not None:
        return [sys.executable, "-Im", "pip", "--python", python]
    failed = "no pip here, and Python's own is not there; install pip (python3-venv on Debian)"
    _run([python, "-Im", "ensurepip"], failed)
    return [python, "-Im", "pip"]


def _run(command: Sequence[str | Path], failed: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    done = subprocess.run(  # noqa: S603 - interpreters of this machine
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=2,
        env=environment,
        umask=_UMASK,
        check=False,
    )
    if done.returncode != 0:
        raise NodeError(f"{failed} (exit status {done.returncode})", ExitCode.CRASH)
