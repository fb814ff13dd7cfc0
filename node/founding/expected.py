"""What a run of a recipe should come to: the curve that it states, and whether it was met."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from node.founding.recipes import expected_file

WINDOW_VERSIONS = 5
"""A point is about the mean of so many versions, up to its own."""


@dataclass(frozen=True, slots=True)
class Point:
    """The least mean reward that a run should have by a version."""

    version: int
    reward: float


@dataclass(frozen=True, slots=True)
class LearningOutcome:
    """The last point that a run came to, and its reward there."""

    point: Point
    reward: float

    @property
    def met(self) -> bool:
        """Whether the run learned as its recipe says."""
        return self.reward >= self.point.reward


def expected_curve(recipe: str, environment: str) -> tuple[Point, ...]:
    """Return what is stated of a recipe, by its name, and a task; nothing for anybody's own."""
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
