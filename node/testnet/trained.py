"""Export of a testnet's model as a Hugging Face directory, with hints on its use."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOUND = "prime-node run create --model DIR --recipe small-text --dataset ROWS --out RUN"
"""Command that creates another run (docs/run-a-model.md)."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """An exported version in ``directory``, from the data directory ``node``."""

    version: int
    directory: Path
    node: Path


def export_last(nodes: Sequence[Path], directory: Path) -> TrainedModel | None:
    """Export the newest version in several data directories, preferring the first of them.

    Runs in a child process because of torch. Raises ``NodeError``.
    """
    from node.models.export import export  # noqa: PLC0415 - imports torch
    from node.models.held import open_held_run  # noqa: PLC0415 - keeps the parent light

    runs = [open_held_run(node) for node in nodes if (node / "run.manifest").exists()]
    held = max(
        (run for run in runs if run.versions), key=lambda run: max(run.versions), default=None
    )
    if held is None:
        return None
    version = held.version()
    shutil.rmtree(directory, ignore_errors=True)  # from an earlier swarm of the same run
    export(held, version, directory)
    return TrainedModel(version.version, directory, held.root)


def usage_lines(model: TrainedModel, *, nodes_stay: bool) -> list[str]:
    """Return the path of the model and commands that use it."""
    here, node = shlex.quote(str(model.directory)), shlex.quote(str(model.node))
    lines = [
        f"version {model.version} is in {here}, a Hugging Face directory",
        f"  chat      prime-node chat --model {here}",
        f"  evaluate  prime-node eval --model {here}",
    ]
    if nodes_stay:
        lines[2] = f"  evaluate  prime-node eval --data-dir {node} --versions 0,{model.version}"
        lines.append(f"  export    prime-node export --data-dir {node} --version N --out DIR")
    else:
        lines.append("  export    use --keep to keep the nodes, then prime-node export")
    return [*lines, f"  train a model of your own  {FOUND}"]
