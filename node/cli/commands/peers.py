"""Show the swarm's members and their gossip scores."""

import typer

from node.cli.api_client import fetch_status
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.options import CommandDataDir, Json

app = typer.Typer(add_completion=False)


@app.command()
def peers(ctx: typer.Context, *, data_dir: CommandDataDir = None, as_json: Json = False) -> None:
    """Show the swarm's members known to the running node, and their gossip scores."""
    snapshot = fetch_status(data_dir_of(ctx, data_dir))
    if as_json:
        print_json(snapshot.peers_json())
        return
    from node.cli.render.status import peers_view  # noqa: PLC0415 - rich is slow to import

    print_rich(peers_view(snapshot))
