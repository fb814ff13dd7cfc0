"""Search for a Python interpreter of a given minor version."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from node.local.errors import ExitCode, NodeError
from roles.environments.runtime import Interpreter, ask, own_interpreter

USUAL_DIRECTORIES = ("/usr/local/bin", "/usr/bin")


def find_interpreter(
    python: str, environment: Mapping[str, str], named: Path | None = None
) -> Interpreter:
    """Return an interpreter of minor version ``python``, outside of any virtual environment.

    ``named`` selects it explicitly. Programs that fail are skipped, such as a pyenv shim of an
    inactive version. Raises ``NodeError``.
    """
    if named is not None:
        found = _base(named, python)
        if found is None:
            raise NodeError(
                f"--interpreter {named} is no CPython {python}; name the program itself, such as "
                f"/usr/bin/python{python}",
                ExitCode.CONFIG,
            )
        return found
    for path in _candidates(python, environment):
        found = _base(path, python)
        if found is not None:
            return found
    raise NodeError(
        f"no Python {python} on this machine: looked for python{python} on PATH, "
        f"in {USUAL_DIRECTORIES[0]}, and among the versions of pyenv and uv; "
        f"install it (pyenv install {python}, uv python install {python}) "
        "or name one with --interpreter",
        ExitCode.CONFIG,
    )


def _base(path: Path, python: str) -> Interpreter | None:
    """Return the base interpreter of ``path``, if it works and has this minor version."""
    found = ask(path)
    if found is None or found.minor != python:
        return None
    return ask(found.bare)


def _candidates(python: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield existing programs that may be the interpreter, each once."""
    name = f"python{python}"
    directories = [own_interpreter().bare.parent]
    directories += map(Path, filter(None, environment.get("PATH", "").split(os.pathsep)))
    directories += map(Path, USUAL_DIRECTORIES)
    home = Path(environment.get("HOME") or "/nonexistent")
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    directories += [version / "bin" for version in _newest_first(pyenv, f"{python}.*")]
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    directories += [version / "bin" for version in _newest_first(uv, f"cpython-{python}[.-]*")]
    seen = set()
    for directory in directories:
        path = directory / name
        if os.access(path, os.X_OK) and (real := path.resolve()) not in seen:
            seen.add(real)
            yield path


def _newest_first(directory: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> tuple[int, ...]:
        numbers = path.name.replace("-", ".").split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    return sorted(directory.glob(pattern), key=version, reverse=True)
