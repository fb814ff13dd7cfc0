"""Interface of a log of training steps, and the check that its library is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

from node.local.errors import ExitCode, NodeError
from roles.runtime.training_steps import TrainingStep

LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""Additional modules by the name of the log that needs them."""

PREFIX = "training/"
"""Prefix of statistic names in tools that group by path."""


class StepLog(Protocol):
    """A log of training steps; its methods block, and raise errors of the disk or the library."""

    def open(self) -> int:
        """Open or create the log; return the newest version in it, 0 when it is empty."""

    def write(self, steps: Sequence[TrainingStep]) -> None:
        """Append steps of newer versions, ascending; on return they survive ``kill -9``."""

    def close(self) -> None:
        """Release the resources of ``open``; idempotent, also after an error."""


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
