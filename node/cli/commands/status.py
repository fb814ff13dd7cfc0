"""Show the state of the running node and its view of the swarm."""

import time

import typer

from node.cli.api_client import fetch_status
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.options import CommandDataDir, Json

app = typer.Typer(add_completion=False)


@app.command()
def status(ctx: typer.Context, *, data_dir: CommandDataDir = None, as_json: Json = False) -> None:
    """Show the state of the running node and its view of the swarm."""
    snapshot = fetch_status(data_dir_of(ctx, data_dir))
    if as_json:
        print_json(snapshot.to_json())
        return
    from node.cli.render.status import status_view  # noqa: PLC0415 - rich is slow to import

    print_rich(status_view(snapshot, time.time()))
