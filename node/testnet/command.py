"""Run a whole swarm on this machine, with a live view."""

import asyncio
import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

import typer

from node.cli import completion
from node.local.datadir import DataDir, locked
from node.local.errors import NodeError
from node.local.units import parse_rate
from node.testnet import launcher
from node.testnet.plan import MINUTES_DEFAULT, RECIPE_DEFAULT, Options, SwarmLayout
from protocol.core.types import Role
from roles.engines.factory import EngineName

app = typer.Typer(add_completion=False)

SWARM_FAILED = 1

SWARM = "swarm"
"""Subdirectory of a created run for the other nodes, the logs and the report."""

Cheaters = Annotated[
    int, typer.Option(min=0, help="Dishonest inference nodes, with different behaviours.")
]
LazyValidators = Annotated[
    int, typer.Option(min=0, help="Additional validators that do not check.")
]
RecipeName = Annotated[
    str,
    typer.Option(
        help="Rules of the run: a recipe name such as tiny-qwen3-bpe, or a TOML file.",
        autocompletion=completion.recipes,
    ),
]
Environment = Annotated[
    str,
    typer.Option(
        help="Task, for example arithmetic or sorting.", autocompletion=completion.environments
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="Engine of the inference nodes: builtin or vllm.",
        autocompletion=completion.values_of("engine"),
    ),
]
LogTo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Training step logs: jsonl, tensorboard, wandb; implies --keep.",
        autocompletion=completion.step_logs,
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Policy versions to train; default recipe: 60.")
]
FoundedRun = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Directory of a created run, with its trainers and validators."
    ),
]
DataDirectory = Annotated[
    Path | None, typer.Option(help="New directory for all files; default a temporary one.")
]
EnginePython = Annotated[
    Path | None, typer.Option(help="Python of the engine processes; default this one.")
]
Forever = Annotated[
    bool, typer.Option("--forever", help="Run until Ctrl-C, so that other nodes can join.")
]
Diloco = Annotated[
    bool, typer.Option("--diloco", help="All trainers train at the same time (DiLoCo).")
]
TrainerRanks = Annotated[
    str | None,
    typer.Option(metavar="N", help="Processes per trainer that train together; default 1."),
]
TrainerDevices = Annotated[
    str | None,
    typer.Option(metavar="GPUS", help="GPUs of each trainer: 0-7, or 0,2; default auto."),
]
UploadLimit = Annotated[
    str | None, typer.Option(help="Upload limit per node, for example 2MB/s, to slow downloads.")
]


@app.command("testnet")
def run_testnet(
    *,
    steps: Steps = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Time limit in minutes.")
    ] = MINUTES_DEFAULT,
    forever: Forever = False,
    inference: Annotated[int, typer.Option(min=1, help="Inference nodes.")] = 3,
    validators: Annotated[int, typer.Option(min=2, help="Validator nodes.")] = 3,
    trainers: Annotated[int, typer.Option(min=1, help="Trainer nodes; one leads.")] = 1,
    diloco: Diloco = False,
    relays: Annotated[int, typer.Option(min=1, help="Relay nodes.")] = 1,
    cheaters: Cheaters = 0,
    lazy_validators: LazyValidators = 0,
    recipe: RecipeName = RECIPE_DEFAULT,
    run: FoundedRun = None,
    environment: Environment = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first policy.")] = 0,
    data_dir: DataDirectory = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep all files, including the nodes' directories.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    view: Annotated[bool, typer.Option(help="Redraw a live view on a terminal.")] = True,
    engine: Engine = "builtin",
    engine_python: EnginePython = None,
    upload_limit: UploadLimit = None,
    trainer_ranks: TrainerRanks = None,
    trainer_devices: TrainerDevices = None,
    log_to: LogTo = None,
    svg: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a whole swarm on this machine, with a live view.

    With --run it is the swarm of a run made by prime-node run create. Repeating the command resumes
    the run, because all files stay in RUN.
    """
    logs, own = _step_logs(log_to), _trainer(trainer_ranks, trainer_devices)
    founded = None if run is None else _founded(run, recipe, environment)
    directory = _directory(data_dir, founded)
    layout = SwarmLayout(directory, founded)
    # Start the imports of the nodes first, because they take seconds.
    launcher.start_server(layout.log("forkserver"))
    options = Options(
        directory=directory,
        relays=relays,
        trainers=trainers if founded is None else _count(founded, Role.TRAINER),
        diloco=diloco and _several(trainers, founded),
        validators=validators if founded is None else _count(founded, Role.VALIDATOR),
        inference=inference,
        cheaters=cheaters,
        lazy_validators=lazy_validators,
        steps=steps,
        minutes=math.inf if forever else minutes,
        recipe=recipe,
        run=founded,
        environment=_environment(environment),
        seed=seed,
        engine=_engine(engine),
        engine_python=engine_python,
        upload_bytes_per_second=_rate(upload_limit),
        trainer=own,
        log_to=logs,
    )
    keep = keep or founded is not None or bool(logs)
    with _cleaned_up(layout, keep=keep, temporary=data_dir is None) as kept:
        show = Showing(report_stays=kept, nodes_stay=keep, as_json=as_json, view=view, svg=svg)
        if asyncio.run(_run(options, show)):
            raise typer.Exit(SWARM_FAILED)


@contextlib.contextmanager
def _cleaned_up(layout: SwarmLayout, *, keep: bool, temporary: bool) -> Iterator[bool]:
    """Yield whether the report is kept, and remove all files not to be kept at the end.

    A failed swarm keeps all files. A guest's data directory stays while the guest still runs.
    """
    failed = False
    try:
        yield keep or not temporary
    except typer.Exit:
        failed = True
        raise
    finally:
        if not (keep or failed):
            _clean_up(layout, temporary=temporary)


def _clean_up(layout: SwarmLayout, *, temporary: bool) -> None:
    """Remove the nodes' files, and all but the trained model of a ``temporary`` directory."""
    if temporary:
        for path in layout.directory.iterdir():
            if path != layout.trained:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with contextlib.suppress(OSError):  # not empty: it holds the model
            layout.directory.rmdir()
    else:
        shutil.rmtree(layout.nodes, ignore_errors=True)
    if layout.guest.exists():
        with contextlib.suppress(NodeError), locked(DataDir(layout.guest)):
            shutil.rmtree(layout.guest, ignore_errors=True)


