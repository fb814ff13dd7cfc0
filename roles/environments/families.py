"""Tasks in text by their names in a manifest, such as ``math/<data set>``."""

from collections.abc import Callable, Sequence
from pathlib import Path

from protocol.recipe import EnvironmentSection
from roles.environments.checker import Checker
from roles.environments.code import COLUMNS as CODE_COLUMNS
from roles.environments.code import Code, read_tolerance
from roles.environments.jail import Jail
from roles.environments.math import COLUMNS as MATH_COLUMNS
from roles.environments.math import Math
from roles.environments.reasoning_gym import ReasoningGym, require_generator
from roles.environments.rows import ParquetRows
from roles.environments.text import TextTask
from roles.environments.verifiers import Verifiers, pinned, require_package
from roles.ports.background import Background
from roles.ports.text import Chat, Tokenizer

COLUMNS = {"code": CODE_COLUMNS, "math": MATH_COLUMNS}
"""What the rows of a data set have, by the families of tasks that need one."""

_GENERATORS = ("reasoning-gym", "verifiers")

_FAMILIES = "in text there are code/…, math/…, reasoning-gym/… and verifiers/…"


def pinned_task(section: EnvironmentSection) -> EnvironmentSection:
    """Return the section with what is installed here of the package of its task, if it has one.

    Raises ``ValueError`` where it names something else than what is installed.
    """
    return pinned(section) if section.name.startswith("verifiers/") else section


def require_task(section: EnvironmentSection, dataset: Path | None) -> Chat:
    """Raise ``ValueError`` unless there is such a task, and its data set is what it should be.

    For who founds a run: a jail is needed for a package alone, since nothing of a data set runs.
    Return a chat of the kind that the task asks a model in.
    """
    family, _, generator = section.name.partition("/")
    if family not in {*COLUMNS, *_GENERATORS}:
        raise ValueError(f"no environment {section.name!r}; {_FAMILIES}")
    if (dataset is not None) != (family in COLUMNS):
        needs = "needs a data set" if dataset is None else "takes no data set"
        raise ValueError(f"environment {section.name!r} {needs}")
    if family == "verifiers":
        return require_package(section)
    if dataset is None:
        require_generator(section.name, generator, section.options)
    else:
        if family == "code":
            read_tolerance(section.options)
        ParquetRows(dataset, COLUMNS[family], section.pass_rates)
    return Chat("1 + 1 = ?")


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
            rows = read_rows(CODE_COLUMNS)
            options = section.options
            return Code(name, rows, read_tokenizer, background, jail, options=options)
        case "math":
            checker = Checker("math")
            return Math(name, read_rows(MATH_COLUMNS), read_tokenizer, background, checker)
        case "reasoning-gym":
            checker = Checker("reasoning")
            return ReasoningGym(
                name, generator, section.options, read_tokenizer, background, checker
            )
        case "verifiers":
            return Verifiers(section, read_tokenizer, background)
        case _:
            raise ValueError(f"no environment {name!r}; {_FAMILIES}")
