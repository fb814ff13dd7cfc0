"""Show, prove and export what final pages say of everyone's work."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from node.cli.commands.context import data_dir_of, local_paths, print_json, print_rich
from node.cli.options import CommandDataDir, Json
from node.local.datadir import load_identity
from node.local.errors import ExitCode, NodeError
from node.local.units import count_text
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import PeerId

if TYPE_CHECKING:
    from node.models.ledger import HeldLedger
    from protocol.ledger.accounts import Account

app = typer.Typer(add_completion=False, invoke_without_command=True, no_args_is_help=False)

TOP = 20


class Format(StrEnum):
    """Format of an export."""

    JSON = "json"
    PARQUET = "parquet"


Key = Annotated[str | None, typer.Argument(metavar="[KEY]", help="Peer id; default this node's.")]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File to write; default standard output.")
]


@app.callback()
def ledger(ctx: typer.Context, *, data_dir: CommandDataDir = None, as_json: Json = False) -> None:
    """Show, prove and export what final pages say of everyone's work.

    The ledger follows from the final pages of the run alone, so it is the same on every node. It is
    read from a data directory, also while its node runs.
    """
    if ctx.invoked_subcommand is None:
        balance(ctx, None, data_dir=data_dir, as_json=as_json)


@app.command()
def balance(
    ctx: typer.Context, key: Key = None, *, data_dir: CommandDataDir = None, as_json: Json = False
) -> None:
    """Show the account of a key."""
    from node.api.v1.contributors import Ranking  # noqa: PLC0415 - not for help

    held = _open(ctx, data_dir)
    peer = _peer(ctx, key, data_dir)
    ranking, account = Ranking.of(held.accounts), held.accounts.account(peer)
    if account is None:
        raise NodeError(
            f"no final page up to epoch {held.accounts.header.epoch} names {peer}", ExitCode.RETRY
        )
    rank, share = ranking.ranks.get(peer), ranking.share(account)
    if as_json:
        shown = {"rank": rank, "share": round(share, 6), "epoch": held.accounts.header.epoch}
        print_json({**_values(peer, account), **shown})
        return
    from node.cli.render.ledger import account_view  # noqa: PLC0415 - rich is slow to import

    print_rich(account_view(peer, account, ranking))


@app.command()
def top(
    ctx: typer.Context,
    *,
    count: Annotated[int, typer.Option(min=1, help="Keys to show.")] = TOP,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Show the keys with the most credit."""
    from node.api.v1.contributors import Ranking  # noqa: PLC0415 - not for help

    held = _open(ctx, data_dir)
    ranking = Ranking.of(held.accounts)
    if as_json:
        listed = ((peer, held.accounts.account(peer)) for peer in list(ranking.ranks)[:count])
        rows = [_values(peer, account) for peer, account in listed if account is not None]
        print_json({"epoch": ranking.header.epoch, "total": len(ranking.ranks), "accounts": rows})
        return
    from node.cli.render.ledger import ranking_view  # noqa: PLC0415 - rich is slow to import

    print_rich(ranking_view(held.accounts, ranking, count))


@app.command()
def show(
    ctx: typer.Context,
    page: Annotated[
        str, typer.Argument(metavar="PAGE", help="Epoch, or first hex digits of its digest.")
    ],
    *,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Show the work that a final page decides."""
    held = _open(ctx, data_dir)
    counted = held.page(page)
    work = held.work(counted)
    if as_json:
        print_json(
            {
                "page": counted.page.digest.hex(),
                "epoch": counted.page.message.epoch,
                "rollouts": [
                    {**one._asdict(), "commit": one.commit.hex()} for one in work.receipts
                ],
                "versions": [
                    {**one._asdict(), "manifest": one.manifest.hex()} for one in work.steps
                ],
            }
        )
        return
    from node.cli.render.ledger import page_view  # noqa: PLC0415 - rich is slow to import

    print_rich(page_view(counted, work))


@app.command()
def prove(
    ctx: typer.Context, key: Key = None, *, out: Out = None, data_dir: CommandDataDir = None
) -> None:
    """Write a proof of an account: votes of the council, and a path to the root that they state.

    Anyone checks it offline with prime-node ledger verify, or with the single file verify_ledger.py
    of the package. It shows the account some epochs ago.
    """
    held = _open(ctx, data_dir)
    peer = _peer(ctx, key, data_dir)
    with _output(out) as stream:
        held.prove(peer, stream)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export or a proof.")],
    *,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Accept this run only.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify an export or a proof offline, without trust in its node."""
    from prime_node.verify_ledger import main  # noqa: PLC0415 - not for help

    flags = [*(["--run", run_id] if run_id else []), *(["--json"] if as_json else [])]
    raise typer.Exit(main([str(file), *flags]))


@app.command()
def export(
    ctx: typer.Context,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="New file.")],
    form: Annotated[
        Format,
        typer.Option("--format", help="json: verifiable; parquet: a table of all work, to study."),
    ] = Format.JSON,
    data_dir: CommandDataDir = None,
) -> None:
    """Export all final pages with their work."""
    held = _open(ctx, data_dir)
    if form is Format.PARQUET:
        _require_new(out)
        from node.models.ledger_table import write_table  # noqa: PLC0415 - pyarrow

        sys.stderr.write(f"{out}: {count_text(write_table(held, out))} rows\n")
        return
    with _output(out) as stream:
        pages = held.export(stream)
    sys.stderr.write(f"{out}: {count_text(pages)} final pages\n")


def _values(peer: PeerId, account: "Account") -> dict[str, object]:
    values = asdict(account)
    del values["key"]
    return {"peer": peer, **values, "window": account.window.hex(), "gaps": account.gaps}


def _open(ctx: typer.Context, data_dir: Path | None) -> "HeldLedger":
    from node.models.ledger import open_held_ledger  # noqa: PLC0415 - not for help

    return open_held_ledger(data_dir_of(ctx, _data_dir(ctx, data_dir)).root)


def _data_dir(ctx: typer.Context, data_dir: Path | None) -> Path | None:
    """Return the option of a command, or the one between ``ledger`` and its word."""
    parent = ctx.parent
    return data_dir or (None if parent is None else parent.params.get("data_dir"))


def _peer(ctx: typer.Context, key: str | None, data_dir: Path | None) -> PeerId:
    if key is None:
        path = local_paths(ctx, _data_dir(ctx, data_dir)).identity_path
        try:
            return load_identity(path or data_dir_of(ctx, data_dir).identity).peer_id
        except FileNotFoundError:
            raise NodeError(
                "no key here: name the KEY, or give --data-dir", ExitCode.USAGE
            ) from None
    if public_key_from_peer_id(key) is None:
        raise NodeError(f"{key!r} is no peer id; it begins with 12D3KooW", ExitCode.USAGE)
    return PeerId(key)


def _require_new(out: Path) -> None:
    if out.exists():
        raise NodeError(f"{out} exists; give a new file", ExitCode.USAGE)


@contextmanager
def _output(out: Path | None) -> Iterator[BinaryIO]:
    if out is None:
        yield sys.stdout.buffer
        return
    _require_new(out)
    try:
        with out.open("xb") as stream:
            yield stream
    except NodeError:
        out.unlink()
        raise
    except OSError as error:
        raise NodeError(f"cannot write {out}: {error.strerror}", ExitCode.CONFIG) from None
