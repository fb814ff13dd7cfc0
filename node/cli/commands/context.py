"""Shared code of the commands: data directory, output and background thread."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from node.local.config import LocalPaths, load_paths
from node.local.datadir import DataDir

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roles.ports.background import Background


def local_paths(
    ctx: typer.Context, data_dir: Path | None, identity_path: Path | None = None
) -> LocalPaths:
    """Return the node's paths; ``--data-dir`` may stand before or after the name of the command.

    Raises ``NodeError``.
    """
    before = ctx.find_root().params
    flags = {
        "data_dir": data_dir or before.get("data_dir"),
        "identity_path": identity_path or before.get("identity_path"),
    }
    return load_paths(flags, os.environ)


def data_dir_of(ctx: typer.Context, data_dir: Path | None) -> DataDir:
    """Return the data directory of a command; it need not exist."""
    return DataDir(local_paths(ctx, data_dir).data_dir)


def print_json(values: Any) -> None:
    """Print one JSON value on standard output."""
    sys.stdout.write(json.dumps(values, indent=2) + "\n")


def print_rich(view: "RenderableType") -> None:
    """Draw on standard output, with 100 columns and no colours unless it is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and --json does without

    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(view)


@contextmanager
def background() -> "Iterator[Background]":
    """Yield a thread for blocking calls; engines log warnings to standard error."""
    from node.local.logs import configure_logging  # noqa: PLC0415 - only for commands that compute
    from node.local.system import ThreadBackground  # noqa: PLC0415 - the same

    configure_logging("auto", "warning")
    thread = ThreadBackground()
    try:
        yield thread
    finally:
        thread.close()
