"""Confidence intervals of pass@1, and of its difference between two models on the same problems.

The interval of a share is Wilson's (1927), which keeps its coverage near 0 and 1 and for few
problems. Several answers to one problem are not independent. Their number is replaced by the number
of independent answers that has the variance found between problems (Korn and Graubard 1998, Survey
Methodology 24). The interval of a difference is Newcombe's for paired shares (1998, Statistics in
Medicine 17:2635, method 8), with the correlation over problems.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pvariance

Z_95 = 1.959963984540054
"""Quantile of the normal distribution for 95 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def share(passes: Sequence[float], samples: int = 1) -> Estimate:
    """Return the share of answers that pass; ``passes`` are the shares of each problem.

    Each is of ``samples`` answers. Raises ``ValueError`` without a problem.
    """
    if not passes:
        raise ValueError("a share of nothing has no interval")
    mean, count = fmean(passes), float(len(passes))
    variance = pvariance(passes, mean)
    if samples > 1:
        most = count * samples
        # Equal shares have no variance between them, which says nothing about dependence.
        count = min(most, mean * (1 - mean) / (variance / count)) if variance else count
    return Estimate(mean, *_wilson(mean, count))


def difference(before: Sequence[float], after: Sequence[float], samples: int = 1) -> Estimate:
    """Return the increase of a share, from the same problems in the same order."""
    one, other = share(before, samples), share(after, samples)
    value = other.value - one.value
    correlation = _correlation(before, after)
    low = _joined(other.value - other.low, one.high - one.value, correlation)
    high = _joined(other.high - other.value, one.value - one.low, correlation)
    return Estimate(value, max(-1.0, value - low), min(1.0, value + high))


def _wilson(mean: float, count: float) -> tuple[float, float]:
    centre = mean + Z_95**2 / (2 * count)
    half = Z_95 * sqrt(mean * (1 - mean) / count + Z_95**2 / (4 * count**2))
    scale = 1 + Z_95**2 / count
    # Exact at the ends, where rounding would exclude them.
    low = 0.0 if mean == 0 else (centre - half) / scale
    return low, 1.0 if mean == 1 else (centre + half) / scale


def _joined(one: float, other: float, correlation: float) -> float:
    return sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))


def _correlation(before: Sequence[float], after: Sequence[float]) -> float:
    """Return Pearson's correlation (phi for pass or fail), or 0 if one side does not vary."""
    one, other = fmean(before), fmean(after)
    spread = sqrt(pvariance(before, one) * pvariance(after, other))
    if not spread:
        return 0.0
    both = fmean((x - one) * (y - other) for x, y in zip(before, after, strict=True))
    return both / spread


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """An evaluated version; the bounds are those of a 95 % interval.

    The interval accounts for the dependence between answers to one problem.
    """

    version: int
    problems: int
    answers: int
    reward_mean: float
    reward_low: float
    reward_high: float
    solved_fraction: float
    """Share of answers with task reward 1."""
    solved_low: float
    solved_high: float
