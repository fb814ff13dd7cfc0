"""Check that this machine can run a node, and print a remedy for each problem."""

import asyncio
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.cli.commands.context import print_json, print_rich
from node.cli.doctor import Finding, FindingLevel
from node.cli.options import Json
from node.founding.model import needs_of_run
from node.local.datadir import DataDir, load_identity
from node.local.errors import ExitCode, NodeError
from protocol.core.types import PeerId, Role
from protocol.run.manifest import RunManifest

if TYPE_CHECKING:
    from node.local.config import NodeConfig

app = typer.Typer(add_completion=False)

_STYLES = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.FAILURE: "red"}
_SIGNS = {FindingLevel.OK: "✓", FindingLevel.WARNING: "!", FindingLevel.FAILURE: "✗"}


@app.command()
def doctor(
    *,
    roles: options.Roles = None,
    initial_peers: options.InitialPeers = None,
    run: options.Run = None,
    config: options.Config = None,
    data_dir: options.DataDir = None,
    device: options.Device = None,
    host: options.Host = None,
    port: options.Port = None,
    public_ip: options.PublicIp = None,
    engine: options.Engine = None,
    engine_python: options.EnginePython = None,
    trainer_ranks: options.TrainerRanks = None,
    trainer_devices: options.TrainerDevices = None,
    no_engine: Annotated[
        bool, typer.Option("--no-engine", help="Skip the engine test, which takes half a minute.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that this machine can run a node, and print a remedy for each problem.

    Give the options that the node will be started with. With --run, memory and disk are compared
    with the needs of that run, and the engine test uses a model of its size. The exit code is 78
    when a node could not work here.
    """
    given = {
        "roles": roles or ["inference"],
        "initial_peers": initial_peers or None,
        "run": run,
        "data_dir": data_dir,
        "device": device,
        "trainer_ranks": trainer_ranks,
        "trainer_devices": trainer_devices,
        "engine": engine,
        "engine_python": engine_python,
        "host": host,
        "port": port,
        "public_ip": public_ip,
    }
    from node.local.config import load_config  # noqa: PLC0415 - pydantic; help does without

    node = load_config(given, os.environ, config)
    found, manifest = _look(node)
    if not no_engine and set(node.roles) != {Role.RELAY}:
        typer.echo("testing the engine …", err=True)
        too_large = any(one.level is FindingLevel.FAILURE for one in found)
        found.append(_try_engine(node, None if too_large else manifest))
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        _print(found)
    if any(finding.level is FindingLevel.FAILURE for finding in found):
        raise typer.Exit(ExitCode.CONFIG)


def _look(node: "NodeConfig") -> tuple[list[Finding], RunManifest | None]:
    """Return the findings of all checks but the engine's, and the run if it is known."""
    from node.cli.doctor.machine import (  # noqa: PLC0415 - slow
        check_clock,
        check_devices,
        check_disk,
        check_ranks,
    )
    from node.cli.doctor.network import check_p2pd, check_peers, check_reachable  # noqa: PLC0415 - same
    from node.cli.doctor.task import check_jail, check_scoring  # noqa: PLC0415 - same

    async def network() -> list[Finding]:
        return [
            await check_p2pd(node.host, node.port),
            check_reachable(node.port, node.public_ip),
            *await check_peers(node.initial_peers),
        ]

    found, manifest = _look_at_run(node)
    needs = None
    if manifest is not None:
        try:
            needs = needs_of_run(manifest)
        except NodeError as error:
            found.append(Finding("model", FindingLevel.FAILURE, error.message))
    has_ranks = Role.TRAINER in node.roles and node.training_devices != (node.device,)
    single = tuple(role for role in node.roles if not (has_ranks and role is Role.TRAINER))
    looked = [
        *found,
        check_clock(),
        *_look_at_daemon(DataDir(node.data_dir)),
        check_disk(node.data_dir, node.roles, needs),
        *check_devices(node.device, single, needs),
        *(check_ranks(node.training_devices, needs) if has_ranks else ()),
        check_jail(manifest),
        *check_scoring(node, manifest),
        *asyncio.run(network()),
    ]
    return looked, manifest


def _look_at_daemon(datadir: DataDir) -> list[Finding]:
    """Return the clock error that peers measured, if a daemon of this data directory runs."""
    from node.cli.api_client import fetch_status  # noqa: PLC0415 - pydantic; help does without

    try:
        clock = fetch_status(datadir).clock
    except NodeError:
        return []
    return [Finding("clock", FindingLevel.FAILURE, clock)] if clock else []


def _look_at_run(node: "NodeConfig") -> tuple[list[Finding], RunManifest | None]:
    """Return whether the run can be joined with these roles, and the run if it is known."""
    from node.local.run_pin import known_run  # noqa: PLC0415 - the protocol; help does without

    datadir = DataDir(node.data_dir)
    try:
        signed = known_run(datadir, node.run, node.run_id)
        if signed is None:
            unknown = "not known yet: the peers will offer it; --run RUN.toml checks it now"
            return [Finding("run", FindingLevel.OK, unknown)], None
    except NodeError as error:
        return [Finding("run", FindingLevel.FAILURE, error.message)], None
    manifest = signed.manifest
    found = [Finding("run", FindingLevel.OK, f"{manifest.name}, {manifest.run_id.hex()[:16]}…")]
    return found + _look_at_key(datadir, node, manifest), manifest


def _look_at_key(datadir: DataDir, node: "NodeConfig", manifest: RunManifest) -> list[Finding]:
    """Return a failure for each role that the run does not grant to this node's key."""
    try:
        peer = load_identity(node.identity_path or datadir.identity).peer_id
    except FileNotFoundError:
        peer = PeerId("")
    named = {Role.TRAINER: manifest.is_trainer}
    advice = "ask the run's creator, or use the data dir with a listed key"
    return [
        Finding("key", FindingLevel.FAILURE, f"the run does not list this key as a {role}", advice)
        for role in node.roles
        if role in named and not named[role](peer)
    ]


def _try_engine(node: "NodeConfig", manifest: RunManifest | None) -> Finding:
    """Test an engine with a model of the run's size, or a small one if no run is known."""
    from node.cli.doctor.engine import check_engine  # noqa: PLC0415 - only when asked
    from node.founding.recipes import recipe_path  # noqa: PLC0415 - the same

    if manifest is None:
        recipe = recipe_path("testnet")
        return asyncio.run(check_engine(node.device, recipe, node.engine, node.engine_python))
    import tomlkit  # noqa: PLC0415 - the same

    with tempfile.TemporaryDirectory(prefix="prime-node-doctor-") as folder:
        recipe = Path(folder, "recipe.toml")
        recipe.write_text(tomlkit.dumps(manifest.model_dump(exclude={"genesis"})))
        trying = check_engine(
            node.device, recipe, node.engine, node.engine_python, manifest.model.name
        )
        return asyncio.run(trying)


def _print(found: list[Finding]) -> None:
    from rich.table import Table  # noqa: PLC0415 - slow to import

    table = Table(box=None, show_header=False)
    for finding in found:
        style = _STYLES[finding.level]
        advice = f"[dim]{finding.advice}[/]" if finding.advice else ""
        lines = "\n".join(filter(None, (finding.found, advice)))
        table.add_row(f"[{style}]{_SIGNS[finding.level]}[/]", finding.what, lines)
    print_rich(table)
