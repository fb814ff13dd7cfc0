"""What a shell offers for the values of options, by TAB.

The shell offers what of an answer begins with what is typed, and files where nothing does.
Everything is imported when it is asked for, and nothing heavy ever.
"""

from collections.abc import Callable, Sequence
from typing import get_args


def roles(incomplete: str) -> list[str]:
    """Return the roles, also as the next one of a list with commas, each once."""
    from protocol.core.types import Role  # noqa: PLC0415 - when a shell asks

    return _next_of_list(incomplete, list(Role))


def step_logs(incomplete: str) -> list[str]:
    """Return the logs of training steps, also as the next one of a list with commas, each once."""
    from node.local.config import StepLogName  # noqa: PLC0415 - pydantic; help does without

    return _next_of_list(incomplete, get_args(StepLogName))


def _next_of_list(incomplete: str, names: Sequence[str]) -> list[str]:
    listed, comma, _ = incomplete.rpartition(",")
    taken = listed.split(",")
    return [f"{listed}{comma}{name}" for name in names if name not in taken]


def recipes() -> list[str]:
    """Return the names of the recipes of the package; files are offered by the shell."""
    from node.founding.recipes import recipe_names  # noqa: PLC0415 - when a shell asks

    return recipe_names()


def environments() -> list[str]:
    """Return the tasks over characters, which a testnet can have."""
    from roles.environments.base import ENVIRONMENTS  # noqa: PLC0415 - when a shell asks

    return list(ENVIRONMENTS)


def devices() -> list[str]:
    """Return what engines can compute on."""
    return ["auto", "cpu", "cuda"]


def pythons() -> list[str]:
    """Return the versions of Python that programs are scored under."""
    from roles.environments.runtime import PYTHONS  # noqa: PLC0415 - when a shell asks

    return [*PYTHONS]


def values_of(key: str) -> Callable[[], Sequence[str]]:
    """Return what lists the values that a key of the config file can have."""

    def values() -> Sequence[str]:
        from node.local.config import NodeConfig  # noqa: PLC0415 - pydantic; help does without

        return get_args(NodeConfig.model_fields[key].annotation)

    return values
