"""Terminal view of a testnet: figures of the run, a table of the nodes, and the web page's address.

The web page has all details; the view shows that nodes generate, verify and train.
"""

import io
import math
from collections import defaultdict
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.api.status import NodeStatus
from node.api.v1.answers import PeerRow
from node.cli.render.downloads import remaining_text
from node.cli.render.piece_map import piece_bar, piece_shares
from node.cli.render.status import reward_bars
from node.cli.render.style import BAD, DIM, GOOD, WARN, peer_text, plain
from node.local.units import bytes_text, duration_text
from node.testnet.plan import NodePlan
from node.testnet.record import Condition, Observation, SwarmRecord
from node.testnet.screen import STAGE_TEXT, Screen, lasting_text, seconds_left
from node.testnet.spread import spread
from protocol.core.types import Role

LAG_WARNED = 2
"""A node whose policy is more versions behind the newest is marked."""

DOWNLOAD_SHOWN_SECONDS = 1.0
"""Shorter downloads are not shown, because they would only make the view flicker."""

SENT_WIDTH_MIN = 90
"""Minimum width for the column of sent weights."""

_BAR_WIDTH = 12
_LABEL_WIDTH = 12
_CURVE_WIDTH_MIN = 10
_ROWS_MIN = 2

_MARKS: dict[Condition, tuple[str, str]] = {
    "waiting": ("·", DIM),
    "starting": ("◌", DIM),
    "running": ("●", GOOD),
    "silent": ("●", WARN),
    "dead": ("✗", BAD),
}

_Row = tuple[RenderableType, ...]


def draw(
    record: SwarmRecord, screen: Screen, *, now: float, width: int, height: int
) -> RenderableType:
    """Return the view at unix time ``now`` for a terminal of ``width`` columns.

    If ``height`` lines do not suffice, honest nodes that run are left out of the table.
    """
    notices = filter(None, (screen.notice, record.training_warning))
    above = [
        _title(record, screen, now),
        _figures(record, screen, width),
        *(Text(f" {plain(text, 400)}", WARN) for text in notices),
    ]
    below = _footer(screen)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    room = height - 1 - len(console.render_lines(Group(*above, *below), pad=False))
    return Group(*above, _nodes(record, width, max(_ROWS_MIN, room)), *below)


def fate(record: SwarmRecord, plan: NodePlan) -> tuple[str, str]:
    """Return the outcome of a cheater, and a colour: green if it was caught."""
    if plan.role is Role.VALIDATOR:
        return ("lost its seat", GOOD) if record.lost_seat(plan) else ("has its seat", WARN)
    counts = record.worker_counts(plan.peer_id)
    if counts.certified:
        return f"{counts.certified} certified", BAD
    if record.is_slashed(plan.peer_id):
        return f"slashed, {counts.rejected} rejected", GOOD
    if counts.rejected:
        return f"caught, {counts.rejected} rejected", GOOD
    if counts.committed:
        return f"{counts.committed} pending", WARN
    return "nothing yet", DIM


def _title(record: SwarmRecord, screen: Screen, now: float) -> RenderableType:
    left = seconds_left(record, screen, now)
    line = Table.grid(expand=True)
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(
        Text.assemble(
            (f" testnet {screen.environment}", "bold"),
            (f"  run {screen.run_id[:8] or '-'}  seed {screen.seed}", DIM),
        ),
        Text.assemble(
            (STAGE_TEXT[screen.stage], BAD if screen.stage == "failed" else GOOD),
            f"  {duration_text(now - record.started_at)}",
            ("" if left is None else f", {duration_text(left)} left", DIM),
            " ",
        ),
    )
    return line


def _figures(record: SwarmRecord, screen: Screen, width: int) -> RenderableType:
    endless = math.isinf(screen.seconds_max)
    newest = max(0, record.newest_version)
    figures = _labelled()
    figures.add_row("version", f"{newest}" if endless else f"{newest} of {screen.steps}")
    figures.add_row("reward", _reward(record, max(1, newest if endless else screen.steps), width))
    figures.add_row("rollouts", _rollouts(record))
    figures.add_row("weights", f"{bytes_text(record.weights_sent)} sent{_newest_spread(record)}")
    if record.council_text:
        figures.add_row("council", Text(plain(record.council_text, 400)))
    return Padding(figures, (0, 0, 1, 1))


