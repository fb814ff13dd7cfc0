"""Sign an invite to a run with admission by invite."""

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
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Invited peer id (prime-node id).")],
    *,
    run: Annotated[Path, typer.Option(metavar="RUN.toml", help="The signed manifest.")],
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="Key of the run's creator or of an inviter.")
    ],
    days: Annotated[float, typer.Option(min=0, max=3650, help="Validity in days.")] = 90,
    as_json: Json = False,
) -> None:
    """Sign an invite to a run with admission by invite, and print its token.

    FILE.invites stores the number of each invited key. Keep it: two keys with the same number void
    both invites. A second invite of a key changes its date and keeps its number.
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
    typer.echo("start the node with prime-node --invite TOKEN, the first time only", err=True)
