"""Live view on a real pseudo-terminal, with the screen read from an emulator."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte
import pytest
from rich.console import Console

from node.testnet import display
from node.testnet.nodes_view import fate
from node.testnet.screen import Screen
from tests.node.testnet.testnet_swarms import STARTED_AT, learned_swarm, peer_id, spreading_swarm

ROOT = Path(__file__).parents[3]
NOW = STARTED_AT + 175
ADDRESS = f"/ip4/127.0.0.1/tcp/40001/p2p/{peer_id('relay-1')}"
SIZES = dict.fromkeys((60, 80, 120), (50, 24, 9, 40))
"""Heights in the order of resizing."""

SHOW = """
import asyncio, types
from rich.console import Console
from node.testnet import display
from tests.node.testnet.test_display import NOW, screen, swarm
display.time = types.SimpleNamespace(time=lambda: NOW)
asyncio.run(display.show_live(swarm(), screen(), Console()))
"""


def swarm():
    return spreading_swarm(cheaters=6)


def screen(**changes):
    joins = {"join_script": "/tmp/swarm/join.sh", "status_script": "/tmp/swarm/status.sh"}
    values = {"stage": "learning", "run_id": "1a2b3c4d", "address": ADDRESS} | joins | changes
    return Screen("arithmetic", 0, 60, 300.0, **values)


class Terminal:
    def __init__(self, width, height):
        self._ours, theirs = pty.openpty()
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._theirs = theirs
        self._size(width, height)
        environment = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
        self.child = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip

    def _size(self, width, height):
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width, height):
        self._size(width, height)
        self._screen.resize(height, width)

    def shows(self, wanted, seconds=30):
        """Return whether the screen shows exactly these lines in time."""
        until = time.monotonic() + seconds
        while self.lines != wanted and time.monotonic() < until:
            if select.select([self._ours], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._ours, 65536))
        return self.lines == wanted

    @property
    def lines(self):
        return [line.rstrip() for line in self._screen.display]

    def close(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(30)
        os.close(self._ours)
        os.close(self._theirs)


def expected(width, height, record=None, given=None):
    """Return the lines of a terminal that shows one frame and nothing else."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="256")
    shown = pyte.Screen(width, height)
    pyte.Stream(shown).feed(
        display.frame(record or swarm(), given or screen(), console, width, height)
    )
    return [line.rstrip() for line in shown.display]


@pytest.fixture(autouse=True)
def frozen(monkeypatch):
    monkeypatch.setattr(display.time, "time", lambda: NOW)


@pytest.mark.parametrize("width", SIZES)
def test_nothing_is_left_over_when_the_window_changes(width):
    first, *others = SIZES[width]
    terminal = Terminal(width, first)
    try:
        assert terminal.shows(expected(width, first)), terminal.lines
        for height in others:
            for columns in (width - 7, width):
                terminal.resize(columns, height)
                wanted = expected(columns, height)
                assert terminal.shows(wanted), (columns, height, terminal.lines, wanted)
    finally:
        terminal.close()


HEIGHTS = (8, 10, 13, 17, 20, 24, 27, 30, 33, 40, 60)


def test_every_size_shows_each_liar_and_the_address():
    for width in (60, 80, 100, 120):
        for height in HEIGHTS:
            record = swarm()
            lines = expected(width, height, record)
            text = re.sub(r"\s+", " ", " ".join(lines))
            for node in record.nodes.values():
                if node.plan.behaviour:
                    words, _ = fate(record, node.plan)
                    told = re.escape(node.plan.name) + r"( cheat:)? " + re.escape(words)
                    assert re.search(told, text.replace("\u00a0", " ")), (width, height, lines)
            rows = -(-len(ADDRESS) // width)
            assert "".join(line.ljust(width) for line in lines).find(ADDRESS) >= 0
            at = next(n for n, line in enumerate(lines) if line.startswith(ADDRESS[:20]))
            assert "".join(lines[at : at + rows]) == ADDRESS
            assert not set("│╭╮╰╯─") & set("".join(lines[at : at + rows]))


def kinds(lines):
    """Return the height of the chart, and whether each node has a row."""
    frames = [n for n, line in enumerate(lines) if line.startswith(("╭─ reward", "╰"))]
    chart = frames[1] - frames[0] - 2 if len(frames) > 1 else 0
    return chart, any(line.strip("● ").startswith("validator-3 ") for line in lines)


def test_the_chart_shrinks_first_and_rows_are_aggregated_after_it():
    record = learned_swarm(cheaters=2)
    for width in (60, 120):
        drawn = [expected(width, height, record) for height in range(32, 13, -1)]
        seen = [kinds(lines) for lines in drawn]
        order = list(dict.fromkeys(seen))
        assert order == [
            *((chart, True) for chart in range(8, 2, -1)),
            *((chart, False) for chart in (8, 7, 6, 5, 4, 3, 0) if (chart, False) in order),
        ], (width, order)
        assert (0, False) in order
        aggregated = next(lines for lines in drawn if not kinds(lines)[1])
        assert any(re.match(r" ● 3 validator +", line) for line in aggregated)


def test_the_axis_follows_the_run():
    for versions, last in ((4, 10), (37, 37)):
        lines = expected(100, 40, learned_swarm(versions=versions))
        (axis,) = (line for line in lines if "version 1 " in line)
        assert re.search(rf"version 1 +{last} ", axis)
        drawn = [
            line[6:60] for line in lines if line.startswith(("│ 1.0", "│ 0.5", "│    ", "│ 0.0"))
        ]
        right = max(n for line in drawn for n, one in enumerate(line) if "⠀" < one <= "⣿")
        width = len(drawn[0]) - 3
        assert right / width > 0.9 * versions / last, "the newest version is at the right"


def test_a_version_on_its_way_has_maps_where_there_is_room():
    maps = {}
    for height in (24, 60):
        lines = expected(100, height)
        maps[height] = [line for line in lines if re.search("[█▓▒░·]{5}", line)]
    assert len(maps[60]) > 5
    assert len(maps[24]) <= 1


def test_the_address_is_gone_when_nobody_can_join_any_more():
    assert ADDRESS[:20] not in "".join(expected(100, 40, given=screen(stage="draining")))
