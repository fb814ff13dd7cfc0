"""Install or show the scoring runtime of a run: its Python version and packages."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli import completion
from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json
from node.founding.recipes import read_recipe
from node.local.config import runtime_directories
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run, pinned_run
from node.local.scoring_runtime import install_runtime, installed_runtimes, run_options
from protocol.run.recipe import EnvironmentSection
from protocol.run.sections import RuntimeSection
from roles.environments.runtime import (
    PYTHONS,
    Interpreter,
    NoRuntimeError,
    completed,
    interpreter_of,
    own_interpreter,
    required,
)

app = typer.Typer(add_completion=False, no_args_is_help=True)

Run = Annotated[
    Path | None,
    typer.Option(metavar="RUN.toml", help="Signed manifest; default: the data dir's run."),
]


@app.callback()
def scoring() -> None:
    """Install or show the scoring runtime of a run: its Python version and packages."""


@app.command()
def install(
    ctx: typer.Context,
    *,
    run: Run = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Recipe of a future run: a name, or a TOML file.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="MINOR",
            help=f"Python version: {', '.join(PYTHONS)}; without --recipe: no packages.",
            autocompletion=completion.pythons,
        ),
    ] = None,
    interpreter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Interpreter to use; default: search for one."),
    ] = None,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Install the scoring runtime of a run: a virtual environment with exact versions.

    Each runtime has a directory named by its digest; an existing one is kept. Root installs it for
    all users of this machine. The packages come from the index that pip is configured with.
    """

    def say(line: str) -> None:
        typer.echo(line, err=True)

    if run is not None and (recipe or python):
        raise NodeError("--run sets the Python; leave --recipe and --python out", ExitCode.USAGE)
    if python is not None and python not in PYTHONS:
        raise NodeError(f"--python {python}: use {', '.join(PYTHONS)}", ExitCode.USAGE)
    if recipe is None and python is not None:
        runtime = RuntimeSection(python=python)
    else:
        section = _of_recipe(recipe, python) if recipe else _of_run(ctx, run, data_dir)
        runtime = _runtime(section)
    found = install_runtime(runtime, runtime_directories(os.environ)[0], interpreter, say)
    if as_json:
        print_json(_values(found))
    else:
        typer.echo(found.executable)


@app.command()
def show(
    ctx: typer.Context,
    *,
    run: Run = None,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Show the installed scoring runtimes, and the one that the run needs.

    The exit code is 78 when the run is known and its runtime is not installed.
    """
    datadir = data_dir_of(ctx, data_dir)
    known = run is not None or pinned_run(datadir) is not None
    options = run_options(run, datadir.root)
    wanted = _wanted(_of_run(ctx, run, data_dir), options) if known else None
    here = installed_runtimes(runtime_directories(os.environ))
    if as_json:
        values = {"installed": list(map(_values, here)), "own_python": own_interpreter().version}
        print_json(values | {"run": None if wanted is None else wanted.values()})
    else:
        typer.echo(f"prime-node runs under Python {own_interpreter().version}")
        for found in here:
            packages = ", ".join(f"{name} {version}" for name, version in found.packages.items())
            typer.echo(f"{found.executable}: Python {found.version}, {packages or 'no packages'}")
        if wanted is not None:
            typer.echo(wanted.line())
    if wanted is not None and wanted.missing:
        raise typer.Exit(ExitCode.CONFIG)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The runtime of a run, and its interpreter or the reason that it is missing."""

    runtime: RuntimeSection | None
    found: Interpreter | None
    missing: str

    def values(self) -> dict[str, Any]:
        return {
            "runtime": None if self.runtime is None else self.runtime.model_dump(),
            "found": None if self.found is None else _values(self.found),
            "missing": self.missing,
        }

    def line(self) -> str:
        if self.found is None:
            return self.missing or "the run needs no scoring runtime"
        return f"the run's {self.runtime} is {self.found.executable} ({self.found.digest.hex()})"


def _wanted(section: EnvironmentSection, options: str) -> _Wanted:
    """Return the runtime of a task; ``options`` name the run in a suggested command."""
    if not section.in_text:
        return _Wanted(None, None, "")
    try:
        found = interpreter_of(section, runtime_directories(os.environ))
    except NoRuntimeError as error:
        return _Wanted(section.runtime, None, error.told(options))
    except ValueError as error:
        return _Wanted(section.runtime, None, str(error))
    return _Wanted(section.runtime, found, "")


def _of_run(ctx: typer.Context, run: Path | None, data_dir: Path | None) -> EnvironmentSection:
    if run is not None:
        return load_run(run).manifest.environment
    datadir = data_dir_of(ctx, data_dir)
    pinned = pinned_run(datadir)
    if pinned is None:
        raise NodeError(
            f"{datadir.root} belongs to no run yet: name one with --run RUN.toml, or a recipe",
            ExitCode.USAGE,
        )
    return pinned.manifest.environment


def _of_recipe(recipe: str, python: str | None) -> EnvironmentSection:
    section = read_recipe(recipe).environment
    if not section.in_text:
        return section
    try:
        runtime = completed(section)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None
    if python is not None:
        runtime = runtime.model_copy(update={"python": python})
    return section.model_copy(update={"runtime": runtime})


def _runtime(section: EnvironmentSection) -> RuntimeSection:
    """Return the runtime of a task; raises ``NodeError`` when none can be installed for it."""
    if not section.in_text:
        raise NodeError(f"{section.name} needs no scoring runtime", ExitCode.USAGE)
    if section.name.startswith("verifiers/"):
        raise NodeError(
            f"{section.name} is scored beside the node: install its package there, under the "
            "run's Python",
            ExitCode.USAGE,
        )
    try:
        return required(section)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None


def _values(found: Interpreter) -> dict[str, Any]:
    return {
        "executable": str(found.executable),
        "python": found.version,
        "packages": dict(found.packages),
        "digest": found.digest.hex(),
    }
