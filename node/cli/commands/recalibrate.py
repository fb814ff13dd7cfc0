"""Propose thresholds from the measurements of a run's validators."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json
from node.founding.recalibration import Recalibration, recalibrated, stored_samples
from node.founding.recipes import toploc_toml
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import pinned_run


def recalibrate(
    ctx: typer.Context,
    *,
    data_dir: CommandDataDir = None,
    margin: Annotated[
        float, typer.Option(min=1.0, max=4.0, help="Safety factor for machines not measured.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Propose thresholds, the toploc section of a recipe, from measurements of a run's validators.

    They are read from the data directory of a node, also while it runs. The majority of workers
    counts as honest: a run in which most workers cheat alike looks like one with wrong thresholds.
    A manifest never changes, so the section is for the recipe of the next run. Compare it with a
    calibration on a machine that you trust.
    """
    datadir = data_dir_of(ctx, data_dir)
    run = pinned_run(datadir)
    if run is None:
        raise NodeError(f"{datadir.root} belongs to no run; give --data-dir", ExitCode.USAGE)
    manifest = run.manifest
    try:
        measured = stored_samples(manifest.run_id, datadir.state)
    except ValueError as error:
        raise NodeError(f"cannot read {datadir.state}: {error}", ExitCode.CONFIG) from None
    try:
        found = recalibrated(manifest, measured, margin)
    except ValueError as error:
        raise NodeError(f"no thresholds can be proposed: {error}", ExitCode.CONFIG) from None
    if as_json:
        print_json(asdict(found) | {"rules": found.rules.model_dump(mode="json")})
        return
    sys.stdout.write(_toml(found))


def _toml(found: Recalibration) -> str:
    rests = (
        f"# From {found.rollouts} rollouts ({found.tokens:,} tokens) of {found.workers} workers, "
        f"measured by {found.validators} validators.\n"
    )
    new = ", ".join(found.changed) or "nothing: all thresholds fit"
    return f"{rests}# Changed: {new}.\n\n{toploc_toml(found.rules)}"
