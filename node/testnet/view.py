"""The live view: one calm screen of about 100 by 32 characters, drawn from the record alone."""

import io
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.local.units import bytes_text
from node.testnet.arrivals_view import draw_arrivals, draw_spread
from node.testnet.colours import ACCENT, BAD, DIM, FRAME, GOOD, WARN
from node.testnet.curve import draw_curve
from node.testnet.record import Condition, Observation, SwarmRecord
from node.testnet.screen import STAGE_TEXT, Screen, clock_text, eta_seconds
from protocol.types import Role

CURVE_GRADIENT = ("#98c379", "#87c08c", "#77bd9f", "#66b9b1", "#56b6c2", "#55a6c8", "#5596ce")
"""From a reward of 1 down to 0."""

CURVE_HEIGHT = 8
REASONS_SHOWN = 4
OUTSIDERS_SHOWN = 4

WEIGHTS_WIDTH_MIN = 72
MEMORY_WIDTH_MIN = 96
"""From these widths on the table has room for weights, and for peers and memory."""

_CONDITION_MARKS: dict[Condition, tuple[str, str]] = {
    "waiting": ("·", DIM),
    "starting": ("◌", DIM),
    "running": ("●", GOOD),
    "silent": ("●", WARN),
    "dead": ("✗", BAD),
}


