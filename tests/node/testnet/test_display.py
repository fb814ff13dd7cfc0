"""Live view on a real pseudo-terminal, with the screen read from an emulator."""

import asyncio
import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte
from rich.console import Console

from node.testnet.display import REFRESH_SECONDS, save_picture, show_lines
from node.testnet.view import draw
from tests.node.testnet.testnet_swarms import STARTED_AT, learned_swarm, sample, screen, status

ROOT = Path(__file__).parents[3]
NOW = STARTED_AT + 175
PATIENCE_SECONDS = 120

SHOW = """
import asyncio, types
from rich.console import Console
from node.testnet import display
from tests.node.testnet.test_display import NOW
from tests.node.testnet.testnet_swarms import learned_swarm, screen
display.time = types.SimpleNamespace(time=lambda: NOW)
asyncio.run(display.show_live(learned_swarm(), screen(), Console()))
"""


class Terminal:
    def __init__(self, width, height):
        self._ours, self._theirs = pty.openpty()
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(width, height)
        environment = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
        self._child = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            cwd=ROOT, env=environment, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs,
        )  # fmt: skip

    def resize(self, width, height):
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._screen.resize(height, width)

    def lines_once(self, wanted):
        """Return the lines of the screen, once they are the wanted ones or the patience ends."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self._lines != wanted and time.monotonic() < until:
            if select.select([self._ours], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._ours, 65536))
        return self._lines

    @property
    def _lines(self):
        return [line.rstrip() for line in self._screen.display]

    def close(self):
        self._child.kill()
        self._child.wait(30)
        os.close(self._ours)
        os.close(self._theirs)


def expected(width, height):
    """Return the lines of a terminal that shows one view and nothing else."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(draw(learned_swarm(), screen(), now=NOW, width=width, height=height))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return (lines + [""] * height)[:height]


def test_nothing_is_left_over_when_the_window_changes():
    terminal = Terminal(100, 50)
    try:
        for width, height in ((100, 50), (80, 24), (60, 9), (120, 40)):
            terminal.resize(width, height)
            wanted = expected(width, height)
            assert terminal.lines_once(wanted) == wanted
    finally:
        terminal.close()


async def lines_of(record, given):
    """Return the first lines without a terminal."""
    console = Console(file=io.StringIO(), width=80)
    showing = asyncio.create_task(show_lines(record, given, console))
    await asyncio.sleep(0)
    showing.cancel()
    await asyncio.wait([showing])
    return console.file.getvalue().splitlines()


async def test_without_a_terminal_lines_have_the_commands_and_warnings():
    record = learned_swarm()
    plan = record.nodes["trainer-1"].plan
    warning = "step 12 used 0 of 64 sequences: " + 20 * "the rewards are equal "
    record.observe("trainer-1", sample(status(plan, training_warning=warning)))
    given = screen(join_command="prime-node --run-id ab", status_command="prime-node status")
    progress, *commands, warned = await lines_of(record, given)
    assert "learning  version 37/60" in progress
    assert commands == [
        "join with: prime-node --run-id ab",
        "show its status with: prime-node status",
        "the swarm has started: it ends with version 60, or after 5 min; --forever prevents it",
        "dashboard: http://127.0.0.1:40001/",
    ]
    assert warned == warning
    assert len(await lines_of(learned_swarm(), screen())) == 1


async def test_a_join_command_with_another_page_is_printed_again():
    given = screen(join_command="prime-node --run-id ab")
    console = Console(file=io.StringIO(), width=80)
    showing = asyncio.create_task(show_lines(learned_swarm(), given, console))
    await asyncio.sleep(0)
    given.join_command = "prime-node --run-id ab --page 9:cd"
    await asyncio.sleep(2 * REFRESH_SECONDS)
    showing.cancel()
    await asyncio.wait([showing])
    lines = console.file.getvalue().splitlines()
    assert lines[-1] == "join with: prime-node --run-id ab --page 9:cd"
    assert sum("dashboard" in line for line in lines) == 1


def test_a_picture_of_it_is_svg(tmp_path):
    save_picture(learned_swarm(), screen(), tmp_path / "view.svg")
    assert (tmp_path / "view.svg").read_text().startswith("<svg")
