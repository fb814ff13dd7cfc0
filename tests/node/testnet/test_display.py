"""The live view on a real terminal: a pseudo-terminal of a given size."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SHOW = """
import asyncio
from rich.console import Console
from node.testnet.display import show_live
from node.testnet.screen import Screen
from tests.node.testnet.testnet_swarms import spreading_swarm

async def main():
    screen = Screen("arithmetic", 0, 60, 300.0, stage="learning", run_id="1a2b3c4d")
    try:
        await asyncio.wait_for(show_live(spreading_swarm(cheaters=0), screen, Console()), 0.2)
    except TimeoutError:
        pass

asyncio.run(main())
"""


def shown_on_terminal(columns: int, rows: int) -> list[str]:
    """Return the lines of the first drawing."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
        child = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 65536):
                output += piece
        except OSError:  # the other end has gone
            pass
        assert child.wait(30) == 0, output.decode(errors="replace")[-2000:]
    finally:
        os.close(ours)
    text = re.sub(r"\x1b\[\?25[lh]", "", output.decode())
    first = re.split(r"\x1b\[[0-9]*A|\x1b\[2K\x1b\[1A|\r\x1b\[2K", text)[0]
    return re.sub(r"\x1b\[[0-9;]*m", "", first).replace("\r", "").rstrip("\n").split("\n")


@pytest.mark.parametrize(("columns", "rows"), [(60, 24), (80, 30), (100, 50), (120, 28)])
def test_a_version_on_its_way_is_seen_on_any_terminal(columns, rows):
    lines = shown_on_terminal(columns, rows)
    assert all(len(line) <= columns for line in lines)
    assert len(lines) <= rows
    maps = [line for line in lines if re.search("[█▓▒░·]{5}", line)]
    if rows == 50:
        assert len(maps) == 7
        assert any("version 37 is on its way" in line for line in lines)
    else:
        (together,) = maps
        assert "7 nodes" in together
