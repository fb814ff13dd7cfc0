"""Shows a running testnet: redrawn on a terminal, line by line anywhere else, or as a picture."""

import asyncio
import io
import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from node.testnet.record import SwarmRecord
from node.testnet.screen import Screen, progress_line
from node.testnet.view import draw

REFRESH_SECONDS = 0.5
LINE_SECONDS = 5.0
PICTURE_WIDTH = 100
PICTURE_HEIGHT = 60


async def show_live(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Redraw the view until cancelled; the last drawing stays."""

    def view() -> RenderableType:
        width, height = console.size
        return draw(record, screen, now=time.time(), width=width, height=height)

    with Live(get_renderable=view, console=console, auto_refresh=False) as live:
        try:
            while True:
                live.refresh()
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            live.refresh()


async def show_lines(record: SwarmRecord, screen: Screen, console: Console) -> None:
    """Print a line now and then, at every new stage, and once the way to join."""
    shown_stage, waited_seconds, join_shown = None, 0.0, False
    while True:
        if screen.stage != shown_stage or waited_seconds >= LINE_SECONDS:
            console.print(
                progress_line(record, screen, time.time()), highlight=False, soft_wrap=True
            )
            shown_stage, waited_seconds = screen.stage, 0.0
        if screen.join_command and not join_shown:
            console.print(
                f"join with: {screen.join_command}", markup=False, highlight=False, soft_wrap=True
            )
            console.print(f"watch it: {screen.web_url}", highlight=False, soft_wrap=True)
            join_shown = True
        await asyncio.sleep(REFRESH_SECONDS)
        waited_seconds += REFRESH_SECONDS


def save_picture(record: SwarmRecord, screen: Screen, path: Path) -> None:
    """Write the view as it is now as an SVG."""
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
