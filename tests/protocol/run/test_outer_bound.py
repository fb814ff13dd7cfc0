"""Bound on the movement of a weight by outer steps, against sequences of bounded differences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.run.outer_bound import OuterRule, difference_bound, outer_bound
from protocol.run.training_bound import movement_bound
from tests.worlds.messages import run_manifest


def grpo_of(**values):
    made = {"learning_rate": 1e-4, "adam_betas": (0.9, 0.95), "steps": 1000, "weight_decay": 0.1}
    return run_manifest(grpo=made | values).grpo


def moved(rule, bound, weight, shares, loaded=0.0):
    """Yield a weight before and after each outer step by ``shares`` of its largest difference.

    ``loaded`` is the share of the largest momentum in the state that the first step begins with.
    """
    momentum = loaded * (bound.step + bound.decay * abs(weight)) / (1 - rule.momentum)
    for share in shares:
        difference = share * (bound.step + bound.decay * abs(weight))
        momentum = rule.momentum * momentum + difference
        after = weight - rule.learning_rate * (difference + rule.momentum * momentum)
        yield weight, after
        weight = after


rules = st.builds(
    OuterRule, st.integers(1, 64), st.sampled_from([0.1, 0.7, 1.0]), st.floats(0, 0.97)
)

DECAYED = [grpo_of(weight_decay=decay, learning_rate=1e-5) for decay in (0.0, 0.1, 1.0)]

EXTREME = st.lists(st.sampled_from([-1.0, 1.0, 0.0]) | st.floats(-1, 1), min_size=1, max_size=60)


@given(
    rules,
    st.floats(-1e3, 1e3),
    EXTREME,
    st.integers(1, 4),
    st.sampled_from(DECAYED),
    st.sampled_from([-1.01, 0.0, 1.01]),
)
def test_no_sequence_of_differences_exceeds_the_bound(rule, weight, shares, apart, grpo, loaded):
    bound = outer_bound(grpo, rule, apart)
    if bound is None:
        return
    path = list(moved(rule, difference_bound(grpo, rule), weight, shares, loaded))
    for number in range(len(path) - apart + 1):
        before, after = path[number][0], path[number + apart - 1][1]
        assert abs(after - before) <= bound.step + bound.decay * abs(before)


@pytest.mark.parametrize("momentum", [0.0, 0.6, 0.9])
def test_equal_differences_come_within_three_per_cent(momentum):
    rule = OuterRule(4, 0.7, momentum)
    bound = outer_bound(grpo_of(), rule, 1)
    *_, (before, after) = moved(rule, difference_bound(grpo_of(), rule), 0.0, [1.0] * 200)
    assert abs(after - before) >= 0.97 * (bound.step + bound.decay * abs(before))


def test_a_round_moves_a_weight_as_far_as_its_updates_do():
    grpo = grpo_of(updates_per_version=2)
    found, expected = difference_bound(grpo, OuterRule(3, 1.0, 0.0)), movement_bound(grpo, 3)
    assert (found.updates, found.step) == (expected.updates, expected.step)
    assert expected.decay < found.decay < expected.decay + 1e-5


def test_without_a_bound_there_is_none():
    assert outer_bound(grpo_of(adam_betas=(0.9, 0.8)), OuterRule(1, 1.0, 0.0), 1) is None
    heavy = grpo_of(learning_rate=1e-2, weight_decay=1.0)
    assert outer_bound(heavy, OuterRule(1, 0.4, 0.0), 1) is not None
    assert outer_bound(heavy, OuterRule(1, 0.4, 0.0), 2) is None
    assert outer_bound(heavy, OuterRule(1, 0.2, 0.5), 1) is None


@pytest.mark.parametrize("values", [(0, 1.0, 0.0), (1, 0.0, 0.0), (1, 1.0, 1.0), (1, 1.0, -0.1)])
def test_a_rule_has_its_ranges(values):
    with pytest.raises(ValueError, match="no outer steps"):
        OuterRule(*values)
