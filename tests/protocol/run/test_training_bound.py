"""Bound on the movement of a weight in AdamW, against optimisers that search beyond it."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.run.recipe import GrpoSection
from protocol.run.training_bound import (
    TOLERANCE,
    is_bounded,
    moment_ratio_max,
    movement_bound,
    step_ratio_max,
)
from tests.worlds.messages import run_manifest

BETAS = [(0.9, 0.95), (0.9, 0.99), (0.9, 0.999), (0.0, 0.5), (0.8, 0.7), (0.0, 0.0)]

every_betas = pytest.mark.parametrize("betas", BETAS)


def moments(gradients, betas):
    """Yield both moments after each gradient, by the definition of Kingma and Ba, algorithm 1."""
    first = second = 0.0
    for gradient in gradients:
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        yield first, second


def corrected(gradients, betas):
    """Return the ratio of the corrected moments in the last update."""
    updates = len(gradients)
    *_, (first, second) = moments(gradients, betas)
    mean = first / (1 - betas[0] ** updates)
    square = second / (1 - betas[1] ** updates)
    return abs(mean) / math.sqrt(square) if square else 0.0


def climbed(betas, updates, rng):
    """Return the largest ratio that a search over gradient sequences finds from a random start."""
    gradients = [rng.uniform(-1, 1) for _ in range(updates)]
    best, reach = corrected(gradients, betas), 2.0
    for _ in range(400):
        for place in range(updates):
            changed = list(gradients)
            changed[place] += rng.gauss(0, reach) * max(map(abs, gradients))
            if (ratio := corrected(changed, betas)) > best:
                gradients, best = changed, ratio
        reach = max(reach * 0.97, 1e-3)
    return best


@every_betas
@pytest.mark.parametrize("updates", [1, 2, 5, 12])
def test_a_search_over_gradients_ends_just_below_the_bound(betas, updates):
    bound = moment_ratio_max(betas, updates) / (1 - betas[0] ** updates)
    bound *= math.sqrt(1 - betas[1] ** updates)
    found = climbed(betas, updates, Random(updates))
    assert 0.97 * bound <= found <= bound * (1 + 1e-12)


@every_betas
def test_the_largest_step_is_that_of_growing_gradients(betas):
    updates = 200
    growth = betas[1] / betas[0] if betas[0] else 1e3
    gradients = [growth**place for place in range(40 if betas[0] == 0 else updates)]
    ratios = [corrected(gradients[: 1 + place], betas) for place in range(len(gradients))]
    assert max(ratios) <= step_ratio_max(betas, updates) * (1 + 1e-9)
    assert max(ratios) >= 0.99 * step_ratio_max(betas, updates)


def test_more_than_a_single_gradient_after_zeros():
    single = corrected([0.0] * 5000 + [1.0], (0.9, 0.999))
    assert single == pytest.approx(0.1 / math.sqrt(0.001), rel=0.01), "Kingma and Ba, section 2.1"
    assert step_ratio_max((0.9, 0.999), 5000) > 2 * single


@given(
    st.sampled_from(BETAS),
    st.lists(
        st.floats(-1e3, 1e3).map(lambda one: one if abs(one) > 1e-100 else 0.0),
        min_size=1,
        max_size=60,
    ),
)
def test_no_sequence_exceeds_either_bound(betas, gradients):
    for updates, (first, second) in enumerate(moments(gradients, betas), start=1):
        bound = moment_ratio_max(betas, updates) * math.sqrt(second)
        assert abs(first) <= bound * (1 + 1e-9)
        assert corrected(gradients[:updates], betas) <= step_ratio_max(betas, 60) * (1 + 1e-9)


@given(
    st.sampled_from([(0.9, 0.95), (0.9, 0.999), (0.5, 0.3)]),
    st.integers(0, 30),
    st.lists(st.floats(-10, 10), min_size=1, max_size=20),
)
def test_a_resume_from_the_most_extreme_moments_stays_within_the_bound(betas, age, gradients):
    second = 1.0
    first = moment_ratio_max(betas, age) * math.sqrt(second)
    for updates, gradient in enumerate(gradients, start=age + 1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        mean = abs(first) / (1 - betas[0] ** updates)
        size = math.sqrt(second / (1 - betas[1] ** updates))
        assert mean <= size * step_ratio_max(betas, 50) * (1 + 1e-9)


@every_betas
def test_the_ratio_after_any_number_of_updates_is_that_of_many(betas):
    limit = moment_ratio_max(betas, None)
    assert limit == pytest.approx(moment_ratio_max(betas, 100_000))
    assert moment_ratio_max(betas, 3) <= limit * (1 + 1e-12)


def test_before_the_first_update_there_are_no_moments():
    assert moment_ratio_max((0.9, 0.95), 0) == 0
    assert step_ratio_max((0.9, 0.95), 0) == 0


@pytest.mark.parametrize("betas", [(0.9, 0.8), (0.99, 0.9), (0.9, 1.0), (1.0, 1.0), (0.5, 0.0)])
def test_rates_without_a_bound(betas):
    assert not is_bounded(betas)
    assert step_ratio_max(betas, 10) == moment_ratio_max(betas, 10) == math.inf
    assert moment_ratio_max(betas, None) == math.inf
    grpo = run_manifest(grpo={"adam_betas": betas}).grpo
    assert movement_bound(grpo, 1) is None


def grpo_of(**values) -> GrpoSection:
    made = {"learning_rate": 1e-5, "weight_decay": 0.1, "adam_betas": (0.9, 0.99), "steps": 1000}
    return run_manifest(grpo=made | {"updates_per_version": 2} | values).grpo


def test_the_bound_counts_the_updates_of_all_versions():
    bound = movement_bound(grpo_of(), 3)
    assert bound.updates == 6
    assert bound.step == pytest.approx(6e-5 * TOLERANCE * step_ratio_max((0.9, 0.99), 2000))
    assert bound.decay == pytest.approx(6e-6)
    assert movement_bound(grpo_of(learning_rate=1.0, weight_decay=1.0), 3).decay == 1


def test_the_bound_is_the_same_number_on_every_machine():
    assert step_ratio_max((0.9, 0.95), 50).hex() == "0x1.1ff6587a704d1p+0"
    assert step_ratio_max((0.9, 0.99), 4096).hex() == "0x1.2c2fc595456a5p+1"
    assert step_ratio_max((0.9, 0.999), 4096).hex() == "0x1.cd6b5ac092ccap+2"
