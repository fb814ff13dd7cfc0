"""Live view of a testnet for a terminal of any size, drawn from the record alone.

Parts are dropped or shortened in this order if the terminal is too small: downloads, the chart, the
rows of nodes (to one per role), the boxes. Cheaters and their outcomes are always shown.
"""

import io
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.local.units import bytes_text
from node.testnet.arrivals_view import draw_downloads, draw_spread
from node.testnet.colours import ACCENT, BAD, DIM, FRAME, GOOD, WARN
from node.testnet.curve import draw_curve
from node.testnet.nodes_view import draw_nodes, draw_roles, draw_short
from node.testnet.record import SwarmRecord
from node.testnet.screen import STAGE_TEXT, Screen, clock_text, eta_seconds, lasting_text

CURVE_GRADIENT = ("#98c379", "#87c08c", "#77bd9f", "#66b9b1", "#56b6c2", "#55a6c8", "#5596ce")
"""Colours from reward 1 down to 0."""

CURVE_HEIGHT_MAX = 8
CURVE_HEIGHT_MIN = 3
VERSIONS_SHOWN_MIN = 10
"""Minimum length of the version axis."""

REASONS_SHOWN = 4
NAME_WIDTH_MIN = 100

_BOX_LINES = 3
"""Lines of the chart's frame and axis."""

_OVER = ("draining", "done", "failed")


@dataclass(frozen=True, slots=True)
class _Layout:
    curve_height: int
    """0 replaces the boxes by a line."""
    nodes: RenderableType


def draw(
    record: SwarmRecord, screen: Screen, *, now: float, width: int, height: int
) -> RenderableType:
    """Return the view at unix time ``now`` for ``width`` columns, in at most ``height`` lines.

    Downloads take the remaining lines, at least one. On a terminal of a few lines the view is
    longer, and ends with the least important parts.
    """
    title = [_title(record, screen, now, width), _progress(record, screen, width)]
    notices = filter(None, (screen.notice, record.training_warning))
    notice = [Text(f" {text}", style=WARN) for text in notices]
    below: list[RenderableType] = [*notice, *_footer(screen)]
    on_their_way = [] if screen.stage in _OVER else draw_downloads(record, width=width, lines_max=1)
    moved = draw_spread(record) if screen.stage in _OVER else on_their_way
    room = height - _lines([*title, *moved, *below], width)
    layout = _fitting(record, width, room)
    if layout is None:
        return Group(title[0], draw_short(record), *title[1:], *_boxes(record, width, 0), *below)
    boxes = _boxes(record, width, layout.curve_height)
    rest = height - _lines([*title, *boxes, layout.nodes, *below], width)
    if screen.stage not in _OVER:
        moved = draw_downloads(record, width=width, lines_max=rest) if rest > 0 else []
    return Group(*title, *boxes, *moved, layout.nodes, *below)


def _fitting(record: SwarmRecord, width: int, room: int) -> _Layout | None:
    """Return the most detailed layout of boxes and nodes in at most ``room`` lines, or None."""
    heights = range(CURVE_HEIGHT_MAX, CURVE_HEIGHT_MIN - 1, -1)
    for nodes in (draw_nodes(record, width), draw_roles(record, width)):
        lines = _lines([nodes], width)
        for curve_height in heights:
            if lines + curve_height + _BOX_LINES <= room:
                return _Layout(curve_height, nodes)
    for rows in (nodes, draw_short(record)):
        if _lines([*_boxes(record, width, 0), rows], width) <= room:
            return _Layout(0, rows)
    return None


