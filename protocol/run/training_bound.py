"""Largest movement of a weight in the AdamW updates of a run.

An update moves a weight by ``learning_rate * mean / (sqrt(square) + epsilon)``, and shrinks it by
``learning_rate * weight_decay`` of itself. ``mean`` and ``square`` are the moments with their bias
corrected. Their ratio is bounded whatever the gradients are, so a version of a policy is close to
the version before it, or it was not trained by the rules of the run.

With ``t`` updates, decay rates ``a`` and ``b`` and gradients ``g_k`` that are ``k`` updates old,

    m = (1 - a) sum(a^k g_k),    v = (1 - b) sum(b^k g_k^2),    k = 0 .. t - 1.

By Cauchy-Schwarz, ``sum(a^k g_k) = sum((a / sqrt(b))^k (sqrt(b)^k g_k))``, so

    |m| <= M(t) sqrt(v),    M(t) = (1 - a) / sqrt(1 - b) sqrt(sum((a^2 / b)^k)).

The gradients ``g_k = (a / b)^k`` reach it. The corrections divide ``m`` by ``1 - a^t`` and ``v`` by
``1 - b^t``, which gives the ratio ``M(t) sqrt(1 - b^t) / (1 - a^t)``. Kingma and Ba (2015, section
2.1) give ``(1 - a) / sqrt(1 - b)``, which only a gradient after many zeros reaches: gradients that
grow reach more.

The bound also holds after a resume from moments of unknown origin, if these satisfy
``|m| <= M(t) sqrt(v)`` for their ``t``. Since ``M(t + 1)^2 = M(1)^2 + a^2 / b M(t)^2``, the moments
after the next update satisfy it too, again by Cauchy-Schwarz.

Everything is IEEE arithmetic without library functions but the square root, so all machines compute
the same bound.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

from protocol.run.recipe import GrpoSection
from protocol.shardcast.movement_bound import MovementBound

TOLERANCE = 1.02
"""Factor on the ratio: a trainer accepts moments that exceed theirs by 1 %, and rounds in float32
(measured: 1e-5)."""

_SETTLED = 2.0**-60
"""If all powers are smaller, no later ratio differs."""


def is_bounded(betas: tuple[float, float]) -> bool:
    """Return whether AdamW with these decay rates has a bound for any number of updates.

    It has none if the second moment forgets faster than the first one squared.
    """
    first, second = betas
    return first < 1 and second < 1 and (first == 0 or first * first < second)


def moment_ratio_max(betas: tuple[float, float], updates: int | None) -> float:
    """Return the largest ``|m| / sqrt(v)`` of uncorrected moments after some updates.

    0 before the first update; infinite for rates without a bound. None: after any number of them.
    """
    if not is_bounded(betas):
        return math.inf
    if updates is None:
        first, second = betas
        shrink = first * first / second if first else 0.0
        return (1 - first) / math.sqrt((1 - second) * (1 - shrink))
    return max((ratio for ratio, _ in _ratios(betas, updates)), default=0.0)  # the last one


@lru_cache(maxsize=64)
def step_ratio_max(betas: tuple[float, float], updates: int) -> float:
    """Return the largest ``|mean| / sqrt(square)`` in any of the first ``updates`` updates.

    Which update a trainer makes is unknown: it may have resumed with a new optimiser.
    """
    if not is_bounded(betas):
        return math.inf
    return max((corrected for _, corrected in _ratios(betas, updates)), default=0.0)


def _ratios(betas: tuple[float, float], updates: int) -> Iterator[tuple[float, float]]:
    """Yield the largest ratio of the moments, uncorrected and corrected, after each update."""
    first, second = betas
    shrink = first * first / second if first else 0.0
    power, first_power, second_power, total = 1.0, 1.0, 1.0, 0.0
    for _ in range(updates):
        total += power
        power, first_power, second_power = (
            power * shrink,
            first_power * first,
            second_power * second,
        )
        ratio = (1 - first) * math.sqrt(total / (1 - second))
        yield ratio, ratio * math.sqrt(1 - second_power) / (1 - first_power)
        if max(power, first_power, second_power) < _SETTLED:
            return


def movement_bound(grpo: GrpoSection, versions: int) -> MovementBound | None:
    """Return the bound on the movement of a weight between versions ``versions`` apart.

    None without a bound. The learning rate is the largest of the schedule: how many updates a
    trainer has made is not known to others.
    """
    updates = versions * grpo.updates_per_version
    ratio = TOLERANCE * step_ratio_max(grpo.adam_betas, grpo.steps * grpo.updates_per_version)
    if not math.isfinite(ratio):
        return None
    return MovementBound(
        updates=updates,
        step=updates * grpo.learning_rate * ratio,
        decay=min(1.0, updates * grpo.learning_rate * grpo.weight_decay),
    )
