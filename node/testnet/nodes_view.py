"""Live view of a testnet's nodes: a row per node, or a row per role and per cheater."""

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from node.local.units import bytes_text
from node.testnet.colours import ACCENT, BAD, DIM, GOOD, WARN
from node.testnet.plan import NodePlan
from node.testnet.record import Condition, Observation, SwarmRecord
from protocol.core.types import Role

OUTSIDERS_SHOWN = 4

POLICY_WIDTH_MIN = 72
WEIGHTS_WIDTH_MIN = 88
MEMORY_WIDTH_MIN = 108
"""Minimum widths for the columns of the policy, of weights, and of peers and memory."""

_CONDITION_MARKS: dict[Condition, tuple[str, str]] = {
    "waiting": ("·", DIM),
    "starting": ("◌", DIM),
    "running": ("●", GOOD),
    "silent": ("●", WARN),
    "dead": ("✗", BAD),
}


def draw_nodes(record: SwarmRecord, width: int) -> RenderableType:
    """Return a table with a row per node, and rows for some nodes that joined."""
    table = _table(width)
    for node in record.nodes.values():
        table.add_row(*_node_row(record, node)[: len(table.columns)])
    _add_outsiders(table, record)
    return table


def draw_roles(record: SwarmRecord, width: int) -> RenderableType:
    """Return a table with a row per role, per cheater, and one for all joined nodes."""
    table = _table(width)
    for role in Role:
        nodes = _honest(record, role)
        if nodes:
            table.add_row(*_role_row(record, role, nodes)[: len(table.columns)])
    for node in record.nodes.values():
        if node.plan.behaviour:
            table.add_row(*_node_row(record, node)[: len(table.columns)])
    if record.outsiders:
        table.add_row(Text.assemble(("◆ ", ACCENT), f"{len(record.outsiders)} joined"))
    return table


def draw_short(record: SwarmRecord) -> RenderableType:
    """Return the same as running text, cheaters first."""
    text = Text(" ")
    for node in record.nodes.values():
        if node.plan.behaviour:
            words, style = fate(record, node.plan)
            text.append(f"{node.plan.name} ")
            text.append(words.replace(" ", "\u00a0"), style=style)
            text.append("; ")
    roles = {role: _honest(record, role) for role in Role}
    told = [f"{len(nodes)} {role}: {_states(nodes)}" for role, nodes in roles.items() if nodes]
    if record.outsiders:
        told.append(f"{len(record.outsiders)} joined")
    return text.append("; ".join(told))


def fate(record: SwarmRecord, plan: NodePlan) -> tuple[str, str]:
    """Return the outcome of a cheater, and a colour: green if it was caught."""
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


def _table(width: int) -> Table:
    table = Table(box=None, expand=True, header_style=DIM, padding=(0, 1), pad_edge=True)
    table.add_column("node", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1)
    columns = ["certified"]
    columns += ["policy", "lag"] if width >= POLICY_WIDTH_MIN else []
    columns += ["weights ↑", "weights ↓"] if width >= WEIGHTS_WIDTH_MIN else []
    columns += ["peers", "memory"] if width >= MEMORY_WIDTH_MIN else []
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _honest(record: SwarmRecord, role: Role) -> list[Observation]:
    nodes = record.nodes.values()
    return [node for node in nodes if node.plan.role is role and not node.plan.behaviour]


def _states(nodes: Sequence[Observation]) -> str:
    counts = Counter(_word(node) for node in nodes)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def _word(node: Observation) -> str:
    running = node.condition == "running" and node.status is not None
    return node.status.state if running and node.status is not None else node.condition


def _role_row(
    record: SwarmRecord, role: Role, nodes: Sequence[Observation]
) -> list[RenderableType]:
    statuses = [node.status for node in nodes if node.status is not None]
    well = all(node.condition == "running" for node in nodes)
    name = Text.assemble(("● ", GOOD if well else WARN), f"{len(nodes)} {role}")
    state = Text(_states(nodes), style=GOOD if well else WARN)
    certified = sum(status.own_rollouts.certified for status in statuses)
    committed = sum(status.own_rollouts.committed for status in statuses)
    oldest = min((status.policy_version for status in statuses), default=-1)
    return [
        name,
        state,
        f"{certified}/{committed}" if role is Role.INFERENCE else Text("-", style=DIM),
        f"{max(0, oldest)}",
        _lag(record, oldest),
        bytes_text(sum(node.weights_sent for node in nodes)),
        bytes_text(sum(status.traffic.weights_received for status in statuses)),
        f"{min((status.peers_connected for status in statuses), default=0)}",
        bytes_text(sum(node.peak_rss_bytes for node in nodes)),
    ]


def _add_outsiders(table: Table, record: SwarmRecord) -> None:
    outsiders = record.outsiders
    for member in outsiders[:OUTSIDERS_SHOWN]:
        name = Text.assemble(("◆ ", ACCENT), f"{'+'.join(member.roles)} …{member.peer_id[-6:]}")
        counts = record.worker_counts(member.peer_id)
        row: list[RenderableType] = [
            name,
            Text("joined", style=ACCENT),
            f"{counts.certified}/{counts.committed}",
            f"{max(0, member.policy_version)}",
            _lag(record, member.policy_version),
        ]
        table.add_row(*row[: len(table.columns)])
    if len(outsiders) > OUTSIDERS_SHOWN:
        table.add_row(Text(f"  and {len(outsiders) - OUTSIDERS_SHOWN} more", style=DIM))


def _node_row(record: SwarmRecord, node: Observation) -> list[RenderableType]:
    mark, colour = _CONDITION_MARKS[node.condition]
    name = Text.assemble((f"{mark} ", colour), node.plan.name)
    status = node.status
    state = _state(record, node)
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
        work,
        f"{max(0, status.policy_version)}",
        _lag(record, status.policy_version),
        bytes_text(node.weights_sent),
        bytes_text(status.traffic.weights_received),
        f"{status.peers_connected}",
        bytes_text(node.peak_rss_bytes),
    ]


def _state(record: SwarmRecord, node: Observation) -> Text:
    if node.plan.behaviour:
        words, style = fate(record, node.plan)
        gone = f"{node.condition}, " if node.condition in ("dead", "silent") else ""
        return Text.assemble(("cheat: ", BAD), gone, (words, style))
    status = node.status
    if node.condition != "running" or status is None:
        style = BAD if node.condition == "dead" else WARN if node.condition == "silent" else DIM
        return Text(node.condition, style=style)
    text = Text(status.state, style=GOOD if status.state == "ready" else WARN)
    if status.reason:
        text.append(f" {status.reason}", style=DIM)
    return text


def _lag(record: SwarmRecord, version: int) -> Text:
    lag = max(0, record.newest_version - max(0, version))
    return Text(f"{lag}", style=DIM if lag == 0 else "" if lag <= 2 else WARN)
