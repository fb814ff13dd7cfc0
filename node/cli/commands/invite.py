"""Invite a key to a run that takes invited ones only."""

import time
from pathlib import Path
from typing import Annotated

import typer

from node.cli.commands.context import print_json
from node.cli.options import Json
from node.founding.invites import invite as signed_invite
from node.local.datadir import load_identity
from node.local.errors import ExitCode, NodeError
from node.local.invite_token import invite_token
from node.local.run_pin import load_run
from protocol.core.types import PeerId

app = typer.Typer(add_completion=False)


@app.command()
def invite(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Who is invited (prime-node id).")],
    *,
    run: Annotated[Path, typer.Option(metavar="RUN.toml", help="The signed manifest.")],
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="Of the run's creator, or of who may invite.")
    ],
    days: Annotated[float, typer.Option(min=0, max=3650, help="For how long it counts.")] = 90,
    as_json: Json = False,
) -> None:
    """Invite a key to a run that takes invited ones only, and print what it starts with.

    FILE.invites keeps which keys were invited. Keep it: an invite with a number that another key
    has makes both void. Who is invited again gets a new date and no new number.
    """
    try:
        identity = load_identity(key)
    except FileNotFoundError:
        raise NodeError(f"there is no key {key}", ExitCode.CONFIG) from None
    numbers = key.with_name(f"{key.name}.invites")
    manifest, now = load_run(run).manifest, time.time()
    signed = signed_invite(manifest, identity, numbers, PeerId(peer), now, days)
    token = invite_token(signed.envelope)
    if as_json:
        message = signed.message
        print_json({"invite": token, "number": message.number, "until_epoch": message.until})
        return
    typer.echo(token)
    typer.echo("prime-node --invite TOKEN starts a node with it, the first time", err=True)
