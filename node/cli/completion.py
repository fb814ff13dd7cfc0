"""Shell completion of option values.

The shell filters the returned values by the typed prefix and falls back to file names. Imports
happen on demand, and no heavy module is imported.
"""

from collections.abc import Callable, Sequence
from typing import get_args


def roles(incomplete: str) -> list[str]:
    """Return the roles; in a comma-separated list, those not yet given."""
    from protocol.core.types import Role  # noqa: PLC0415 - when a shell asks

    return _next_of_list(incomplete, list(Role))


def step_logs(incomplete: str) -> list[str]:
    """Return the logs of training steps; in a comma-separated list, those not yet given."""
    from node.local.config import StepLogName  # noqa: PLC0415 - pydantic; help does without

    return _next_of_list(incomplete, get_args(StepLogName))


def _next_of_list(incomplete: str, names: Sequence[str]) -> list[str]:
    listed, comma, _ = incomplete.rpartition(",")
    taken = listed.split(",")
    return [f"{listed}{comma}{name}" for name in names if name not in taken]


def recipes() -> list[str]:
    """Return the names of the packaged recipes; the shell completes files."""
    from node.founding.recipes import recipe_names  # noqa: PLC0415 - when a shell asks

    return recipe_names()


def environments() -> list[str]:
    """Return the character-level tasks that a testnet can run."""
    from roles.environments.base import ENVIRONMENTS  # noqa: PLC0415 - when a shell asks

    return list(ENVIRONMENTS)


def devices() -> list[str]:
    """Return the devices of engines."""
    return ["auto", "cpu", "cuda"]


def pythons() -> list[str]:
    """Return the Python versions of scoring runtimes."""
    from roles.environments.runtime import PYTHONS  # noqa: PLC0415 - when a shell asks

    return [*PYTHONS]


def values_of(key: str) -> Callable[[], Sequence[str]]:
    """Return a completion of the allowed values of a key of the config file."""

    def values() -> Sequence[str]:
        from node.local.config import NodeConfig  # noqa: PLC0415 - pydantic; help does without

        return get_args(NodeConfig.model_fields[key].annotation)

    return values
