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

**More versions.** From ``|w_(t+1)| <= (1 + B) |w_t| + A``, the movements of ``n`` steps add up to
at most ``((1 + B)^n - 1) (|w_t| + A / B)``. With ``x = n B <= 1`` that is at most
``x (1 + x) (|w_t| + A / B)``, because ``(1 + B)^n <= e^x <= 1 + x + x^2``. As ``B <= 1 / 200``,
each run with a bound for one version has one for 200 versions.

The buffer of a state may be of unknown origin, and 1 % above ``(S + D |w|) / (1 - mu)`` for its
weights. The next step is then at most ``lr (S + D |w|) / (1 - mu)`` times
``1 - mu^2 + 1.01 mu^2 < c``.
"""

from protocol.run.recipe import GrpoSection
from protocol.run.sections import OuterSection
from protocol.run.training_bound import is_bounded, movement_bound
from protocol.shardcast.movement_bound import MovementBound

_SLACK = 1.02
"""``c`` of the proof."""

_SHARE_MAX = 1 / 200
"""Largest ``B / (1 - mu)`` of the proof."""

_ARITHMETIC = 2.0**-22
"""Rounding of a weight in one update, relative to it: four roundings of float32."""


def round_settings(grpo: GrpoSection, rule: OuterSection) -> GrpoSection:
    """Return the section of a run whose versions have the updates of a trainer's whole round."""
    updates = grpo.updates_per_version * rule.inner_steps
    return grpo.model_copy(update={"updates_per_version": updates})


def difference_bound(grpo: GrpoSection, rule: OuterSection) -> MovementBound | None:
    """Return the bound on a trainer's difference; its ``decay`` includes float32's rounding.

    None for an optimiser without a bound.
    """
    inner = movement_bound(round_settings(grpo, rule), 1)
    if inner is None:
        return None
    decay = min(1.0, inner.decay + inner.updates * _ARITHMETIC)
    return MovementBound(inner.updates, inner.step, decay)


def outer_bound(grpo: GrpoSection, rule: OuterSection, versions: int) -> MovementBound | None:
    """Return the bound on the movement of a weight between versions of outer steps.

    None without a bound: if weight decay and momentum are too large for the proof, or for more than
    200 versions.
    """
    inner = difference_bound(grpo, rule)
    if inner is None:
        return None
    factor = _SLACK * rule.learning_rate / (1 - rule.momentum)
    decay, share_max = factor * inner.decay, _SHARE_MAX * (1 - rule.momentum)
    share = versions * decay
    if decay > share_max or share > 1:
        return None
    growth = 1 + share if share > share_max else 1.0
    return MovementBound(versions, growth * versions * factor * inner.step, growth * share)


def version_bound(grpo: GrpoSection, versions: int) -> MovementBound | None:
    """Return the bound on the movement of a weight between versions of a run.

    ``versions`` is the number of versions from one to the other. None without a bound.
    """
    if grpo.outer is None:
        return movement_bound(grpo, versions)
    return outer_bound(grpo, grpo.outer, versions)


def check_outer(grpo: GrpoSection) -> None:
    """Raise ``ValueError`` for outer steps whose versions nodes could not compare."""
    rule = grpo.outer
    if rule is None or outer_bound(grpo, rule, 1) is not None:
        return
    if not is_bounded(grpo.adam_betas):
        raise ValueError(
            "grpo.outer: nodes have no bound on the movement of a weight; lower the first of "
            "grpo.adam_betas, or raise the second"
        )
    raise ValueError(
        "grpo.outer: nodes have no bound on the movement of a weight; lower grpo.weight_decay, "
        "grpo.learning_rate, grpo.updates_per_version, or inner_steps, learning_rate or momentum "
        "of grpo.outer"
    )
