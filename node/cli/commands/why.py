"""Explain why the node is not ready, and why rollouts were rejected or expired."""

from dataclasses import asdict
from typing import Annotated

import typer

from node.cli.api_client import fetch_why
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.options import CommandDataDir, Json

app = typer.Typer(add_completion=False)

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="[COMMIT|REASON|TRAINER]",
        help="Prefix of a commit's digest, a reason, or a trainer's peer id.",
    ),
]


@app.command()
def why(
    ctx: typer.Context,
    which: Which = None,
    *,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Explain why the node is not ready, and why its rollouts were rejected or expired.

    Each line names the signed verdicts that prove it.
    """
    answer = fetch_why(data_dir_of(ctx, data_dir))
    if which is not None:
        answer = answer.about(which)
    if as_json:
        print_json(asdict(answer))
        return
    from node.cli.render.status import why_view  # noqa: PLC0415 - rich is slow to import

    print_rich(why_view(answer, which))
