"""Outer steps of a run with several trainers at once, and how far they can move a weight.

In a round, each trainer makes ``inner_steps`` steps from the same outer weights, and publishes by
how much its weights differ: ``d = outer - inner`` (DiLoCo, Douillard et al. 2023). The outer step
takes the mean ``g`` of the differences, with Nesterov's momentum ``mu`` and the outer rate ``lr``:

    buffer_t = mu buffer_(t-1) + g_t,    outer_(t+1) = outer_t - lr (g_t + mu buffer_t).

A difference is bounded by the movement of AdamW in a round: ``|g_t| <= S + D |w_t|`` for a weight
``w_t`` before the step, with ``D`` for weight decay and rounding. Both are sharp for one round.

**Without D**: ``g_t + mu buffer_t = g_t + mu g_t + mu^2 g_(t-1) + mu^3 g_(t-2) + ..`` is at most
``S (1 + mu + mu^2 + ..) <= S / (1 - mu)``. So a step moves a weight by at most ``lr S / (1 - mu)``,
which equal differences reach.

**With D**, older differences were bounded by older weights. Let ``A = c lr S / (1 - mu)``,
``B = c lr D / (1 - mu)``, ``c = 1.02``, and ``B <= (1 - mu) / 200``. By induction each step moves a
weight by at most ``A + B |w_t|``: if the steps before did, ``|w_(t-1)| <= r (|w_t| + A)`` with
``r = 1 / (1 - B)``, so ``|w_(t-k)| <= r^k |w_t| + A (r + .. + r^k)``. That grows with ``k``, so the
movement is at most its sum with ``mu^k``:

    A / c + lr D sum(mu^k |w_(t-k)|) <= A / c + lr D / (1 - mu r) (|w_t| + A r mu / (1 - mu)).

Here ``1 / (1 - mu r) <= 1.006 / (1 - mu)``, so the factor of ``|w_t|`` is at most ``0.987 B``, and
that of ``A`` is at most ``1 / 1.02 + 0.987 * 0.005 * 1.006 < 0.986``. The rest covers float32 and,
over several versions ``n`` with ``n B <= (1 - mu) / 200``, that the weights between are larger.

The buffer of a state may be of unknown origin, and 1 % above ``(S + D |w|) / (1 - mu)`` for its
weights. The next step is then at most ``lr (S + D |w|) / (1 - mu)`` times
``1 - mu^2 + 1.01 mu^2 < c``.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.run.recipe import GrpoSection
from protocol.run.training_bound import movement_bound
from protocol.shardcast.movement_bound import MovementBound

_SLACK = 1.02
"""``c`` of the proof."""

_SHARE_MAX = 1 / 200
"""Largest ``n B / (1 - mu)`` of the proof."""

_ARITHMETIC = 2.0**-22
"""Rounding of a weight in one update, relative to it: four roundings of float32."""

DifferenceEncoding = Literal["int8", "float32"]


@dataclass(frozen=True, slots=True)
class OuterRule:
    """Rule of a run's outer steps; raises ``ValueError`` for values out of range."""

    inner_steps: int
    """Steps of a trainer between two outer steps, at least 1."""
    learning_rate: float
    """Factor on the mean difference, above 0: 1 without momentum is the mean of the trainers."""
    momentum: float
    """Nesterov's, from 0 to below 1."""
    encoding: DifferenceEncoding = "int8"

    def __post_init__(self) -> None:
        if self.inner_steps < 1 or self.learning_rate <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"no outer steps by {self}")


def round_settings(grpo: GrpoSection, rule: OuterRule) -> GrpoSection:
    """Return the section of a run whose versions have the updates of a trainer's whole round."""
    updates = grpo.updates_per_version * rule.inner_steps
    return grpo.model_copy(update={"updates_per_version": updates})


def difference_bound(grpo: GrpoSection, rule: OuterRule) -> MovementBound | None:
    """Return the bound on a trainer's difference; its ``decay`` includes float32's rounding.

    None for an optimiser without a bound.
    """
    inner = movement_bound(round_settings(grpo, rule), 1)
    if inner is None:
        return None
    decay = min(1.0, inner.decay + inner.updates * _ARITHMETIC)
    return MovementBound(inner.updates, inner.step, decay)


def outer_bound(grpo: GrpoSection, rule: OuterRule, versions: int) -> MovementBound | None:
    """Return the bound on the movement of a weight between versions of outer steps.

    None without a bound, and if weight decay and momentum are too large for the proof.
    """
    inner = difference_bound(grpo, rule)
    if inner is None:
        return None
    factor = versions * _SLACK * rule.learning_rate / (1 - rule.momentum)
    if factor * inner.decay > _SHARE_MAX * (1 - rule.momentum):
        return None
    return MovementBound(versions, factor * inner.step, factor * inner.decay)