def draw(
    record: SwarmRecord, screen: Screen, *, now: float, width: int, height: int
) -> RenderableType:
    """Return the whole view for a terminal of ``width`` columns at unix time ``now``.

    Weights on their way take what is left of ``height`` lines, and one line where nothing is.
    """
    side = min(36, max(28, width // 3))
    top = Table.grid(expand=True, padding=0)
    top.add_column(ratio=1)
    top.add_column(width=side)
    top.add_row(_reward(record, screen, width - side), _rollouts(record))
    notice = [Text(f" {screen.notice}", style=WARN)] if screen.notice else []
    above = [_title(record, screen, now), _progress(record, screen, width), top]
    nodes = _nodes(record, width)
    below = [nodes, *notice, _footer(screen)]
    if screen.stage in {"draining", "done", "failed"}:  # nobody is looked at any more
        return Group(*above, *draw_spread(record), *below)
    left = height - _lines([*above, *below], width)
    return Group(*above, *draw_arrivals(record, width=width, lines_max=left), *below)


def _lines(parts: list[RenderableType], width: int) -> int:
    """Return how many lines something takes."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    return len(console.render_lines(Group(*parts), pad=False))


def _title(record: SwarmRecord, screen: Screen, now: float) -> RenderableType:
    left = Text.assemble(
        (" prime-node testnet", f"bold {ACCENT}"),
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


def _reward(record: SwarmRecord, screen: Screen, width: int) -> RenderableType:
    rewards = record.rewards
    plot_width = max(10, width - 9)
    lines = draw_curve(
        [(float(version), reward) for version, reward in rewards],
        width=plot_width,
        height=CURVE_HEIGHT,
        x_max=float(max(screen.steps, record.newest_version, 1)),
    )
    body = Text(no_wrap=True, overflow="crop")
    for row, line in enumerate(lines):
        label, grid = _axis(row)
        body.append(f"{label} ", style=DIM)
        colour = CURVE_GRADIENT[row * len(CURVE_GRADIENT) // CURVE_HEIGHT]
        for blank, characters in groupby(line, key=str.isspace):
            run = "".join(characters)
            body.append(grid * len(run) if blank else run, style=FRAME if blank else colour)
        body.append("\n")
    last = f"{screen.steps}"
    axis = f"version 1{' ' * max(1, plot_width - 9 - len(last))}{last}"
    body.append(f"    {axis}", style=DIM)
    title = Text.assemble(("reward ", "bold"), (_reward_summary(rewards), ACCENT))
    return Panel(body, title=title, title_align="left", border_style=FRAME, padding=(0, 1))


def _axis(row: int) -> tuple[str, str]:
    """Return the label of a row and what fills its blank cells."""
    labels = {0: "1.0", CURVE_HEIGHT // 2: "0.5", CURVE_HEIGHT - 1: "0.0"}
    return labels.get(row, "   "), "┈" if row in labels else " "


def _reward_summary(rewards: list[tuple[int, float]]) -> str:
    ends = rewards[:1] + rewards[1:][-1:]
    return " → ".join(f"{reward:.2f}" for _, reward in ends) or "no batch yet"


def _rollouts(record: SwarmRecord) -> RenderableType:
    counts = record.rollouts
    pending = counts.committed - counts.certified - counts.rejected - counts.expired
    first = record.first_certificate_seconds
    rows = [
        ("committed", f"{counts.committed}", ""),
        ("certified", f"{counts.certified}", GOOD),
        ("being checked", f"{max(0, pending)}", DIM),
        ("expired", f"{counts.expired}", WARN if counts.expired else DIM),
        ("rejected", f"{counts.rejected}", BAD if counts.rejected else DIM),
    ]
    reasons = sorted(counts.rejected_reasons.items(), key=lambda item: (-item[1], item[0]))
    rows += [(f"  {reason}", f"{count}", DIM) for reason, count in reasons[:REASONS_SHOWN]]
    facts = [
        ("weights moved", bytes_text(record.weights_sent), ACCENT),
        ("policy lag, most", f"{record.policy_lag_max}", ""),
        ("first certificate", "-" if first is None else f"{first:.0f} s", ""),
    ]
    rows += facts[: max(0, CURVE_HEIGHT + 1 - len(rows))]
    table = _two_columns()
    for label, value, style in rows:
        table.add_row(Text(label, style=DIM if label.startswith(" ") else ""), Text(value, style))
    title = Text("rollouts", style="bold")
    height = CURVE_HEIGHT + 3
    return Panel(
        table, title=title, title_align="left", border_style=FRAME, padding=(0, 1), height=height
    )


def _nodes(record: SwarmRecord, width: int) -> RenderableType:
    table = Table(box=None, expand=True, header_style=DIM, padding=(0, 1), pad_edge=True)
    table.add_column("node", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1)
    columns = ["policy", "lag", "certified"]
    columns += ["weights ↑", "weights ↓"] if width >= WEIGHTS_WIDTH_MIN else []
    columns += ["peers", "memory"] if width >= MEMORY_WIDTH_MIN else []
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for node in record.nodes.values():
        table.add_row(*_node_row(record, node)[: len(table.columns)])
    outsiders = record.outsiders
    for member in outsiders[:OUTSIDERS_SHOWN]:
        name = Text.assemble(("◆ ", ACCENT), f"{'+'.join(member.roles)} …{member.peer_id[-6:]}")
        counts = record.worker_counts(member.peer_id)
        table.add_row(
            name,
            Text("joined", style=ACCENT),
            f"{max(0, member.policy_version)}",
            _lag(record, member.policy_version),
            f"{counts.certified}/{counts.committed}",
        )
    if len(outsiders) > OUTSIDERS_SHOWN:
        table.add_row(Text(f"  and {len(outsiders) - OUTSIDERS_SHOWN} more", style=DIM))
    return table


def _node_row(record: SwarmRecord, node: Observation) -> list[RenderableType]:
    mark, colour = _CONDITION_MARKS[node.condition]
    name = Text.assemble((f"{mark} ", colour), node.plan.name)
    status = node.status
    state = _state(node)
    if status is None:
        return [name, state, *[Text("-", style=DIM)] * 7]
    own = status.own_rollouts
    work = Text("-", style=DIM)
    if node.plan.role is Role.INFERENCE:
        work = Text(f"{own.certified}/{own.committed}")
        if own.rejected:
            work.append(f" ✗{own.rejected}", style=BAD)
    return [
        name,
        state,
        f"{max(0, status.policy_version)}",
        _lag(record, status.policy_version),
        work,
        bytes_text(node.weights_sent),
        bytes_text(status.traffic.weights_received),
        f"{status.peers_connected}",
        bytes_text(node.peak_rss_bytes),
    ]


def _state(node: Observation) -> Text:
    status = node.status
    if node.condition != "running" or status is None:
        style = BAD if node.condition == "dead" else WARN if node.condition == "silent" else DIM
        return Text(node.condition, style=style)
    style = GOOD if status.state == "ready" else WARN
    text = Text(status.state, style=style)
    if node.plan.behaviour:
        text.append(" liar", style=BAD)
    if status.reason:
        text.append(f" {status.reason}", style=DIM)
    return text


def _lag(record: SwarmRecord, version: int) -> Text:
    lag = max(0, record.newest_version - max(0, version))
    return Text(f"{lag}", style=DIM if lag == 0 else "" if lag <= 2 else WARN)


def _footer(screen: Screen) -> RenderableType:
    if screen.stage in {"draining", "done", "failed"}:
        return Text(" Ctrl-C again stops at once" if screen.stage == "draining" else "", style=DIM)
    if not screen.join_command:
        return Text(" Ctrl-C drains", style=DIM)
    return Group(
        Text(f" Ctrl-C drains. Watch it in a browser: {screen.web_url}", style=DIM),
        Text(" Join from another shell:", style=DIM),
        Text(f" {screen.join_command}", style=ACCENT, overflow="fold"),
    )
