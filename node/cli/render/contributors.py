"""Terminal view of the contributors of a run, and the line about the work of one node."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.api.contributors import ContributorRow, ContributorsPage, OwnWork
from node.cli.render.style import BAD, DIM, GOOD, WARN, add_name_column, peer_text, plain
from node.local.units import count_text

_REASONS_SHOWN = 3
_REASONS_CHARACTERS_MAX = 120


def own_work_text(own: OwnWork) -> str:
    """Return what a node has contributed, in one line, and its credit in a second one if any."""
    parts = [f"{count_text(own.certified)} certified"]
    if own.tokens:
        parts.append(f"{count_text(own.tokens)} tokens")
    if own.checks:
        parts.append(f"{count_text(own.checks)} checked")
    if own.steps:
        parts.append(f"{count_text(own.steps)} version{'s' * (own.steps != 1)} published")
    if own.rank:
        parts.append(f"{share_text(own.credit_share)} of the run")
        parts.append(f"rank {own.rank} of {own.contributors}")
    most = Counter(own.rejected_reasons).most_common(_REASONS_SHOWN)
    reasons = ", ".join(f"{reason} {count}" for reason, count in most)
    told = f" ({plain(reasons, _REASONS_CHARACTERS_MAX)})" if reasons else ""
    line = f"{', '.join(parts)}; {own.waiting} waiting, {own.rejected} rejected{told}"
    line += skipped_text(own.skipped, own.unpaid)
    credit = _credit(own)
    return f"{line}\n{credit}" if credit else line


def skipped_text(gaps: int, unpaid: int) -> str:
    """Return the slots that a worker has left out, and their cost; empty for none."""
    if not gaps:
        return ""
    cost = f" ({count_text(unpaid)} rollouts without credit for them)" if unpaid else ""
    return f", {count_text(gaps)} slot{'s' * (gaps != 1)} skipped{cost}"


def _credit(own: OwnWork) -> str:
    """Return the credit of a node; empty if it never had any."""
    if not (own.unlocked or own.locked or own.forfeited):
        return ""
    lost = f", {count_text(own.forfeited)} forfeited" if own.forfeited else ""
    return f"credit {count_text(own.unlocked)} unlocked, {count_text(own.locked)} locked{lost}"


def share_text(share: float) -> str:
    """Format a share of the run's credit, which is never rounded to nothing or to all."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"


def contributors_view(page: ContributorsPage) -> RenderableType:
    """Return the output of ``prime-node contributors``."""
    if page.epoch < 0:
        return Text("No final page is counted yet.", WARN)
    line = (
        f"{count_text(page.rollouts)} certified rollouts, {count_text(page.tokens)} tokens, "
        f"{count_text(page.steps)} final versions, by the final pages up to epoch {page.epoch}"
    )
    yours = Table.grid(padding=(0, 3))
    yours.add_column(style=DIM)
    yours.add_column()
    yours.add_row("yours", Text(own_work_text(page.yours)))
    parts: list[RenderableType] = [Text(line), Padding(yours, (1, 0))]
    return Group(*parts, *_table(page))


def _table(page: ContributorsPage) -> list[RenderableType]:
    if not page.rows:
        return [Text("Nobody has contributed yet.", DIM)]
    table = contributors_table()
    add_name_column(table, "contributor")
    for row in page.rows:
        table.add_row(*_cells(row))
    hidden = page.total - len(page.rows)
    if page.own is not None and page.own.rank > len(page.rows):
        table.add_row(*_cells(page.own))
        hidden -= 1
    return [table, *([Text(f"and {hidden:,} more", DIM)] if hidden > 0 else [])]


def contributors_table() -> Table:
    """Return a table with the columns of a contributor's work."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM, expand=True)
    for name in ("rank", "share", "tokens", "rollouts", "checks", "versions", "credit", "locked"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(row: ContributorRow) -> tuple[Text, ...]:
    credit = row.unlocked + row.locked
    counts = (row.tokens, row.rollouts, row.checks, row.steps, credit, row.locked)
    slashed = row.slashed_epoch >= 0
    notes = ", ".join(["you"] * row.me + ["slashed"] * slashed)
    who = peer_text(row.peer_id, row.name, note=notes).plain
    texts = (str(row.rank), share_text(row.credit_share), *map(count_text, counts), who)
    style = BAD if slashed else GOOD if row.me else ""
    return tuple(Text(text, style) for text in texts)
