"""Snapshot of the public names of all modules and the options of all commands.

``python -m tests.architecture.public_names`` writes it; its diff shows public names that a change
adds or removes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from node.cli.main import NAME, app

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "roles", "node", "simulations")
SNAPSHOT = Path(__file__).with_suffix(".txt")
UPDATE = ".venv/bin/python -m tests.architecture.public_names"


def modules() -> Iterator[str]:
    """Yield each module with public functions or classes, and their names."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            names = defined(ast.parse(path.read_text()))
            if names:
                dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield "\n  ".join((dotted.removesuffix(".__init__"), *names))


def defined(tree: ast.Module) -> list[str]:
    """Return the public functions and classes of a module, in alphabetical order."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    return sorted(name for name in names if not name.startswith("_"))


def commands(command: Any = None, path: str = NAME) -> Iterator[str]:
    """Yield each command with its arguments and options."""
    command = get_command(app) if command is None else command
    parameters = [
        "/".join((*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "option"
        else parameter.name.upper()
        for parameter in command.params
    ]
    yield "\n  ".join((path, *parameters))
    if isinstance(command, TyperGroup):
        for name in sorted(command.list_commands(None)):
            _, loaded, _ = command.resolve_command(
                command.make_context(name, [], resilient_parsing=True), [name]
            )
            yield from commands(loaded, f"{path} {name}")


def snapshot() -> str:
    return "\n".join((*modules(), *commands(), ""))


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
