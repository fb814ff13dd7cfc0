"""Display of a running testnet: a live view on a terminal, else lines, or an SVG picture."""

import asyncio
import io
import time
from pathlib import Path
from typing import Literal

from rich.console import Console

from node.testnet.colours import WARN
from node.testnet.record import SwarmRecord
from node.testnet.screen import Screen, lasting_text, progress_line
from node.testnet.view import draw

_Colours = Literal["standard", "256", "truecolor", "windows"]

REFRESH_SECONDS = 0.5
LINE_SECONDS = 5.0
PICTURE_WIDTH = 100
PICTURE_HEIGHT = 60

_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Enter the alternate screen without a cursor; leave it and restore the previous content."""

_CLEAR, _HOME, _END_OF_LINE, _REST = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


async def show_live(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Redraw the view on the alternate screen until cancelled, then print the last one."""
    last_size = (0, 0)
    console.file.write(_OPEN)
    try:
        while True:
            size = (console.size.width, console.size.height)
            cleared = _CLEAR if size != last_size else ""
            last_size = size
            console.file.write(cleared + frame(record, screen, console, *size))
            console.file.flush()
            await asyncio.sleep(REFRESH_SECONDS)
    finally:
        console.file.write(_CLOSE)
        console.file.flush()
        width = console.size.width
        console.print(draw(record, screen, now=time.time(), width=width, height=PICTURE_HEIGHT))


def frame(record: SwarmRecord, screen: Screen, console: Console, width: int, height: int) -> str:
    """Return the output that redraws a terminal of this size.

    The address is one line wrapped by the terminal, so that a selection copies it in one piece.
    """
    address = "" if screen.stage in ("draining", "done", "failed") else screen.address
    address_lines = -(-len(address) // width)
    room = max(1, height - address_lines)
    drawing = Console(
        width=width,
        height=room,
        file=io.StringIO(),
        force_terminal=console.is_terminal,
        color_system=_colours(console),
        highlight=False,
    )
    view = draw(record, screen, now=time.time(), width=width, height=room)
    with drawing.capture() as captured:
        drawing.print(view, end="")
    lines = captured.get().split("\n")[:room]
    if address:
        lines.append(address)
    return _HOME + f"{_END_OF_LINE}\r\n".join(lines) + _REST


def _colours(console: Console) -> _Colours | None:
    known: dict[str | None, _Colours] = {
        "standard": "standard",
        "256": "256",
        "truecolor": "truecolor",
        "windows": "windows",
    }
    return known.get(console.color_system)


async def show_lines(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Print a line every ``LINE_SECONDS`` and at each new stage, and once the join command."""
    shown_stage, waited_seconds, join_shown = None, 0.0, False
    warned = ""
    while True:
        if screen.stage != shown_stage or waited_seconds >= LINE_SECONDS:
            console.print(
                progress_line(record, screen, time.time()), highlight=False, soft_wrap=True
            )
            shown_stage, waited_seconds = screen.stage, 0.0
        if screen.join_command and not join_shown:
            told = (
                f"join with: {screen.join_command}",
                f"show its status with: {screen.status_command}",
                f"the swarm has started: {lasting_text(screen)}",
                f"dashboard: {screen.web_url}",
            )
            console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)
            join_shown = True
        if record.training_warning != warned:
            warned = record.training_warning
            if warned:
                console.print(warned, style=WARN, markup=False, highlight=False, soft_wrap=True)
        await asyncio.sleep(REFRESH_SECONDS)
        waited_seconds += REFRESH_SECONDS


def save_picture(record: SwarmRecord, screen: Screen, path: Path) -> None:
    """Write the current view as an SVG."""
    console = Console(
        width=PICTURE_WIDTH,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    now = time.time()
    console.print(draw(record, screen, now=now, width=PICTURE_WIDTH, height=PICTURE_HEIGHT))
    console.print(f" {screen.address}", highlight=False)
    console.save_svg(str(path), title="prime-node testnet")
