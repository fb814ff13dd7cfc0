"""Run one dishonest inference node, to see it caught.

Behaviours are found in the entry-point group ``prime_node.behaviours``.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from node.live.node import run_node
from node.local.config import load_config
from node.local.errors import ExitCode, NodeError
from node.testnet.child import dishonest
from node.testnet.plan import CHEATER_KINDS
from protocol.types import Role

app = typer.Typer(add_completion=False)


@app.command("adversary")
def run_adversary(
    kind: Annotated[str, typer.Argument(help=f"What it does: {', '.join(CHEATER_KINDS)}.")],
    *,
    initial_peers: Annotated[
        list[str] | None, typer.Option(metavar="ADDR", help="Peer to join through.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the node keeps.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="IP", help="Address to accept connections on.")
    ] = None,
) -> None:
    """Join a run as a dishonest inference node."""
    try:
        make_engines = dishonest(kind)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.USAGE) from None
    flags = {
        "roles": [str(Role.INFERENCE)],
        "initial_peers": initial_peers,
        "data_dir": data_dir,
        "host": host,
    }
    raise typer.Exit(run_node(load_config(flags, os.environ), make_engines=make_engines))
