"""Registry of text tasks by their names in a manifest, such as ``math/<data set>``."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from protocol.run.recipe import EnvironmentSection
from roles.environments.checker import Checker
from roles.environments.code import COLUMNS as CODE_COLUMNS
from roles.environments.code import Code, read_tolerance
from roles.environments.held_out import HeldOutRows, HoldOut, SplitRows, TrainingRows
from roles.environments.jail import Jail
from roles.environments.math import COLUMNS as MATH_COLUMNS
from roles.environments.math import VERSION as MATH_VERSION
from roles.environments.math import Math
from roles.environments.math import require_options as require_math_options
from roles.environments.preamble import preamble, primed
from roles.environments.reasoning_gym import VERSION as GENERATOR_VERSION
from roles.environments.reasoning_gym import ReasoningGym, require_generator
from roles.environments.rows import ParquetRows
from roles.environments.runtime import Interpreter, completed, interpreter_of
from roles.environments.text import TextTask
from roles.environments.usable_rows import PromptRoom, RowRule, UsableRows
from roles.environments.verifiers import Verifiers, pinned, require_package
from roles.ports.background import Background
from roles.ports.text import Chat, Rows, Tokenizer

COLUMNS = {"code": CODE_COLUMNS, "math": MATH_COLUMNS}
"""Required columns of a data set, by task family."""

_GENERATORS = ("reasoning-gym", "verifiers")

_FAMILIES = "text tasks: code/…, math/…, reasoning-gym/…, verifiers/…"


_UNDERSTOOD = {"mpmath": MATH_VERSION, "reasoning-gym": GENERATOR_VERSION}
"""Package versions that a runtime must name: other versions may score differently."""


def pinned_task(section: EnvironmentSection, runtimes: Sequence[Path]) -> EnvironmentSection:
    """Return the section with its package and scoring runtime pinned to the installed versions.

    ``runtimes`` are directories of installed runtimes. Raises ``ValueError`` where the section
    names other versions.
    """
    if section.name.partition("/")[0] not in {*COLUMNS, *_GENERATORS}:
        raise ValueError(f"unknown environment {section.name!r}; {_FAMILIES}")
    if section.name.startswith("verifiers/"):
        section = pinned(section)
    section = section.model_copy(update={"runtime": completed(section)})
    scoring_interpreter(section, runtimes)
    return section


def scoring_interpreter(section: EnvironmentSection, runtimes: Sequence[Path]) -> Interpreter:
    """Return the interpreter for scoring; raises as ``interpreter_of``."""
    found = interpreter_of(section, runtimes)
    for package, version in _UNDERSTOOD.items():
        if (named := found.packages.get(package, version)) != version:
            raise ValueError(
                f"environment.runtime.packages names {package} {named}; this software scores with "
                f"{version}"
            )
    return found


def require_task(section: EnvironmentSection, *, has_dataset: bool) -> Chat:
    """Validate a task and its need of a data set when a run is founded; return an example chat.

    Only a package needs a jail. Raises ``ValueError`` for an unknown task, and for a missing or
    unexpected data set.
    """
    family, _, generator = section.name.partition("/")
    if family not in {*COLUMNS, *_GENERATORS}:
        raise ValueError(f"unknown environment {section.name!r}; {_FAMILIES}")
    if has_dataset != (family in COLUMNS):
        needs = "takes no data set" if has_dataset else "needs a data set"
        raise ValueError(f"environment {section.name!r} {needs}")
    if family == "verifiers":
        if preamble(section):
            raise ValueError("environment.system and examples: the package has its own prompts")
        return require_package(section)
    if not has_dataset:
        require_generator(section.name, generator, section.options)
    if family == "math":
        require_math_options(section.options)
    if family == "code":
        read_tolerance(section.options)
    return Chat("1 + 1 = ?")


def text_task(
    section: EnvironmentSection,
    dataset: Path,
    read_tokenizer: Callable[[], Tokenizer],
    background: Background,
    room: PromptRoom,
    runtimes: Sequence[Path] = (),
    rows_per_held_out_row: int | None = None,
) -> TextTask:
    """Return the task; ``open`` reads its tokenizer and the rows of ``dataset``.

    ``runtimes`` are directories of installed scoring runtimes; without ``rows_per_held_out_row``
    no row is held out. Raises ``ValueError`` when the task is unknown or cannot run on this
    machine. Blocks for 1 s.
    """
    name = section.name
    family, _, generator = name.partition("/")
    tokenizer = cache(lambda: primed(read_tokenizer(), section))
    if family not in {*COLUMNS, *_GENERATORS}:
        raise ValueError(f"unknown environment {name!r}; {_FAMILIES}")
    interpreter = scoring_interpreter(section, runtimes)

    def read_rows() -> Rows | SplitRows:
        rows = ParquetRows(dataset, COLUMNS[family], section.pass_rates)
        rule = RowRule(family, room, tokenizer())
        if rows_per_held_out_row is None:
            return UsableRows(name, rows, rule)
        split = HoldOut(name, rows_per_held_out_row, rows.count)
        return SplitRows(
            UsableRows(name, TrainingRows(rows, split), rule),
            UsableRows(name, HeldOutRows(rows, split), rule),
        )

    match family:
        case "code":
            jail = Jail(libraries=False, interpreter=interpreter)
            options = section.options
            return Code(name, read_rows, tokenizer, background, jail, options=options)
        case "math":
            checker = math_checker(interpreter)
            return math_task(section, read_rows, tokenizer, background, checker)
        case "reasoning-gym":
            checker = Checker("reasoning", interpreter=interpreter)
            return ReasoningGym(name, generator, section.options, tokenizer, background, checker)
        case _:
            return Verifiers(section, tokenizer, background, rows_per_held_out_row)


def math_checker(interpreter: Interpreter) -> Checker:
    """Return the checker of the family ``math``; raises ``NoJailError``."""
    return Checker("math", interpreter=interpreter)


def math_task(
    section: EnvironmentSection,
    read_rows: Callable[[], Rows | SplitRows],
    read_tokenizer: Callable[[], Tokenizer],
    background: Background,
    checker: Checker,
) -> Math:
    """Return a task of the family ``math`` over the given rows."""
    return Math(section.name, section.options, read_rows, read_tokenizer, background, checker)
