"""Progress of long work on standard error: a bar on a terminal, else a line every 15 s."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from node.founding.calibration import Progress

LINE_SECONDS = 15.0
"""Interval of progress lines without a terminal."""


@contextmanager
def progress_of(title: str, unit: str) -> Iterator[Progress]:
    """Yield a progress callback; the bar disappears at the end."""
    if not sys.stderr.isatty():
        yield _lines(title, unit)
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - the same
    from rich.progress import Progress as Bar  # noqa: PLC0415 - the same

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} {unit}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, enough, _: bar.update(task, completed=done, total=enough)


def _lines(title: str, unit: str) -> Progress:
    shown_at = time.monotonic()

    def show(done: int, enough: int, seconds: float) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at >= LINE_SECONDS or not done:
            shown_at = now
            typer.echo(f"{title}: {done:,} of {enough:,} {unit}, {seconds:.0f} s", err=True)

    return show
