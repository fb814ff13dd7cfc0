"""Terminal view of the council."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.api.council import CouncilPage, CouncilRow, CouncilSummary
from node.cli.render.style import (
    BAD,
    DIM,
    GOOD,
    WARN,
    add_name_column,
    plain,
    plain_name,
    short_peer,
)
from node.local.units import duration_text

_TEXT_CHARACTERS_MAX = 400


def council_view(page: CouncilPage) -> RenderableType:
    """Return the output of ``prime-node council``."""
    if not page.members:
        return Text("This node does not follow a run yet.", WARN)
    facts = Table.grid(padding=(0, 3))
    facts.add_column(style=DIM, min_width=9)
    facts.add_column()
    for name, value in (
        ("seated", _seated(page)),
        ("history", _history(page)),
        ("era", _era(page)),
        ("quorum", _quorum(page)),
        ("final", _final(page)),
        ("notarised", _notarised(page)),
        ("recent", _recent(page)),
        ("leader", leader_text(page)),
        ("version", "none is final yet" if page.final_version < 0 else _version(page)),
    ):
        facts.add_row(name, Text(value))
    style = WARN if page.fault or page.absent_count else GOOD
    parts: list[RenderableType] = [
        Text(f"● {plain(page.text, _TEXT_CHARACTERS_MAX)}", style),
        Padding(facts, (1, 0, 1, 2)),
    ]
    return Group(*parts, _members(page), *_no_seat(page))


def leader_text(council: CouncilSummary) -> str:
    """Return a line about the trainer that leads."""
    live = "live" if council.is_leader_live else "not live"
    line = f"trainer {short_peer(council.leader)}, term {council.term}, {live}"
    refused = (
        f"; refused: {plain(council.refused, _TEXT_CHARACTERS_MAX)}" if council.refused else ""
    )
    return f"{line}{refused}  {plain_name(council.leader_name)}".rstrip()


def _version(page: CouncilPage) -> str:
    return f"{page.final_version} is final, with all before it"


def _seated(page: CouncilPage) -> str:
    if page.since_epoch < 0:
        return "by the genesis"
    return f"at epoch {page.since_epoch} by page {page.seat[:16]}…, after {page.number} others"


def _history(page: CouncilPage) -> str:
    if not page.trusted_page:
        return "as peers showed it at the start: no --page was given"
    epoch, _, digest = page.trusted_page.partition(":")
    return f"contains page {digest[:16]}… of epoch {epoch}, which --page gave"


def _era(page: CouncilPage) -> str:
    era = f"{page.era}" if page.era else "none yet"
    due = f"in {duration_text(page.draw_seconds)}" if page.draw_seconds else "now"
    return f"{era}; the next council is drawn from epoch {page.draw_epoch} on, {due}"


def _quorum(page: CouncilPage) -> str:
    return (
        f"{page.quorum} of {page.seats_total} votes, {page.recovery_quorum} in a recovery; "
        f"the newest page lacks {page.votes_missing}"
    )


def _final(page: CouncilPage) -> str:
    if page.final_epoch < 0:
        return "no page yet"
    age = duration_text(page.final_age_seconds)
    epochs = f"{page.final_age_epochs} epoch{'s' * (page.final_age_epochs != 1)}"
    return f"page of epoch {page.final_epoch}, {age} ({epochs}) ago, {page.final_votes} votes"


def _notarised(page: CouncilPage) -> str:
    if page.notarised_epoch < 0:
        return "no page yet"
    return f"page of epoch {page.notarised_epoch}; committees drawn by that of {page.drawn_epoch}"


def _recent(page: CouncilPage) -> str:
    if page.notarised_share is None or page.drawing_share is None:
        return "no completed epoch yet"
    count = page.recent_epochs
    return (
        f"of {count} epochs, {round(count * page.notarised_share)} have a notarised page and "
        f"{round(count * page.drawing_share)} drawn committees"
    )


def _members(page: CouncilPage) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1), header_style=DIM)
    named = any(row.name for row in page.members)
    table.expand = named
    for name in ("member", "seats", "since", "last vote", "state"):
        table.add_column(name, no_wrap=True)
    if named:
        add_name_column(table)
    for row in page.members:
        table.add_row(
            Text(f"{short_peer(row.peer_id)}{' (you)' if row.me else ''}"),
            str(row.seats),
            _since(row),
            _vote(row),
            _state(row),
            *([plain_name(row.name)] if named else []),
        )
    return table


def _since(row: CouncilRow) -> str:
    if row.since_epoch < 0:
        return "genesis"
    return f"epoch {row.since_epoch}{' (genesis key)' if row.is_genesis else ''}"


def _vote(row: CouncilRow) -> str:
    if row.vote_age_seconds is None:
        return "none"
    return f"epoch {row.vote_epoch}, {duration_text(row.vote_age_seconds)} ago"


def _state(row: CouncilRow) -> Text:
    if row.evidence:
        return Text(plain(row.evidence), BAD)
    if row.is_silent or row.is_absent:
        return Text("silent" if row.is_silent else "absent", WARN)
    return Text("votes", GOOD)


def _no_seat(page: CouncilPage) -> list[RenderableType]:
    if not page.no_seat:
        return []
    return [Text(f"\nThis node has no seat: {plain(page.no_seat)}.", DIM)]
