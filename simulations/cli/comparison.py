"""Comparison of results: summary of a sweep, difference of two results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from simulations.study.study import RunPlan

NOT_COMPARED = ("seed", "violations", "causes", "plan")


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of two results; None if unknown."""

    name: str
    base: float | str | None
    new: float | str | None

    @property
    def change(self) -> float | None:
        """The relative change; None if it is undefined."""
        base, new = self.base, self.new
        if not (isinstance(base, int | float) and isinstance(new, int | float)) or not base:
            return None
        return new / base - 1


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, float | str | None]:
    """Return the numbers of a result by dotted names; lists are left out."""
    flat: dict[str, float | str | None] = {}
    for key, value in values.items():
        if key in NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            flat[f"{prefix}{key}"] = value
    return flat


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return median, minimum and maximum of every number over the results of a sweep."""
    flat = [flattened(result) for result in results]
    summary: dict[str, dict[str, float | None]] = {}
    for name, first in (flat[0] if flat else {}).items():
        if isinstance(first, str):
            continue
        known = [item for row in flat if isinstance(item := row.get(name), int | float)]
        summary[name] = {
            "median": median(known) if known else None,
            "min": min(known, default=None),
            "max": max(known, default=None),
        }
    return summary


def differences(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Compare every number of two results; a sweep counts by its medians."""
    first, second = _comparable(base), _comparable(new)
    names = dict.fromkeys((*first, *second))
    return [Difference(name, first.get(name), second.get(name)) for name in names]


def _comparable(values: Mapping[str, Any]) -> dict[str, float | str | None]:
    if "runs" not in values:
        return flattened(values)
    summary = summarise(values["runs"])
    return {name: numbers["median"] for name, numbers in summary.items()}


def plan_of(result: Mapping[str, Any]) -> RunPlan:
    """Return the plan stored in a result; raises ``ValueError`` if it has none."""
    try:
        return RunPlan.of_values(result["plan"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the result of one run: it lacks {error}") from None
