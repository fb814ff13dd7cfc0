"""Built-in tasks by name, and their known solutions for a cold start."""

from importlib import import_module
from typing import Protocol, cast

from roles.environments.threaded import BlockingTask

PADDING = 0
END = 1

VOCABULARY_SIZE = 32
"""Vocabulary size of every character task, so that one tiny model shape fits all."""

ENVIRONMENTS = {
    "arithmetic": "roles.environments.characters:Arithmetic",
    "sorting": "roles.environments.characters:Sorting",
}
"""Name in the manifest -> ``module:class``, imported on first use: tasks may be heavy."""


class SolvedTask(Protocol):
    """Task with known solutions, used only for the cold start of a run."""

    @property
    def name(self) -> str:
        """Name in manifests."""

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def solution(self, seed: int) -> tuple[int, ...]:
        """Return a completion of problem ``seed`` that scores 1, with the end token."""


def environment(name: str) -> BlockingTask:
    """Return the task ``name``; raises ``ValueError`` listing the known names otherwise."""
    if name not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise ValueError(f"unknown environment {name!r}; character tasks: {known}")
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return cast("BlockingTask", getattr(import_module(module), attribute)())


def solved(task: BlockingTask) -> SolvedTask:
    """Return ``task`` as a ``SolvedTask``; raises ``ValueError`` when it has no solutions."""
    if not hasattr(task, "solution"):
        raise ValueError(f"environment {task.name!r} has no known solutions to learn from")
    return cast("SolvedTask", task)
