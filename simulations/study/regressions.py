"""Regression seeds: runs that once violated a rule, repeated by the tests.

A failing run appends itself to ``simulations/regressions.toml`` of the checkout in which it was
started.
"""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from simulations.study.study import RunPlan

FILE = Path("simulations") / "regressions.toml"
"""Path within a checkout."""


@dataclass(frozen=True, slots=True)
class Regression:
    """A plan, and the rule that it violated."""

    plan: RunPlan
    rule: str
    what: str

    def to_toml(self) -> str:
        """Return the entry as TOML."""
        values = {**asdict(self.plan), "rule": self.rule, "what": self.what}
        told = {name: value for name, value in values.items() if value is not None}
        return "\n" + tomlkit.dumps({"regression": [told]})


def load_regressions(path: Path) -> list[Regression]:
    """Read a file of regressions; raises ``ValueError`` that names its fault."""
    try:
        entries = tomllib.loads(path.read_text()).get("regression", [])
        return [
            Regression(RunPlan.of_values(entry), entry["rule"], entry["what"]) for entry in entries
        ]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    except KeyError as error:
        raise ValueError(f"{path}: an entry lacks {error}") from None


def add_regression(regression: Regression, start: Path) -> Path | None:
    """Append an entry to the file of the checkout around ``start``, unless its plan is there.

    Return the file; None if there is no checkout or it is not writable.
    """
    path = find_file(start)
    if path is None:
        return None
    try:
        if regression.plan not in [known.plan for known in load_regressions(path)]:
            with path.open("a") as file:
                file.write(regression.to_toml())
    except (OSError, ValueError):
        return None
    return path


def find_file(start: Path) -> Path | None:
    """Return the file of the checkout that holds ``start``; None outside of one."""
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    return None