def _directory(data_dir: Path | None, founded: Path | None) -> Path:
    if founded is not None:
        return (data_dir or founded / SWARM).absolute()
    if data_dir is None:
        return Path(tempfile.mkdtemp(prefix="prime-node-testnet-"))
    try:
        directory = data_dir.expanduser().absolute()
    except RuntimeError:
        raise typer.BadParameter(f"{data_dir}: no such home", param_hint="--data-dir") from None
    if directory.exists() and any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty; a testnet needs a new directory")
    return directory


def _founded(run: Path, recipe: str, environment: str) -> Path:
    """Return the directory of a created run; raises ``BadParameter`` for any other directory."""
    if recipe != RECIPE_DEFAULT or environment:
        raise typer.BadParameter("a created run has its recipe and task", param_hint="--run")
    directory = (run.parent if run.name == "run.toml" else run).absolute()
    if not (directory / "run.toml").is_file():
        raise typer.BadParameter(
            f"{directory} has no run.toml; prime-node run create makes one", param_hint="--run"
        )
    for role in (Role.TRAINER, Role.VALIDATOR):
        if not _count(directory, role):
            raise typer.BadParameter(
                f"{directory} has no data directory of a {role}; start its nodes separately",
                param_hint="--run",
            )
    return directory


def _several(trainers: int, founded: Path | None) -> bool:
    """Return True for a new run of several trainers; raises ``BadParameter`` for any other."""
    if founded is not None or trainers < 2:
        reason = "needs --trainers 2 or more, and no --run, whose recipe decides"
        raise typer.BadParameter(reason, param_hint="--diloco")
    return True


def _count(run: Path, role: Role) -> int:
    """Return the number of data directories of a role in a created run."""
    return sum((path / "identity.key").exists() for path in run.glob(f"{role}-*"))


def _engine(name: str) -> EngineName:
    for known in get_args(EngineName):
        if known == name:
            return known  # type: ignore[no-any-return]
    raise typer.BadParameter(f"{name!r} is not one", param_hint="--engine")


def _rate(text: str | None) -> int | None:
    try:
        return None if text is None else parse_rate(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--upload-limit") from None


def _trainer(ranks: str | None, devices: str | None) -> dict[str, str]:
    """Return the options of the trainers; raises ``NodeError`` as a trainer would."""
    from node.local.config import load_config  # noqa: PLC0415 - pydantic; help does without

    given = {"trainer_ranks": ranks, "trainer_devices": devices}
    own = {key: value for key, value in given.items() if value is not None}
    if own:  # an empty file: the nodes of a testnet read none
        node = {"roles": [str(Role.TRAINER)], "data_dir": Path()}
        load_config(node | own, {}, Path(os.devnull))
    return own


def _step_logs(names: list[str] | None) -> tuple[str, ...]:
    from node.api.step_logs.base import require_libraries  # noqa: PLC0415 - the same
    from node.local.config import read_step_logs  # noqa: PLC0415 - pydantic; help does without

    try:
        logs = read_step_logs(names or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--log-to") from None
    require_libraries(logs)
    return logs


def _environment(name: str) -> str:
    from roles.environments.base import environment  # noqa: PLC0415 - only when the command runs

    try:
        return environment(name).name if name else ""
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--environment") from None


class Showing(NamedTuple):
    """Output options of a testnet, and the files to keep."""

    report_stays: bool
    nodes_stay: bool
    as_json: bool
    view: bool
    svg: Path | None


async def _run(options: Options, showing: Showing) -> bool:
    """Run the testnet with its display; return whether it failed."""
    from rich.console import Console  # noqa: PLC0415 - after the node imports have begun

    from node.testnet.display import save_picture, show_lines, show_live  # noqa: PLC0415 - same
    from node.testnet.summary import draw_summary  # noqa: PLC0415 - same
    from node.testnet.swarm import SwarmRun  # noqa: PLC0415 - same
    from node.testnet.trained import usage_lines  # noqa: PLC0415 - same

    console = Console(stderr=showing.as_json)
    swarm = SwarmRun.create(options)
    if (svg := showing.svg) is not None:
        swarm.on_end = lambda: save_picture(swarm.record, swarm.screen, svg)
    show = show_live if showing.view and console.is_terminal else show_lines
    display = asyncio.create_task(show(swarm.record, swarm.screen, console))
    try:
        outcome = await swarm.run()
    finally:
        display.cancel()
        await asyncio.wait([display])
    model = outcome.model
    files = swarm.layout if showing.report_stays or outcome.failure else None
    console.print(
        draw_summary(
            outcome.report, swarm.record, files, outcome.failure, model_stays=model is not None
        )
    )
    if swarm.screen.notice:
        console.print(swarm.screen.notice, style="yellow", soft_wrap=True)
    if model is not None:
        console.print(
            "", *usage_lines(model, nodes_stay=showing.nodes_stay), sep="\n", soft_wrap=True
        )
    if showing.as_json:
        kept = None if model is None else {"version": model.version, "path": str(model.directory)}
        typer.echo(json.dumps({**outcome.report, "model": kept}, indent=2))
    return bool(outcome.failure)
