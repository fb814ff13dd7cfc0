"""Table of the contributors of a run, for the page of a report."""

from html import escape

from node.api.contributors import ContributorRow, ContributorsPage
from node.cli.render.contributors import share_text
from node.cli.render.style import plain, short_peer
from node.local.units import count_text

STYLE = """
.contributors { margin-top: 8px; }
.contributors thead { background: #f4f6f7; }
.contributors th { padding: 6px 14px; text-align: left; font-weight: 500; color: var(--soft); }
.contributors :is(td, th):not(:first-child) { text-align: right; }
.contributors td:first-child { color: var(--ink); width: auto; }
.contributors bdi { font-weight: 600; }
.contributors .own td { background: #e3f0f2; }
.contributors .slashed code { color: var(--bad); }
@media (max-width: 760px) {
  .contributors, .contributors tbody { display: block; }
  .contributors thead { position: absolute; clip-path: inset(50%); width: 1px; overflow: hidden; }
  .contributors tr { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .contributors tr { padding: 8px 10px; border-top: 1px solid var(--line); }
  .contributors tr.own { background: #e3f0f2; }
  .contributors tr td { border: 0; padding: 2px 0; text-align: left !important; }
  .contributors td:first-child { grid-column: 1 / -1; }
  .contributors td:not(:first-child)::before { content: attr(data-title) " "; color: var(--soft); }
}
"""

_TITLES = ("tokens", "rollouts", "checks", "versions", "share", "credit", "locked", "since")
_NAME_CHARACTERS_MAX = 64
"""A name in a report is that of a simulated machine with its behaviour."""


def contributors_section(page: ContributorsPage) -> str:
    """Return the heading, the table and a note on further contributors; empty without any.

    The row of the node that recorded the page is marked.
    """
    if not page.rows:
        return ""
    rows = list(page.rows)
    if page.own is not None and page.own.rank > len(rows):
        rows.append(page.own)
    head = "".join(f'<th scope="col">{title}</th>' for title in ("contributor", *_TITLES))
    told = (
        f"By the final pages up to epoch {page.epoch}, as one honest node has them: "
        f"{page.total:,} contributors, {page.slashed:,} slashed."
    )
    hidden = page.total - len(rows)
    more = f'<p class="sub">and {hidden:,} more</p>' if hidden > 0 else ""
    return (
        f'<h2>Contributors</h2><p class="sub">{told}</p><table class="contributors">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>{more}"
    )


def _row(row: ContributorRow) -> str:
    slashed = row.slashed_epoch >= 0
    classes = " ".join(_known(("own", row.me), ("slashed", slashed)))
    name = f"<bdi>{escape(plain(row.name, _NAME_CHARACTERS_MAX))}</bdi> " if row.name else ""
    notes = _known(("recorded node", row.me), (f"slashed at epoch {row.slashed_epoch}", slashed))
    note = "".join(f", {one}" for one in notes)
    who = f"{row.rank}. {name}<code>{escape(plain(short_peer(row.peer_id)))}</code>{note}"
    counts = (row.tokens, row.rollouts, row.checks, row.steps)
    credit = (row.unlocked + row.locked, row.locked)
    cells = (
        *map(count_text, counts),
        share_text(row.credit_share),
        *map(count_text, credit),
        f"epoch {row.since_epoch}",
    )
    body = "".join(
        f'<td data-title="{title}">{escape(cell)}</td>'
        for title, cell in zip(_TITLES, cells, strict=True)
    )
    return f'<tr class="{classes}"><td>{who}</td>{body}</tr>'


def _known(*pairs: tuple[str, bool]) -> list[str]:
    return [text for text, holds in pairs if holds]
