"""Tasks in text by their names in a manifest, such as ``math/<data set>``."""

from collections.abc import Callable, Sequence
from pathlib import Path

from protocol.recipe import EnvironmentSection
from roles.environments.checker import Checker
from roles.environments.code import COLUMNS as CODE_COLUMNS
from roles.environments.code import Code
from roles.environments.jail import Jail
from roles.environments.math import COLUMNS as MATH_COLUMNS
from roles.environments.math import Math
from roles.environments.reasoning_gym import ReasoningGym
from roles.environments.rows import ParquetRows
from roles.environments.text import TextTask
from roles.ports.background import Background
from roles.ports.text import Tokenizer

COLUMNS = {"code": CODE_COLUMNS, "math": MATH_COLUMNS}
"""What the rows of a data set have, by the families of tasks that need one."""


def family_of(name: str) -> str:
    """Return the family of a task in text, the part in front of its slash."""
    return name.partition("/")[0]


def text_task(
    section: EnvironmentSection,
    dataset: Path,
    read_tokenizer: Callable[[], Tokenizer],
    background: Background,
) -> TextTask:
    """Return the task, which reads its tokenizer and the rows of ``dataset`` when it is opened.

    Raises ``ValueError`` when there is none, or this machine cannot run it. Blocks for a second.
    """
    name = section.name
    family, _, generator = name.partition("/")

    def read_rows(columns: Sequence[str]) -> Callable[[], ParquetRows]:
        return lambda: ParquetRows(dataset, columns, section.pass_rates)

    match family:
        case "code":
            jail = Jail(libraries=False)
            return Code(name, read_rows(CODE_COLUMNS), read_tokenizer, background, jail)
        case "math":
            checker = Checker("math")
            return Math(name, read_rows(MATH_COLUMNS), read_tokenizer, background, checker)
        case "reasoning-gym":
            checker = Checker("reasoning")
            return ReasoningGym(
                name, generator, section.options, read_tokenizer, background, checker
            )
        case _:
            families = "code/…, math/… and reasoning-gym/…"
            raise ValueError(f"no environment {name!r}; in text there are {families}")
