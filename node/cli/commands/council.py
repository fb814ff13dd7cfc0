"""Show the council that votes on pages, and the votes that are missing."""

from dataclasses import asdict

import typer

from node.cli.api_client import fetch_council
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.options import CommandDataDir, Json

app = typer.Typer(add_completion=False)


@app.command()
def council(ctx: typer.Context, *, data_dir: CommandDataDir = None, as_json: Json = False) -> None:
    """Show the council that votes on pages, the votes that are missing, and why.

    The council notarises one page an epoch; pages draw the committees that certify rollouts.
    """
    page = fetch_council(data_dir_of(ctx, data_dir))
    if as_json:
        print_json(asdict(page))
        return
    from node.cli.render.council import council_view  # noqa: PLC0415 - rich is slow to import

    print_rich(council_view(page))
