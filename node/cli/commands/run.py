"""Found a run from a model directory and a recipe, or show what a run is and asks for."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import completion
from node.cli.commands.context import background, print_json, print_rich
from node.cli.commands.progress import progress_of
from node.cli.commands.recalibrate import recalibrate
from node.cli.commands.recipes import recipe, recipes
from node.cli.options import Json
from node.founding.calibration import MARGIN, MINUTES, CalibrationPlan
from node.founding.creation import CALIBRATION, MANIFEST, Creation, Members, TaskRows, staging
from node.founding.model import needs_of_run
from node.founding.needs import Needs
from node.founding.task import pinned_recipe
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from protocol.run.manifest import RunManifest

if TYPE_CHECKING:
    from node.founding.trial import Trial

app = typer.Typer(add_completion=False, no_args_is_help=True)

Model = Annotated[
    str, typer.Option(metavar="MODEL", help="Hugging Face directory, GGUF file, or hub id.")
]
RecipeName = Annotated[
    str,
    typer.Option(
        metavar="RECIPE",
        help="The rules of the run: a name, or a TOML file.",
        autocompletion=completion.recipes,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="New directory for the run.")]
Dataset = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Rows of the task: parquet, JSON lines or csv."),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used.")
]
Trainers = Annotated[
    int, typer.Option(min=0, help="Trainers that get a new key and a data directory.")
]
Validators = Annotated[int, typer.Option(min=0, help="Validators that get one.")]
TrainerKeys = Annotated[
    list[str] | None, typer.Option(metavar="PEER", help="Trainer with a key of its own.")
]
ValidatorKeys = Annotated[
    list[str] | None, typer.Option(metavar="PEER", help="Validator with a key of its own.")
]
CreatorKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Key that signs; a new one if not given.")
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Measured differences of honest engines; made where it is not."
    ),
]
Uncalibrated = Annotated[
    bool, typer.Option("--uncalibrated", help="Take the recipe's thresholds, of whatever model.")
]
Minutes = Annotated[float, typer.Option(min=0.0, help="Longest time that the calibration takes.")]
Margin = Annotated[float, typer.Option(min=1.0, help="Room for machines that are not measured.")]
NoTrial = Annotated[
    bool, typer.Option("--no-trial", help="Generate, judge and learn nothing to try the run.")
]
Device = Annotated[
    str, typer.Option(help="Computes both: cpu, cuda …", autocompletion=completion.devices)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and show everything, compute and keep nothing.")
]


@app.callback()
def run() -> None:
    """Found a run from a model directory and a recipe, or show what a run is and asks for."""


@app.command()
def create(
    *,
    model: Model,
    recipe: RecipeName,
    out: Out,
    dataset: Dataset = None,
    skip_bad_rows: SkipBadRows = False,
    trainers: Trainers = 1,
    validators: Validators = 3,
    trainer: TrainerKeys = None,
    validator: ValidatorKeys = None,
    creator_key: CreatorKey = None,
    calibration: Calibration = None,
    uncalibrated: Uncalibrated = False,
    minutes: Minutes = MINUTES,
    margin: Margin = MARGIN,
    no_trial: NoTrial = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Found a run: check model and recipe, measure its thresholds, make keys, sign the manifest.

    Honest engines are compared on the run's own model and prompts for some minutes: an interrupted
    calibration goes on when the command is repeated. Then the run is tried: version 0 answers, its
    rollouts are judged, and a step is taken. DIR gets run.toml, creator.key, the first policy, the
    files of the task, and a data directory for each new trainer and validator, to be started with
    --data-dir. Peers of their own tell their id (prime-node id); such a trainer gets
    genesis.safetensors into its data directory from you.
    """
    if calibration is not None and uncalibrated:
        raise NodeError("--calibration and --uncalibrated exclude each other", ExitCode.USAGE)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError(f"{out} is not empty; a run needs a new directory", ExitCode.USAGE)
    rules = pinned_recipe(recipe)
    members = Members(trainers, validators, trainer or (), validator or ())
    _say(f"reading {model}")
    with staging(out) as directory, background() as thread:
        rows = TaskRows(dataset, skip_bad_rows)
        made = Creation.begin(model, rows, rules, directory, creator_key, members, _say)
        measured_at = calibration or out.with_name(f"{out.name}.{CALIBRATION}")
        if not (uncalibrated or dry_run):
            brought = calibration is not None and calibration.exists()
            plan = CalibrationPlan(measured_at, device, 0.0 if brought else minutes, margin=margin)
            with progress_of("calibrating", "tokens") as progress:
                made.calibrate(plan, thread, progress)
        tried = None if no_trial or dry_run else made.attempt(device, thread, _say)
        if not dry_run:
            made.keep(out, measured_at if calibration is None else None)
    if as_json:
        values = _values(made.manifest, made.needs, tried)
        found = None if made.dataset is None else asdict(made.dataset)
        print_json({**values, "dataset": found, "out": None if dry_run else str(out)})
        return
    _show(made.manifest, made.needs, tried)
    if uncalibrated:
        _say(
            "warning: the thresholds were not measured on this model: how many of its honest "
            "rollouts they reject is not known"
        )
    if not dry_run:
        _say_what_next(out, trainers, made.manifest.run_id.hex())


@app.command()
def show(
    manifest: Annotated[Path, typer.Argument(metavar="RUN.toml", help="A signed manifest.")],
    *,
    as_json: Json = False,
) -> None:
    """Show what a run is and what it asks of those who join."""
    signed = load_run(manifest)
    needs = needs_of_run(signed.manifest)
    if as_json:
        print_json(_values(signed.manifest, needs))
    else:
        _show(signed.manifest, needs)


app.command()(recalibrate)
app.command()(recipes)
app.command()(recipe)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _values(manifest: RunManifest, needs: Needs, trial: "Trial | None" = None) -> dict[str, object]:
    from node.founding.summary import warnings_of  # noqa: PLC0415 - rich is slow to import

    values: dict[str, object] = {
        "run_id": manifest.run_id.hex(),
        "manifest": manifest.model_dump(mode="json"),
        "needs": asdict(needs),
    }
    if trial is None:
        return values
    warnings = [*warnings_of(manifest, needs, trial)]
    return {**values, "trial": asdict(trial), "warnings": warnings}


def _show(manifest: RunManifest, needs: Needs, trial: "Trial | None" = None) -> None:
    from node.founding.summary import (  # noqa: PLC0415 - rich is slow to import
        describe,
        trial_words,
        warnings_of,
    )

    print_rich(describe(manifest, needs, trial))
    if trial is not None:
        for line in trial_words(manifest, needs, trial):
            typer.echo(line)
        for warning in warnings_of(manifest, needs, trial):
            _say(f"warning: {warning}")


def _say_what_next(out: Path, trainers: int, run_id: str) -> None:
    typer.echo(f"\nThe run is in {out}. Start a trainer where others can reach it, then the rest:")
    directory = out / "trainer-1" if trainers else "DIR"
    typer.echo(
        f"  prime-node --role trainer --new-swarm --run {out / MANIFEST} --data-dir {directory} "
        "--port 31337 --public-ip IP"
    )
    joins = f"--initial-peers ADDR --run-id {run_id}"
    typer.echo(f"  prime-node --role validator {joins} --data-dir VALIDATOR")
    typer.echo(f"  prime-node --role inference {joins}")
