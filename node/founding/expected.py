"""Expected reward curve of a recipe, and its comparison with a run."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from node.founding.recipes import expected_file

WINDOW_VERSIONS = 5
"""Number of versions, up to a point's own, whose mean reward a point limits."""


@dataclass(frozen=True, slots=True)
class Point:
    """Least mean reward of a run by a version."""

    version: int
    reward: float


@dataclass(frozen=True, slots=True)
class LearningOutcome:
    """Last point that a run reached, and its reward there."""

    point: Point
    reward: float

    @property
    def met(self) -> bool:
        """True if the run learned as its recipe states."""
        return self.reward >= self.point.reward


def expected_curve(recipe: str, environment: str) -> tuple[Point, ...]:
    """Return the expected curve of a packaged recipe and a task; empty for other recipes."""
    stated = tomllib.loads(expected_file().read_text()).get(recipe, {}).get(environment, {})
    points = (Point(int(version), float(reward)) for version, reward in stated.items())
    return tuple(sorted(points, key=lambda point: point.version))


def outcome(curve: Sequence[Point], rewards: Sequence[tuple[int, float]]) -> LearningOutcome | None:
    """Compare (version, mean reward of its batch) with a curve; None before its first point."""
    newest = max((version for version, _ in rewards), default=0)
    reached = [point for point in curve if point.version <= newest]
    if not reached:
        return None
    point = reached[-1]
    window = range(point.version - WINDOW_VERSIONS + 1, point.version + 1)
    found = [reward for version, reward in rewards if version in window]
    return LearningOutcome(point, fmean(found)) if found else None
