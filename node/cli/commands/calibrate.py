"""Measure what a recipe must tolerate on this machine, and which lies it then catches."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node import completion
from node.cli.commands.context import print_json, print_rich
from node.cli.options import Json
from node.founding.model import require_model
from node.founding.recipes import read_recipe
from node.local.errors import ExitCode, NodeError

if TYPE_CHECKING:
    from roles.engines.calibration.calibrate import Calibration
    from roles.engines.calibration.power import Power

app = typer.Typer(add_completion=False)

RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="Precision, task, temperature.",
        autocompletion=completion.recipes,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …", autocompletion=completion.devices)]


@app.command()
def calibrate(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL…", help="Hugging Face directories: the first policy, a later one …"
        ),
    ],
    recipe: RecipeName,
    *,
    device: Device = "cpu",
    sequences: Annotated[int, typer.Option(min=2, help="Sequences of each pair of engines.")] = 64,
    tokens_max: Annotated[
        int, typer.Option("--tokens", min=2, help="Longest sequence; the recipe's if shorter.")
    ] = 256,
    margin: Annotated[
        float, typer.Option(min=1.0, help="Room for machines that are not measured.")
    ] = 1.5,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the distributions.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what a recipe must tolerate on this machine, and which lies it then catches.

    Honest engines of several batch sizes and attention kernels are recomputed by each other, then
    the lies. Printed are how many tokens each lie takes until it is caught, and the [toploc]
    section that the recipe should have.
    """
    known = read_recipe(recipe)
    try:
        for model in models:
            require_model(model)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.USAGE) from None
    from roles.engines.calibration.calibrate import (  # noqa: PLC0415 - torch takes seconds
        as_toml,
        calibrate,
    )

    def say(line: str) -> None:
        typer.echo(line, err=True)

    try:
        found = asyncio.run(
            calibrate(
                known,
                models,
                device=device,
                sequences=sequences,
                tokens_max=min(tokens_max, known.sampling.tokens_max),
                margin=margin,
                say=say,
            )
        )
    except ValueError as error:
        raise NodeError(f"this cannot be calibrated with: {error}", ExitCode.CONFIG) from None
    if picture is not None:
        from roles.engines.calibration.picture import draw  # noqa: PLC0415 - only when asked

        picture.write_text(draw(found))
    if as_json:
        print_json(_values(found))
        return
    _print_table(found)
    sys.stdout.write("\n" + as_toml(found.rules))


def _values(found: "Calibration") -> dict[str, object]:
    return {
        "toploc": found.rules.model_dump(mode="json"),
        "honest": [item.summary() for item in found.honest],
        "lies": [item.summary() for item in found.caught],
    }


def _print_table(found: "Calibration") -> None:
    from rich.table import Table  # noqa: PLC0415 - slow to import

    honest = Table("honest pair", "tokens", "rejected rollouts", box=None, header_style="bold")
    for item in found.honest:
        honest.add_row(item.name, f"{item.tokens:,}", f"{100 * max(item.rejected):g} %")
    caught = Table(
        "lie", "tokens until 50 %", "until 99 %", "mostly by", box=None, header_style="bold"
    )
    for item in found.caught:
        caught.add_row(item.name, *_until(item, (0.5, 0.99)), item.reasons[-1].replace("_", " "))
    print_rich(honest)
    sys.stdout.write("\n")
    print_rich(caught)


def _until(item: "Power", shares: Sequence[float]) -> list[str]:
    found = [item.tokens_until(share) for share in shares]
    return ["not caught" if tokens is None else f"{tokens:,}" for tokens in found]
