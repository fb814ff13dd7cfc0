"""Measure the thresholds of a recipe on this machine, and the cheats that they catch."""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import completion
from node.cli.commands.context import background, print_json, print_rich
from node.cli.commands.progress import progress_of
from node.cli.options import Json
from node.founding.calibration import (
    ANSWER_TOKENS,
    MARGIN,
    MINUTES,
    CalibrationPlan,
    calibrate_run,
)
from node.founding.creation import TaskRows, import_run
from node.founding.found import draft
from node.founding.recipes import toploc_toml
from node.founding.task import pinned_recipe
from node.local.errors import ExitCode, NodeError
from protocol.run.recipe import Recipe

if TYPE_CHECKING:
    from roles.engines.calibration.calibrate import Calibration
    from roles.engines.calibration.power import Power

app = typer.Typer(add_completion=False)

RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="Recipe name, or a TOML file.",
        autocompletion=completion.recipes,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …", autocompletion=completion.devices)]


@app.command()
def calibrate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Hugging Face directory, GGUF file, or hub id."),
    ],
    recipe: RecipeName,
    *,
    dataset: Annotated[Path | None, typer.Option(metavar="FILE", help="Rows of the task.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the measurements, for run create --calibration."),
    ] = None,
    device: Device = "cpu",
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Time limit of the honest pairs.")
    ] = MINUTES,
    tokens_max: Annotated[
        int, typer.Option("--tokens", min=2, help="Token limit of an answer, at most the recipe's.")
    ] = ANSWER_TOKENS,
    margin: Annotated[
        float, typer.Option(min=1.0, help="Safety factor for machines not measured.")
    ] = MARGIN,
    no_lies: Annotated[
        bool, typer.Option("--no-lies", help="Measure honest engines only.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the distributions.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the thresholds of a recipe on this machine, and the cheats that they catch.

    Honest engines with several batch sizes and attention kernels recompute each other's rollouts,
    then those of cheating engines, on prompts of the recipe's task. The command prints the number
    of tokens until each cheat is caught, and a toploc section for the recipe. The same --out
    resumes an interrupted calibration.
    """
    rules = pinned_recipe(recipe)
    with tempfile.TemporaryDirectory(prefix="prime-node-calibrate-") as folder:
        path = out or Path(folder, "calibration.jsonl")
        plan = CalibrationPlan(path, device, minutes, tokens_max, margin)
        try:
            found = _measure(model, dataset, rules, Path(folder), plan, lies=not no_lies)
        except ValueError as error:
            raise NodeError(f"cannot calibrate: {error}", ExitCode.CONFIG) from None
    if picture is not None:
        from roles.engines.calibration.picture import draw  # noqa: PLC0415 - only when asked

        picture.write_text(draw(found))
    if as_json:
        print_json(_values(found))
        return
    _print_table(found)
    sys.stdout.write("\n" + toploc_toml(found.rules))


def _measure(
    model: str,
    dataset: Path | None,
    recipe: Recipe,
    folder: Path,
    plan: CalibrationPlan,
    *,
    lies: bool,
) -> "Calibration":
    """Measure with a temporary, unsigned manifest; raises ``ValueError``."""
    policy, task = folder / "genesis.safetensors", folder / "task"
    made = import_run(model, TaskRows(dataset), recipe, policy, task, _say)
    manifest = draft(made.recipe, made.policy, made.task.files, int(time.time()))
    with background() as thread, progress_of("calibrating", "tokens") as progress:
        return calibrate_run(manifest, policy, task, plan, thread, progress, _say if lies else None)


def _say(line: str) -> None:
    typer.echo(line, err=True)


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
    print_rich(honest)
    if not found.caught:
        return
    caught = Table(
        "cheat", "tokens until 50 %", "until 99 %", "main reason", box=None, header_style="bold"
    )
    for item in found.caught:
        caught.add_row(item.name, *_until(item, (0.5, 0.99)), item.reasons[-1].replace("_", " "))
    sys.stdout.write("\n")
    print_rich(caught)


def _until(item: "Power", shares: Sequence[float]) -> list[str]:
    found = [item.tokens_until(share) for share in shares]
    return ["not caught" if tokens is None else f"{tokens:,}" for tokens in found]
