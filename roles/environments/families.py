"""Tasks in text by their names in a manifest, such as ``math/<data set>``."""

from pathlib import Path

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


def text_task(name: str, directory: Path, tokenizer: Tokenizer, background: Background) -> TextTask:
    """Return the task called ``name``, with the rows of ``directory/<data set>.parquet``.

    Raises ``ValueError`` when there is none, or this machine cannot run it. Blocks for a second.
    """
    family, _, dataset = name.partition("/")
    rows = directory / f"{dataset}.parquet"
    match family:
        case "code":
            jail = Jail(libraries=False)
            return Code(name, ParquetRows(rows, CODE_COLUMNS), tokenizer, background, jail)
        case "math":
            checker = Checker("math")
            return Math(name, ParquetRows(rows, MATH_COLUMNS), tokenizer, background, checker)
        case "reasoning-gym":
            checker = Checker("reasoning")
            return ReasoningGym(name, dataset, tokenizer, background, checker)
        case _:
            families = "code/…, math/… and reasoning-gym/…"
            raise ValueError(f"no environment {name!r}; in text there are {families}")
