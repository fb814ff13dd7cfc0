"""Propose thresholds from the measurements of a run's validators."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json
from node.founding.recalibration import Recalibration, recalibrated, samples
from node.founding.recipes import toploc_toml
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import pinned_run
from node.replication.message_log import stored_messages
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.core.types import RunId
from protocol.messages import (
    Certificate,
    MessageT,
    RolloutCommit,
    Signed,
    Verdict,
    envelope_kind,
    open_envelope,
)


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
    commits: list[Signed[RolloutCommit]] = []
    certificates: list[tuple[Signed[Certificate], list[Signed[Verdict]]]] = []
    try:
        envelopes = stored_messages(datadir.state)
    except ValueError as error:
        raise NodeError(f"cannot read {datadir.state}: {error}", ExitCode.CONFIG) from None
    for envelope in envelopes:
        kind = envelope_kind(envelope)
        if kind == RolloutCommit.kind:
            commits += _opened([envelope], RolloutCommit, manifest.run_id)
        elif kind == Certificate.kind:
            for signed in _opened([envelope], Certificate, manifest.run_id):
                verdicts = _opened(signed.message.verdicts, Verdict, manifest.run_id)
                certificates.append((signed, verdicts))
    try:
        found = recalibrated(manifest, samples(commits, certificates), margin)
    except ValueError as error:
        raise NodeError(f"no thresholds can be proposed: {error}", ExitCode.CONFIG) from None
    if as_json:
        print_json(asdict(found) | {"rules": found.rules.model_dump(mode="json")})
        return
    sys.stdout.write(_toml(found))


def _opened(
    envelopes: Iterable[bytes], kind: type[MessageT], run_id: RunId
) -> list[Signed[MessageT]]:
    opened = (open_envelope(one, kind, run_id, verify) for one in envelopes)
    return [one for one in opened if not isinstance(one, Fault)]


def _toml(found: Recalibration) -> str:
    rests = (
        f"# From {found.rollouts} rollouts ({found.tokens:,} tokens) of {found.workers} workers, "
        f"measured by {found.validators} validators.\n"
    )
    new = ", ".join(found.changed) or "nothing: all thresholds fit"
    return f"{rests}# Changed: {new}.\n\n{toploc_toml(found.rules)}"
