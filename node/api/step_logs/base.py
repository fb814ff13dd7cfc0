"""Interface of a log of training steps, and the check that its library is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

from node.local.errors import ExitCode, NodeError
from roles.runtime.training_steps import TrainingStep

LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""Modules that a log needs beside the node's own, by the name of the log."""

PREFIX = "training/"
"""Of the names of statistics where a tool groups them by a path."""


class StepLog(Protocol):
    """A log of training steps. Its methods block, and raise what the disk or a library raises."""

    def open(self) -> int:
        """Open or create the log; return the newest version in it, 0 when it is empty."""

    def write(self, steps: Sequence[TrainingStep]) -> None:
        """Append steps of newer versions, ascending; they survive ``kill -9`` afterwards."""

    def close(self) -> None:
        """Release what ``open`` took; idempotent, also after an error."""


def require_libraries(names: Sequence[str]) -> None:
    """Raise ``NodeError`` for the first log whose library is not installed."""
    for name in names:
        module = LIBRARIES.get(name)
        if module is not None and find_spec(module) is None:
            raise NodeError(
                f"--log-to {name}: the package {module} is not installed here; "
                f"run: pip install 'prime-node[{name}]'",
                ExitCode.CONFIG,
            )
