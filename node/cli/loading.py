"""Lazy loading of sub-commands.

Built-in commands are listed here. Other packages add commands by entry points of the group
``prime_node.commands``, each naming a ``typer.Typer``. Help shows the first line of the module's
docstring, read from its source, so a slow or broken command affects only its own callers.
"""

import ast
import importlib.util
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from node.local.errors import ExitCode, NodeError

GROUP = "prime_node.commands"

BUILT_IN = tuple(
    EntryPoint(name, f"node.cli.commands.{name}:app", GROUP)
    for name in (
        "init",
        "id",
        "doctor",
        "run",
        "invite",
        "status",
        "peers",
        "council",
        "ledger",
        "contributors",
        "why",
        "dashboard",
        "export",
        "chat",
        "eval",
        "calibrate",
        "scoring",
        "version",
    )
)


class CommandGroup(TyperGroup):
    """The ``prime-node`` group: its own options run a node, its commands load when called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the built-in commands in the order of ``BUILT_IN``, then the others by name."""
        del ctx
        return list(_entries())

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a stub of a command for help, without importing the command."""
        del ctx
        entry = _entries().get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=summary(entry))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the called command; raises ``NodeError`` when there is none."""
        entries = _entries()
        name = args[0]
        if name in entries:
            return name, load(entries[name]), args[1:]
        if ctx.resilient_parsing:  # shell completion of an unfinished word
            return None, None, args
        close = get_close_matches(name, entries, n=1)
        hint = f"did you mean {close[0]}?" if close else "see prime-node --help"
        raise NodeError(f"no command {name!r}; {hint}", ExitCode.USAGE)


def load(entry: EntryPoint) -> Any:
    """Import a command; raises ``NodeError`` for any failure."""
    try:
        app = entry.load()
        command = typer.main.get_command(app)
    except Exception as error:  # noqa: BLE001 - third-party code; other commands must work
        raise NodeError(
            f"the command {entry.name} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}",
            ExitCode.CRASH,
        ) from None
    command.name = entry.name
    return command


def summary(entry: EntryPoint) -> str:
    """Return the first line of the docstring of a command's module, without running any code."""
    try:
        docstring = ast.get_docstring(ast.parse(_source(entry.module))) or ""
    except Exception:  # noqa: BLE001 - third-party code; other commands must work
        return "(cannot be loaded)"
    return docstring.partition("\n")[0]


def _source(module: str) -> str:
    """Return a module's source; unlike ``find_spec`` alone this imports no parent package."""
    name, *parts = module.split(".")
    spec: Any = importlib.util.find_spec(name)
    for part in parts:
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return str(spec.loader.get_source(name))


def _entries() -> dict[str, EntryPoint]:
    """Return all commands by name; an entry point cannot replace a built-in command."""
    entries = {entry.name: entry for entry in BUILT_IN}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        entries.setdefault(entry.name, entry)
    return entries
