"""Display of a running testnet: a live view on a terminal, else lines, or an SVG picture."""

import asyncio
import io
import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from node.cli.render.style import WARN
from node.testnet.record import SwarmRecord
from node.testnet.screen import Screen, lasting_text, progress_line
from node.testnet.view import draw

REFRESH_SECONDS = 0.5
LINE_SECONDS = 5.0
PICTURE_WIDTH = 100
PICTURE_HEIGHT = 60


async def show_live(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Redraw the view on the alternate screen until cancelled, then print the last one."""

    def view(height: int) -> RenderableType:
        return draw(record, screen, now=time.time(), width=console.width, height=height)

    try:
        with Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            while True:
                live.update(view(console.height), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)
    finally:
        console.print(view(PICTURE_HEIGHT))


async def show_lines(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Print a line every ``LINE_SECONDS`` and at each new stage, and each join command."""
    shown_stage, waited_seconds, join_shown = None, 0.0, ""
    warned = ""
    while True:
        if screen.stage != shown_stage or waited_seconds >= LINE_SECONDS:
            console.print(
                progress_line(record, screen, time.time()), highlight=False, soft_wrap=True
            )
            shown_stage, waited_seconds = screen.stage, 0.0
        if screen.join_command != join_shown:
            told = (
                f"join with: {screen.join_command}",
                f"show its status with: {screen.status_command}",
                f"the swarm has started: {lasting_text(screen)}",
                f"dashboard: {screen.web_url}",
            )
            lines = told[:1] if join_shown else told  # later ones name another page
            console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
            join_shown = screen.join_command
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
    console.save_svg(str(path), title="prime-node testnet")
