"""Show the contributors of the run by credit, and what this node contributed."""

from dataclasses import asdict

import typer

from node.cli.api_client import fetch_contributors
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.options import CommandDataDir, Json

app = typer.Typer(add_completion=False)


@app.command()
def contributors(
    ctx: typer.Context, *, data_dir: CommandDataDir = None, as_json: Json = False
) -> None:
    """Show the contributors of the run by credit, and what this node contributed.

    Final pages count all work, so every node shows the same figures.
    """
    page = fetch_contributors(data_dir_of(ctx, data_dir))
    if as_json:
        print_json(asdict(page))
        return
    from node.cli.render.contributors import contributors_view  # noqa: PLC0415 - rich is slow

    print_rich(contributors_view(page))
