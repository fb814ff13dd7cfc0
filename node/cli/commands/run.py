"""Found a run from a model directory and a recipe, or show what a run is and asks for."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from node import completion
from node.cli.commands.context import print_json, print_rich
from node.cli.commands.recalibrate import recalibrate
from node.cli.options import Json
from node.founding.found import create_member, found, give, manifest_toml
from node.founding.model import import_model, needs_of_run
from node.founding.needs import Needs
from node.founding.recipes import read_recipe
from node.founding.task import give_task, import_task, pin_task
from node.local.datadir import DataDir, load_or_create_identity, write_atomically
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from protocol.manifest import RunManifest, SignedManifest
from protocol.recipe import Recipe
from protocol.types import PeerId

app = typer.Typer(add_completion=False, no_args_is_help=True)

MANIFEST = "run.toml"


@app.callback()
def run() -> None:
    """Found a run from a model directory and a recipe, or show what a run is and asks for."""


@app.command()
def create(
    *,
    model: Annotated[Path, typer.Option(metavar="DIR", help="Hugging Face directory.")],
    recipe: Annotated[
        str,
        typer.Option(
            metavar="RECIPE",
            help="The rules of the run: a name, or a TOML file.",
            autocompletion=completion.recipes,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the run.")],
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows of the task, in parquet.")
    ] = None,
    trainers: Annotated[
        int, typer.Option(min=0, help="Trainers that get a new key and a data directory.")
    ] = 1,
    validators: Annotated[int, typer.Option(min=0, help="Validators that get one.")] = 3,
    trainer: Annotated[
        list[str] | None, typer.Option(metavar="PEER", help="Trainer with a key of its own.")
    ] = None,
    validator: Annotated[
        list[str] | None, typer.Option(metavar="PEER", help="Validator with a key of its own.")
    ] = None,
    creator_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key that signs; a new one if not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show everything, keep nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Found a run: check model and recipe, make keys, sign the manifest, and show it.

    DIR gets run.toml, creator.key, the first policy, the files of the task, and a data directory
    for each new trainer and validator, to be started with --data-dir. Peers of their own tell their
    id (prime-node id); such a trainer gets genesis.safetensors into its data directory from you.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError(f"{out} is not empty; a run needs a new directory", ExitCode.USAGE)
    rules = read_recipe(recipe)
    typer.echo(f"reading {model}", err=True)
    with _staging(out) as staging:
        signed, needs = _found(
            model,
            dataset,
            rules,
            staging,
            creator_key or staging / "creator.key",
            [*_members(staging, "trainer", trainers), *map(PeerId, trainer or ())],
            [*_members(staging, "validator", validators), *map(PeerId, validator or ())],
        )
        if not dry_run:
            _keep(staging, out)
    if as_json:
        print_json({**_values(signed.manifest, needs), "out": None if dry_run else str(out)})
        return
    _show(signed.manifest, needs)
    if not dry_run:
        _say_what_next(out, trainers, signed.manifest.run_id.hex())


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


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Yield a directory beside ``out`` that is gone afterwards, whatever happens."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as directory:
            yield Path(directory)
    except OSError as error:
        raise NodeError(f"cannot write {out}: {error.strerror}", ExitCode.LOCKED) from None


def _members(staging: Path, role: str, count: int) -> list[PeerId]:
    return [create_member(staging / f"{role}-{number}") for number in range(1, count + 1)]


def _found(
    directory: Path,
    dataset: Path | None,
    recipe: Recipe,
    staging: Path,
    creator_key: Path,
    trainers: list[PeerId],
    validators: list[PeerId],
) -> tuple[SignedManifest, Needs]:
    """Write policy, manifest and keys to ``staging``; raises ``NodeError`` for what cannot be."""
    policy, task = staging / "genesis.safetensors", staging / "task"
    try:
        section, digest = import_model(directory, recipe, policy)
        rules = pin_task(recipe.model_copy(update={"model": section}))
        files = import_task(directory, dataset, rules, task)
        creator = load_or_create_identity(creator_key)
        signed = found(rules, digest.hex(), files, creator, trainers, validators)
    except ValueError as error:  # of the model, the task or the members; a ManifestError is one
        raise NodeError(str(error), ExitCode.CONFIG) from None
    write_atomically(staging / MANIFEST, manifest_toml(signed).encode())
    for trainer in sorted(staging.glob("trainer-*")):
        give(policy, DataDir(trainer).genesis)
    for member in (*staging.glob("trainer-*"), *staging.glob("validator-*")):
        give_task(task, DataDir(member).task)
    return signed, needs_of_run(signed.manifest)


def _keep(staging: Path, out: Path) -> None:
    """Move everything to ``out``, the manifest last: with it the run is whole."""
    out.mkdir(mode=0o700, exist_ok=True)
    names = sorted(path.name for path in staging.iterdir() if path.name != MANIFEST)
    for name in (*names, MANIFEST):
        (staging / name).rename(out / name)


def _values(manifest: RunManifest, needs: Needs) -> dict[str, object]:
    values = manifest.model_dump(mode="json")
    return {"run_id": manifest.run_id.hex(), "manifest": values, "needs": asdict(needs)}


def _show(manifest: RunManifest, needs: Needs) -> None:
    from node.founding.summary import describe  # noqa: PLC0415 - rich is slow to import

    print_rich(describe(manifest, needs))


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
