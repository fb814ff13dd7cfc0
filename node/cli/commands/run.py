"""Create a run, found the successor of one, or show the rules and needs of a run."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import completion
from node.cli.commands.context import background, data_dir_of, print_json, print_rich
from node.cli.commands.progress import progress_of
from node.cli.commands.recalibrate import recalibrate
from node.cli.commands.recipes import recipe, recipes
from node.cli.options import CommandDataDir, Json
from node.founding.calibration import MARGIN, MINUTES, CalibrationPlan
from node.founding.creation import CALIBRATION, MANIFEST, Creation, Members, TaskRows, staging
from node.founding.model import needs_of_run
from node.founding.needs import Needs
from node.founding.task import pinned_recipe
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from node.local.run_words import predecessor_text
from protocol.run.manifest import RunManifest

if TYPE_CHECKING:
    from node.founding.trial import Trial
    from protocol.replica.succession import ClaimFinding

app = typer.Typer(add_completion=False, no_args_is_help=True)

Model = Annotated[
    str, typer.Option(metavar="MODEL", help="Hugging Face directory, GGUF file, or hub id.")
]
RecipeName = Annotated[
    str,
    typer.Option(
        metavar="RECIPE",
        help="Rules of the run: a recipe name, or a TOML file.",
        autocompletion=completion.recipes,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="New directory for the run.")]
Dataset = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Rows of the task: parquet, JSON lines or csv."),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip unusable rows instead of failing.")
]
Trainers = Annotated[int, typer.Option(min=0, help="Trainers with a new key and data directory.")]
Validators = Annotated[
    int, typer.Option(min=0, help="Validators with a new key and data directory.")
]
TrainerKeys = Annotated[
    list[str] | None,
    typer.Option(metavar="PEER", help="Peer id of a trainer with an existing key; repeat."),
]
ValidatorKeys = Annotated[
    list[str] | None,
    typer.Option(metavar="PEER", help="Peer id of a validator with an existing key; repeat."),
]
CreatorKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Signing key; default a new one.")
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Measurements of honest engines; created if it does not exist."
    ),
]
Uncalibrated = Annotated[
    bool, typer.Option("--uncalibrated", help="Use the recipe's thresholds without calibration.")
]
Minutes = Annotated[float, typer.Option(min=0.0, help="Time limit of the calibration.")]
Margin = Annotated[float, typer.Option(min=1.0, help="Safety factor for machines not measured.")]
NoTrial = Annotated[
    bool, typer.Option("--no-trial", help="Skip the trial step (generate, verify, train).")
]
Device = Annotated[
    str,
    typer.Option(
        help="Device of calibration and trial: cpu, cuda …", autocompletion=completion.devices
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and show the run; compute and write nothing.")
]


@app.callback()
def run() -> None:
    """Create a run, found the successor of one, or show the rules and needs of a run."""


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
    """Create a run: check model and recipe, calibrate thresholds, make keys, sign the manifest.

    Calibration compares honest engines on the run's own model and prompts for some minutes;
    repeating the command resumes it. Then a trial generates rollouts with version 0, verifies them
    and trains one step. DIR gets run.toml, creator.key, the first policy and the files of the task.
    It also gets a data directory for each new trainer and validator (start them with --data-dir).
    For a member with an existing key give its peer id (prime-node id), and copy genesis.safetensors
    into the data directory of such a trainer.
    """
    if calibration is not None and uncalibrated:
        raise NodeError("--calibration and --uncalibrated exclude each other", ExitCode.USAGE)
    _require_new(out)
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
            "warning: the thresholds were not measured on this model: the fraction of its honest "
            "rollouts that they reject is unknown"
        )
    if not dry_run:
        _say_what_next(out, trainers, made.manifest.run_id.hex())


@app.command()
def succeed(
    ctx: typer.Context,
    *,
    out: Out,
    data_dir: CommandDataDir = None,
    trainers: Trainers = 1,
    validators: Validators = 3,
    trainer: TrainerKeys = None,
    validator: ValidatorKeys = None,
    creator_key: CreatorKey = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Versions to train; default those that the old run had left."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Do so although a page became final recently.")
    ] = False,
    no_trial: NoTrial = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Found the successor of a run whose council is gone, from the data directory of any node.

    Its version 0 is the newest version that a final page of the old run names. Rules, thresholds
    and files stay; keys and creator are new, and the optimiser begins afresh. The manifest names
    the old run, its newest final page, the version and the certified work. Members of the old run
    check this with prime-node run show RUN.toml --check DIR. Otherwise it is like run create.
    """
    from node.models.held import open_held_run  # noqa: PLC0415 - not for help
    from node.models.succession import inheritance, take_over  # noqa: PLC0415 - the same

    _require_new(out)
    held = open_held_run(data_dir_of(ctx, data_dir).root)
    inherited = inheritance(held, time.time(), steps=steps, force=force)
    members = Members(trainers, validators, trainer or (), validator or ())
    with staging(out) as directory, background() as thread:
        imported = take_over(held, inherited, directory)
        made = Creation.of(imported, directory, creator_key, members, inherited.predecessor)
        tried = None if no_trial or dry_run else made.attempt(device, thread, _say)
        if not dry_run:
            made.keep(out, None)
    if as_json:
        values = _values(made.manifest, made.needs, tried)
        warning = {"warning": inherited.warning} if inherited.warning else {}
        print_json({**values, **warning, "out": None if dry_run else str(out)})
        return
    _show(made.manifest, made.needs, tried)
    if inherited.warning:
        _say(f"warning: {inherited.warning}")
    typer.echo(f"\nIt succeeds {predecessor_text(inherited.predecessor)}.")
    if not dry_run:
        _say_what_next(out, trainers, made.manifest.run_id.hex())


@app.command()
def show(
    manifest: Annotated[Path, typer.Argument(metavar="RUN.toml", help="A signed manifest.")],
    *,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Data directory of a node of the run that this one succeeds: compare its pages.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rules of a run and the needs of its nodes."""
    signed = load_run(manifest)
    needs = needs_of_run(signed.manifest)
    findings = [] if check is None else _findings(signed.manifest, check)
    if as_json:
        checked = {} if check is None else {"check": [one._asdict() for one in findings]}
        print_json({**_values(signed.manifest, needs), **checked})
    else:
        _show(signed.manifest, needs)
        for one in findings:
            typer.echo(f"{_HOLDS[one.holds]:<13} {one.subject}: {one.detail}")
    wrong = [one.subject for one in findings if one.holds is False]
    if wrong:
        raise NodeError(
            f"{manifest} contradicts the pages in {check}: {', '.join(wrong)}", ExitCode.CONFIG
        )


app.command()(recalibrate)
app.command()(recipes)
app.command()(recipe)


_HOLDS = {True: "confirmed", False: "contradicted", None: "unknown here"}


def _findings(successor: RunManifest, data_dir: Path) -> "list[ClaimFinding]":
    """Compare what a manifest says of its predecessor with the pages in a data directory."""
    from node.models.held import open_held_run  # noqa: PLC0415 - not for help
    from protocol.replica.succession import check_succession  # noqa: PLC0415 - the same

    return check_succession(successor, open_held_run(data_dir).replica)


def _require_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError(f"{out} is not empty; a run needs a new directory", ExitCode.USAGE)


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
