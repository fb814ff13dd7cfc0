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
from roles.environments.reasoning_gym import ReasoningGym, require_generator
from roles.environments.rows import ParquetRows
from roles.environments.text import TextTask
from roles.ports.background import Background
from roles.ports.text import Tokenizer

COLUMNS = {"code": CODE_COLUMNS, "math": MATH_COLUMNS}
"""What the rows of a data set have, by the families of tasks that need one."""

_FAMILIES = "in text there are code/…, math/… and reasoning-gym/…"


def require_task(section: EnvironmentSection, dataset: Path | None) -> None:
    """Raise ``ValueError`` unless there is such a task, and its data set is what it should be.

    For who founds a run: nothing of a data set runs, so no jail is needed.
    """
    family, _, generator = section.name.partition("/")
    if family not in {*COLUMNS, "reasoning-gym"}:
        raise ValueError(f"no environment {section.name!r}; {_FAMILIES}")
    if (dataset is not None) != (family in COLUMNS):
        needs = "needs a data set" if dataset is None else "takes no data set"
        raise ValueError(f"environment {section.name!r} {needs}")
    if dataset is None:
        require_generator(section.name, generator, section.options)
    else:
        ParquetRows(dataset, COLUMNS[family], section.pass_rates)


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
            raise ValueError(f"no environment {name!r}; {_FAMILIES}")