def _labelled() -> Table:
    table = Table.grid()
    table.add_column(style=DIM, min_width=_LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _reward(record: SwarmRecord, versions: int, width: int) -> Text:
    """Return the first and the last reward, and the curve with a dot for each missing version."""
    points = record.rewards
    if not points:
        return Text("no training step yet")
    ends = " → ".join(f"{reward:.2f}" for _, reward in (points[0], points[-1]))
    cells = min(versions, max(_CURVE_WIDTH_MIN, width - _LABEL_WIDTH - len(ends) - 4))
    rewards = defaultdict(list)
    for version, reward in points:
        rewards[(version - 1) * cells // versions].append(reward)
    curve = "".join(reward_bars([fmean(rewards[n])]) if n in rewards else "·" for n in range(cells))
    return Text.assemble(ends, "  ", (curve, GOOD), no_wrap=True)


def _rollouts(record: SwarmRecord) -> Text:
    counts = record.rollouts
    first = record.first_certificate_seconds
    reasons = sorted(counts.rejected_reasons.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{reason} {count}" for reason, count in reasons)
    return Text.assemble(
        f"{counts.committed} committed, ",
        (f"{counts.certified} certified", GOOD if counts.certified else ""),
        f", {counts.trained} trained on, ",
        (f"{counts.rejected} rejected", BAD if counts.rejected else ""),
        f" ({told})" if told else "",
        f", {counts.expired} expired",
        "" if first is None else f"; first certificate after {first:.0f} s",
    )


def _newest_spread(record: SwarmRecord) -> str:
    """Return the distribution of the newest version that a node has received."""
    last = spread(record, max(record.arrived, default=-1))
    if last is None:
        return ""
    half, whole = last.seconds_to_half, last.seconds_to_all
    times = "" if half is None else f", half in {half:.1f} s"
    times += "" if whole is None else f", all in {whole:.1f} s"
    sent = f"{bytes_text(last.root_bytes)} by its trainer, {bytes_text(last.peer_bytes)} by peers"
    reached = f"{len(last.arrivals)} of {len(last.receivers)} nodes"
    return f"; version {last.version} reached {reached}{times}: {sent}"


def _nodes(record: SwarmRecord, width: int, rows_max: int) -> Table:
    """Return a table of the nodes, in at most ``rows_max`` rows if enough honest nodes run."""
    table = Table(box=None, expand=True, header_style=DIM, padding=(0, 1))
    table.add_column("node", no_wrap=True)
    table.add_column("policy", no_wrap=True, justify="right")
    table.add_column("work", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1)
    if width >= SENT_WIDTH_MIN:
        table.add_column("sent", no_wrap=True, justify="right")
    nodes = list(record.nodes.values())
    count = len(nodes) + len(record.outsiders)
    well = [one for one in nodes if one.condition == "running" and not one.plan.behaviour]
    hidden = well[rows_max - 1 - count :] if count > rows_max else []
    rows = [_row(record, node) for node in nodes if node not in hidden]
    for row in (*rows, *(_outsider_row(record, member) for member in record.outsiders)):
        table.add_row(*row[: len(table.columns)])
    if hidden:
        table.add_row(Text(f"  {len(hidden)} more", DIM))
    return table


def _row(record: SwarmRecord, node: Observation) -> _Row:
    name = Text.assemble(_MARKS[node.condition], f" {node.plan.name}")
    state = _state(record, node)
    if node.status is None:
        return name, "", "", state
    version = _version(record, node.status.policy_version)
    return name, version, _work(node.plan.role, node.status), state, bytes_text(node.weights_sent)


def _outsider_row(record: SwarmRecord, member: PeerRow) -> _Row:
    counts = record.worker_counts(member.peer_id)
    name = Text("◆ ").append_text(peer_text(member.peer_id, member.name))
    version = _version(record, member.policy_version)
    joined = f"joined as {plain(', '.join(member.roles), 40)}"
    work = f"{counts.certified}/{counts.committed} certified"
    name.stylize("bold")
    return name, version, work, Text(joined, "bold")


def _version(record: SwarmRecord, version: int) -> Text:
    behind = record.newest_version - max(0, version) > LAG_WARNED
    return Text(f"{max(0, version)}", WARN if behind else "")


def _work(role: Role, status: NodeStatus) -> Text:
    own = status.yours
    if role is Role.INFERENCE:
        text = Text(f"{own.certified}/{own.committed} certified")
        return text.append(f" ✗{own.rejected}", BAD) if own.rejected else text
    if role is Role.VALIDATOR:
        return Text(f"{sum(status.checks.counts)} verified")
    if role is Role.TRAINER:
        step = status.training
        return Text("-" if step is None else f"trained version {step.version}")
    return Text(f"{status.peers_connected} connected")


def _state(record: SwarmRecord, node: Observation) -> Text:
    if node.plan.behaviour:
        words, style = fate(record, node.plan)
        gone = "" if node.condition == "running" else f"{node.condition}, "
        return Text.assemble(("cheat: ", BAD), gone, (words, style))
    status = node.status
    if node.condition != "running" or status is None:
        return Text(node.condition, _MARKS[node.condition][1])
    text = Text(status.state, GOOD if status.state == "ready" else WARN)
    for arrival in status.arrivals:
        if arrival.arrived_at is None and arrival.seconds >= DOWNLOAD_SHOWN_SECONDS:
            bar = piece_bar([piece_shares(stripe) for stripe in arrival.stripes], _BAR_WIDTH)
            return text.append(f"  {plain(arrival.name)} {bar} {remaining_text(arrival)}", DIM)
    return text.append(f"  {plain(status.reason)}" if status.reason else "", DIM)


def _footer(screen: Screen) -> list[RenderableType]:
    if screen.stage == "draining":
        return [Text("\n Ctrl-C again stops at once", DIM)]
    if screen.stage in ("done", "failed"):
        return []
    links = _labelled()
    if screen.web_url:
        links.add_row("web page", f"{screen.web_url} (rollouts, peers, weights, training)")
    if screen.join_script:
        links.add_row("join", f"sh {screen.join_script}")
        links.add_row("its status", f"sh {screen.status_script}")
    links.add_row("Ctrl-C", f"drains; {lasting_text(screen)}")
    return [Padding(links, (1, 0, 0, 1))]
