"""The model that a testnet trained: kept as a Hugging Face directory, with what to do with it."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOUND = "prime-node run create --model DIR --recipe small-text --dataset ROWS --out RUN"
"""How a run of one's own is founded (docs/run-a-model.md)."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A version in ``directory``; the data directory ``node`` holds it, and perhaps others."""

    version: int
    directory: Path
    node: Path


def export_last(nodes: Sequence[Path], directory: Path) -> TrainedModel | None:
    """Export the newest version that one of some data directories holds; the first of them wins.

    Runs in a child: it needs torch. Raises ``NodeError``.
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
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier swarm of the same run
    export(held, version, directory)
    return TrainedModel(version.version, directory, held.root)


def usage_lines(model: TrainedModel, *, nodes_stay: bool) -> list[str]:
    """Return where the model is and what to do with it."""
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
        lines.append("  export    with --keep the nodes stay, and prime-node export reads them")
    return [*lines, f"  train a model of your own  {FOUND}"]