def _boxes(record: SwarmRecord, width: int, curve_height: int) -> list[RenderableType]:
    """Return the reward and the outcomes of rollouts."""
    if not curve_height:
        counts = record.rollouts
        line = (
            f" reward {_reward_summary(record.rewards)}; {counts.certified} certified, "
            f"{counts.rejected} rejected, {counts.expired} expired"
        )
        return [Text(line, no_wrap=True, overflow="ellipsis")]
    side = min(36, max(28, width // 3))
    top = Table.grid(expand=True, padding=0)
    top.add_column(ratio=1)
    top.add_column(width=side)
    top.add_row(_reward(record, width - side, curve_height), _rollouts(record, curve_height))
    return [top]


def _lines(parts: list[RenderableType], width: int) -> int:
    """Return the number of rendered lines."""
    if not parts:
        return 0
    console = Console(file=io.StringIO(), width=width, color_system=None)
    return len(console.render_lines(Group(*parts), pad=False))


def _title(record: SwarmRecord, screen: Screen, now: float, width: int) -> RenderableType:
    name = "prime-node testnet" if width >= NAME_WIDTH_MIN else "testnet"
    left = Text.assemble(
        (f" {name}", f"bold {ACCENT}"),
        ("  ", ""),
        (screen.environment, "bold"),
        (f"  run {screen.run_id[:8] or '········'}  seed {screen.seed}", DIM),
    )
    stage_style = {"learning": GOOD, "done": GOOD, "failed": BAD}.get(screen.stage, WARN)
    eta = eta_seconds(record, screen, now)
    right = Text.assemble(
        (STAGE_TEXT[screen.stage], stage_style),
        (f"  epoch {record.epoch}", DIM),
        (f"  {clock_text(now - record.started_at)}", "bold"),
        (f"  {clock_text(eta)} left " if eta is not None else " ", DIM),
    )
    line = _two_columns()
    line.add_row(left, right)
    return line


def _two_columns() -> Table:
    table = Table.grid(expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    return table


def _progress(record: SwarmRecord, screen: Screen, width: int) -> RenderableType:
    bar = ProgressBar(
        total=screen.steps,
        completed=max(0, min(record.newest_version, screen.steps)),
        width=width - 2,
        style=FRAME,
        complete_style=ACCENT,
        finished_style=GOOD,
    )
    return Padding(bar, (0, 1))


def _reward(record: SwarmRecord, width: int, height: int) -> RenderableType:
    rewards = record.rewards
    plot_width = max(10, width - 9)
    newest = max(record.newest_version, VERSIONS_SHOWN_MIN)
    lines = draw_curve(
        [(float(version), reward) for version, reward in rewards],
        width=plot_width,
        height=height,
        x_max=float(newest),
    )
    body = Text(no_wrap=True, overflow="crop")
    for row, line in enumerate(lines):
        label, grid = _axis(row, height)
        body.append(f"{label} ", style=DIM)
        colour = CURVE_GRADIENT[row * len(CURVE_GRADIENT) // height]
        for blank, characters in groupby(line, key=str.isspace):
            run = "".join(characters)
            body.append(grid * len(run) if blank else run, style=FRAME if blank else colour)
        body.append("\n")
    last = f"{newest}"
    axis = f"version 1{' ' * max(1, plot_width - 9 - len(last))}{last}"
    body.append(f"    {axis}", style=DIM)
    title = Text.assemble(("reward ", "bold"), (_reward_summary(rewards), ACCENT))
    return Panel(body, title=title, title_align="left", border_style=FRAME, padding=(0, 1))


def _axis(row: int, height: int) -> tuple[str, str]:
    """Return the label of a row and the filler of its blank cells."""
    labels = {height // 2: "0.5", 0: "1.0", height - 1: "0.0"}
    return labels.get(row, "   "), "┈" if row in labels else " "


def _reward_summary(rewards: list[tuple[int, float]]) -> str:
    ends = rewards[:1] + rewards[1:][-1:]
    return " → ".join(f"{reward:.2f}" for _, reward in ends) or "no batch yet"


def _rollouts(record: SwarmRecord, curve_height: int) -> RenderableType:
    counts = record.rollouts
    pending = counts.committed - counts.certified - counts.rejected - counts.expired
    first = record.first_certificate_seconds
    rows = [
        ("committed", f"{counts.committed}", ""),
        ("certified", f"{counts.certified}", GOOD),
        ("rejected", f"{counts.rejected}", BAD if counts.rejected else DIM),
    ]
    reasons = sorted(counts.rejected_reasons.items(), key=lambda item: (-item[1], item[0]))
    shown = reasons[:REASONS_SHOWN] if curve_height == CURVE_HEIGHT_MAX else []
    rows += [(f"  {reason}", f"{count}", DIM) for reason, count in shown]
    rows += [
        ("expired", f"{counts.expired}", WARN if counts.expired else DIM),
        ("pending", f"{max(0, pending)}", DIM),
    ]
    facts = [
        ("weights sent", bytes_text(record.weights_sent), ACCENT),
        ("max. policy lag", f"{record.policy_lag_max}", ""),
        ("first certificate", "-" if first is None else f"{first:.0f} s", ""),
    ]
    rows = (rows + facts)[: curve_height + 1]
    table = _two_columns()
    for label, value, style in rows:
        table.add_row(Text(label, style=DIM if label.startswith(" ") else ""), Text(value, style))
    title = Text("rollouts", style="bold")
    height = curve_height + _BOX_LINES
    return Panel(
        table, title=title, title_align="left", border_style=FRAME, padding=(0, 1), height=height
    )


def _footer(screen: Screen) -> list[RenderableType]:
    """Return the hints and commands, without the address, which must not be wrapped."""
    if screen.stage in _OVER:
        told = " Ctrl-C again stops at once" if screen.stage == "draining" else ""
        return [Text(told, style=DIM)] if told else []
    lasting = Text(
        f" Ctrl-C drains; {lasting_text(screen)}", DIM, no_wrap=True, overflow="ellipsis"
    )
    if not screen.join_script:
        return [lasting]
    commands = (("join", screen.join_script), ("its status", screen.status_script))
    watch = [Text.assemble((" dashboard  ", DIM), (screen.web_url, ACCENT))]
    return [
        lasting,
        *(watch if screen.web_url else ()),
        *(Text.assemble((f" {what:11}", DIM), (f"sh {path}", ACCENT)) for what, path in commands),
    ]
