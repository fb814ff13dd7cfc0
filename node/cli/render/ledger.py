"""Terminal views of the ledger in a data directory."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.api.v1.contributors import Ranking
from node.cli.render.contributors import contributors_table, share_text, skipped_text
from node.cli.render.style import BAD, DIM, plain, short_peer
from node.local.units import count_text
from protocol.core.types import PeerId
from protocol.ledger.accounts import Account, Accounts
from protocol.ledger.final_ledger import CountedPage
from protocol.ledger.receipts import PageWork


def account_view(peer: PeerId, account: Account, ranking: Ranking) -> RenderableType:
    """Return all figures of an account."""
    rank = ranking.ranks.get(peer)
    place = "" if rank is None else f"rank {rank} of {len(ranking.ranks)}"
    share = share_text(ranking.share(account))
    rows = {
        "key": peer,
        "place": f"{place}, {share} of the run" if place else "none: nothing certified or checked",
        "rollouts": f"{account.rollouts:,} certified, {account.rejected:,} rejected"
        + skipped_text(account.gaps, account.forgiven),
        "tokens": f"{account.tokens:,}",
        "learned": f"{account.learned:,} rollouts, {account.learned_tokens:,} tokens",
        "checks": f"{account.checks:,}, of {account.checked_tokens:,} tokens",
        "versions": f"{account.steps:,} published{_left_out(account.omitted)}",
        "credit": f"{account.credit:,} unlocked, {account.locked_credit:,} locked",
        "since": f"epoch {account.since}",
    }
    if account.forfeited:
        rows["forfeited"] = f"{account.forfeited:,} credit"
    if account.slashed >= 0:
        rows["slashed"] = f"in epoch {account.slashed}"
    table = Table.grid(padding=(0, 3))
    table.add_column(style=DIM)
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, Text(text, BAD if name in {"forfeited", "slashed"} else ""))
    return Group(table, Text(f"by the final pages up to epoch {ranking.header.epoch}", DIM))


def ranking_view(accounts: Accounts, ranking: Ranking, count: int) -> RenderableType:
    """Return the keys with the most credit."""
    table = contributors_table()
    table.add_column("key", no_wrap=True)
    for peer in list(ranking.ranks)[:count]:
        account = accounts.account(peer)
        assert account is not None
        figures = account.tokens, account.rollouts, account.checks, account.steps
        cells = [str(ranking.ranks[peer]), share_text(ranking.share(account))]
        cells += [count_text(one) for one in (*figures, account.held, account.locked_credit)]
        is_slashed = account.slashed >= 0
        name = f"{short_peer(peer)} (slashed)" if is_slashed else short_peer(peer)
        table.add_row(*cells, name, style=BAD if is_slashed else "")
    hidden = len(ranking.ranks) - count
    more = [Text(f"and {hidden:,} more", DIM)] if hidden > 0 else []
    return Group(table, *more, Text(f"by the final pages up to epoch {ranking.header.epoch}", DIM))


def page_view(counted: CountedPage, work: PageWork) -> RenderableType:
    """Return the work that a final page decides."""
    message = counted.page.message
    title = Text(f"page {counted.page.digest.hex()} of epoch {message.epoch}")
    parts: list[RenderableType] = [title]
    if work.receipts:
        rollouts = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
        for name in ("commit", "worker", "version", "slot", "tokens", "outcome", "checked by"):
            rollouts.add_column(name, justify="right" if name in _NUMBERS else "left")
        for one in work.receipts:
            checkers = " ".join(map(short_peer, one.checkers))
            slot = f"{one.slot} (evaluation)" if one.evaluation else str(one.slot)
            numbers = (str(one.version), slot, f"{one.tokens:,}")
            style = "" if one.reason == "accepted" else BAD
            rollouts.add_row(
                one.commit.hex()[:12],
                short_peer(one.worker),
                *numbers,
                Text(plain(one.reason), style),
                checkers,
            )
        parts.append(rollouts)
    for step in work.steps:
        tokens = sum(tokens for _, _, tokens in step.learned)
        count = sum(rollouts for _, rollouts, _ in step.learned)
        parts.append(
            Text(
                f"version {step.version} of {short_peer(step.trainer)} is final: it learned from "
                f"{count} rollouts of {len(step.learned)} workers, {tokens:,} tokens"
                f"{_left_out(step.omitted)}"
            )
        )
    return Group(*parts, *([Text("It decides no work.", DIM)] if len(parts) == 1 else []))


def _left_out(count: int) -> str:
    return f", {count:,} final rollouts left out" if count else ""


_NUMBERS = frozenset({"version", "slot", "tokens"})
