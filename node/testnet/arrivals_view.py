"""Live view of a version download: a piece map per node, or one for all nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from node.api.downloads import DownloadStatus
from node.cli.render.downloads import remaining_text, share_text
from node.cli.render.piece_map import PieceBar, piece_shares
from node.local.units import bytes_text, duration_text
from node.testnet.colours import ACCENT, DIM, FRAME, GOOD, WARN
from node.testnet.record import SwarmRecord
from node.testnet.spread import receivers_of, spread

SHOWN_AFTER_SECONDS = 1.0
"""Shorter downloads are not shown, because they would only make the view jump."""

SOURCES_WIDTHS = (76, 100)
"""Minimum widths of a row with one source, and with two."""

FRAME_LINES = 2


@dataclass(frozen=True, slots=True)
class _Node:
    """Progress of one node; ``arrival`` is None before its download."""

    name: str
    arrival: DownloadStatus | None

    @property
    def has_it(self) -> bool:
        return self.arrival is not None and self.arrival.arrived_at is not None


def draw_downloads(record: SwarmRecord, *, width: int, lines_max: int) -> list[RenderableType]:
    """Return the newest version download in at most ``lines_max`` lines.

    At least one line, once a node has received a version.
    """
    version, nodes = _on_their_way(record)
    if not nodes:
        return draw_spread(record)
    named = sum(width >= enough for enough in SOURCES_WIDTHS)
    rows = [_row(record, node, named) for node in nodes]
    if len(rows) + FRAME_LINES > lines_max:
        rows = [_all_together(nodes, wide=named > 0)]
    if len(rows) + FRAME_LINES > lines_max:
        return [Padding(_table(rows), (0, 1))]
    title = Text.assemble((f"version {version}", "bold"), (f" {_what(nodes)}", ACCENT))
    return [Panel(_table(rows), title=title, title_align="left", border_style=FRAME)]


def _on_their_way(record: SwarmRecord) -> tuple[int, list[_Node]]:
    """Return the newest version in download, and the progress of each node."""
    coming = {
        (arrival.version, node.plan.name): arrival
        for node in record.running
        for arrival in (node.status.arrivals if node.status is not None else ())
        if arrival.arrived_at is None
    }
    version = max(
        (version for (version, _), one in coming.items() if one.seconds >= SHOWN_AFTER_SECONDS),
        default=-1,
    )
    if version < 0:
        return version, []
    came = record.arrived.get(version, {})
    found = came | {name: one for (number, name), one in coming.items() if number == version}
    names = receivers_of(record, [one.root for one in found.values()], found)
    return version, [_Node(name, found.get(name)) for name in names]


def _what(nodes: Sequence[_Node]) -> str:
    arrivals = [node.arrival for node in nodes if node.arrival is not None]
    known = max(arrivals, key=lambda one: one.total_bytes)
    have = sum(node.has_it for node in nodes)
    size = f"{known.form}, {bytes_text(known.total_bytes)}"
    return f"in download: {size}; {have} of {len(nodes)} nodes have it"


def _table(rows: Sequence[Sequence[RenderableType]]) -> Table:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for _ in rows[0][2:]:
        table.add_column(justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _row(record: SwarmRecord, node: _Node, named: int) -> list[RenderableType]:
    """Return the cells of a node, with the names of its first ``named`` sources."""
    arrival = node.arrival
    if arrival is None:
        return [
            node.name,
            PieceBar([[0.0]], DIM),
            "",
            "",
            *[""] * (named > 0),
            Text("waiting", DIM),
        ]
    text = Text(_sources(record, arrival, named), DIM, justify="left")
    sources = [text] * (named > 0)
    if node.has_it:
        took = Text(f"took {duration_text(arrival.seconds)}", DIM)
        return [node.name, PieceBar([[1.0]], GOOD), "100 %", "", *sources, took]
    return [
        node.name,
        PieceBar([piece_shares(stripe) for stripe in arrival.stripes], ACCENT),
        share_text(arrival),
        f"{bytes_text(arrival.bytes_per_second)}/s",
        *sources,
        Text(remaining_text(arrival), WARN if arrival.seconds_to_go is None else ""),
    ]


def _sources(record: SwarmRecord, arrival: DownloadStatus, named: int) -> str:
    """Return the names of the main sources and the number of the others."""
    names = {str(node.plan.peer_id): node.plan.name for node in record.nodes.values()}
    shown = [names.get(one.name, f"…{one.name[-6:]}") for one in arrival.sources[:named]]
    hidden = len(arrival.sources) - len(shown)
    return ", ".join(shown) + (f" +{hidden}" if hidden else "")


def _all_together(nodes: Sequence[_Node], *, wide: bool) -> list[RenderableType]:
    """Return one row for all nodes: the share of nodes per piece, and the slowest time."""
    arrivals = [node.arrival for node in nodes if node.arrival is not None]
    coming = [one for one in arrivals if one.arrived_at is None]
    rate = sum(one.bytes_per_second for one in coming)
    share = sum(_share(node) for node in nodes) / len(nodes)
    slowest = max(coming, key=lambda one: (one.seconds_to_go is None, one.seconds_to_go or 0.0))
    have = [f"{sum(node.has_it for node in nodes)} have it"] * wide
    return [
        f"{len(nodes)} nodes",
        PieceBar(_shares(nodes), ACCENT),
        f"{int(100 * share)} %",
        f"{bytes_text(rate)}/s",
        *have,
        Text(remaining_text(slowest), WARN if slowest.seconds_to_go is None else ""),
    ]


def _share(node: _Node) -> float:
    if node.arrival is None:
        return 0.0
    return 1.0 if node.has_it else node.arrival.bytes_here / max(1, node.arrival.total_bytes)


def _shares(nodes: Sequence[_Node]) -> list[list[float]]:
    """Return the share of nodes that have each piece, by stripe.

    Nodes may download different encodings of the version, with different piece counts.
    """
    maps = [
        {stripe.number: piece_shares(stripe) for stripe in node.arrival.stripes}
        for node in nodes
        if node.arrival is not None and node.arrival.stripes
    ]
    lengths: dict[int, int] = {}
    for one in maps:
        for number, pieces in one.items():
            lengths[number] = max(lengths.get(number, 0), len(pieces))
    complete = sum(node.has_it for node in nodes)
    return [
        [
            (complete + sum(_at(one.get(number, []), piece, length) for one in maps)) / len(nodes)
            for piece in range(length)
        ]
        for number, length in sorted(lengths.items())
    ]


def _at(pieces: Sequence[int], piece: int, length: int) -> int:
    return pieces[piece * len(pieces) // length] if pieces else 0


def draw_spread(record: SwarmRecord) -> list[RenderableType]:
    """Return a line about the newest version that a node has received."""
    last = spread(record, max(record.arrived, default=-1))
    if last is None:
        return []
    half, whole = last.seconds_to_half, last.seconds_to_all
    times = "" if half is None else f", half in {half:.1f} s"
    times += "" if whole is None else f", all in {whole:.1f} s"
    by_root, by_peers = bytes_text(last.root_bytes), bytes_text(last.peer_bytes)
    reached = f"version {last.version} reached {len(last.arrivals)}/{len(last.receivers)} nodes"
    line = f" {reached}{times}; root {by_root}, peers {by_peers}"
    return [Text(line, DIM, no_wrap=True, overflow="ellipsis")]
