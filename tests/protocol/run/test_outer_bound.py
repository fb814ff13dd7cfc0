"""Bound on the movement of a weight by outer steps, against sequences of bounded differences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.run.outer_bound import check_outer, difference_bound, outer_bound, version_bound
from protocol.run.sections import OuterSection
from protocol.run.toml import first_error
from protocol.run.training_bound import movement_bound
from tests.worlds.messages import run_manifest


def grpo_of(**values):
    made = {"learning_rate": 1e-4, "adam_betas": (0.9, 0.95), "steps": 1000, "weight_decay": 0.1}
    return run_manifest(grpo=made | values).grpo


def rule_of(inner_steps, learning_rate, momentum, trainers=1):
    return OuterSection(
        trainers=trainers, inner_steps=inner_steps, learning_rate=learning_rate, momentum=momentum
    )


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


rules = st.builds(rule_of, st.integers(1, 64), st.sampled_from([0.1, 0.7, 1.0]), st.floats(0, 0.97))

DECAYED = [grpo_of(weight_decay=decay, learning_rate=1e-5) for decay in (0.0, 0.1, 1.0)]

EXTREME = st.lists(st.sampled_from([-1.0, 1.0, 0.0]) | st.floats(-1, 1), min_size=1, max_size=60)


@given(
    rules,
    st.floats(-1e3, 1e3),
    EXTREME,
    st.integers(1, 4) | st.integers(1, 60),
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
    rule = rule_of(4, 0.7, momentum)
    bound = outer_bound(grpo_of(), rule, 1)
    *_, (before, after) = moved(rule, difference_bound(grpo_of(), rule), 0.0, [1.0] * 200)
    assert abs(after - before) >= 0.97 * (bound.step + bound.decay * abs(before))


def test_a_round_moves_a_weight_as_far_as_its_updates_do():
    grpo = grpo_of(updates_per_version=2)
    found, expected = difference_bound(grpo, rule_of(3, 1.0, 0.0)), movement_bound(grpo, 3)
    assert (found.updates, found.step) == (expected.updates, expected.step)
    assert expected.decay < found.decay < expected.decay + 1e-5


def test_without_a_bound_there_is_none():
    assert outer_bound(grpo_of(adam_betas=(0.9, 0.8)), rule_of(1, 1.0, 0.0), 1) is None
    heavy = grpo_of(learning_rate=1e-2, weight_decay=1.0)
    assert outer_bound(heavy, rule_of(1, 0.2, 0.5), 1) is None
    sharp = rule_of(1, 0.4, 0.0)
    assert outer_bound(heavy, sharp, 240) is not None
    assert outer_bound(heavy, sharp, 250) is None


HEAVY = grpo_of(learning_rate=1e-2, weight_decay=1.0)


@pytest.mark.parametrize("apart", [2, 30, 240])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_versions_far_apart_are_within_the_bound_and_near_it(apart, share):
    """Equal differences without momentum move a weight by one-step bounds, without its slack."""
    rule = rule_of(1, 0.4, 0.0)
    bound, weight = outer_bound(HEAVY, rule, apart), -share
    path = list(moved(rule, difference_bound(HEAVY, rule), weight, [1.0] * apart))
    reached = abs(path[-1][1] - weight)
    limit = bound.step + bound.decay * share
    assert 0.8 * limit <= reached <= limit


@given(rules, st.sampled_from(DECAYED), st.integers(1, 300))
def test_a_larger_distance_has_a_larger_bound(rule, grpo, apart):
    """And each rule that has a bound has one for 200 versions."""
    bound, next_bound = (outer_bound(grpo, rule, one) for one in (apart, apart + 1))
    if outer_bound(grpo, rule, 1) is None:
        assert bound is None
    elif apart < 200:
        assert bound.step < next_bound.step
        assert bound.decay < next_bound.decay <= 2


def test_a_run_is_bounded_by_its_outer_steps_or_by_its_optimiser():
    rule = rule_of(2, 0.7, 0.6)
    plain, outer = grpo_of(), grpo_of(outer=rule)
    assert version_bound(plain, 3) == movement_bound(plain, 3)
    assert version_bound(outer, 3) == outer_bound(plain, rule, 3)
    assert version_bound(outer, 3) != version_bound(plain, 3)


def outer_values(**values):
    return {"outer": {"trainers": 2} | values}


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (outer_values() | {"adam_betas": (0.9, 0.8)}, "lower the first of grpo.adam_betas"),
        (
            outer_values(momentum=0.9) | {"learning_rate": 1e-2},
            "lower grpo.weight_decay, grpo.learning_rate",
        ),
    ],
)
def test_a_manifest_without_a_bound_is_refused(values, advice):
    run_manifest(grpo={"learning_rate": 1e-2, "weight_decay": 0.0, "steps": 1000} | outer_values())
    with pytest.raises(ValidationError) as caught:
        grpo_of(**values)
    assert f"grpo.outer: nodes have no bound on the movement of a weight; {advice}" in first_error(
        caught.value
    )
    check_outer(run_manifest(grpo={"adam_betas": (0.9, 0.8)}).grpo)  # of a run without outer steps


@pytest.mark.parametrize(
    "values",
    [
        {"trainers": 0},
        {"trainers": 9},
        {"inner_steps": 0},
        {"inner_steps": 65},
        {"learning_rate": 0.0},
        {"learning_rate": 2.1},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"encoding": "int4"},
    ],
)
def test_a_rule_has_its_ranges(values):
    with pytest.raises(ValidationError):
        OuterSection(**{"trainers": 2} | values)


def test_a_manifest_without_outer_steps_has_no_key_for_them():
    assert "outer" not in run_manifest().model_dump(mode="json")["grpo"]
    rule = run_manifest(grpo={"weight_decay": 0.0} | outer_values()).model_dump()["grpo"]["outer"]
    assert rule == {
        "trainers": 2,
        "inner_steps": 2,
        "learning_rate": 0.7,
        "momentum": 0.6,
        "encoding": "int8",
    }
