from math import isclose

import pytest

from protocol.core.rng import Rng
from protocol.rollout.evaluation import difference, share


def passes(right, of):
    return [1.0] * right + [0.0] * (of - right)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
     (1, 29, 0.0061, 0.1718), (29, 29, 0.8830, 1.0)],
)  # fmt: skip
def test_the_interval_of_a_share_is_wilsons(right, of, low, high):
    """The first four are examples of Newcombe (1998, Statistics in Medicine 17:857)."""
    found = share(passes(right, of))
    assert found.value == right / of
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def paired(both, first, second, neither):
    before = passes(both + first, both + first) + passes(0, second + neither)
    after = [*passes(both, both + first), *passes(second, second + neither)]
    return before, after


def test_the_interval_of_a_paired_difference_is_newcombes():
    """His example of 50 patients, of whom 36, 12, 2 and 0 are in the four cells."""
    before, after = paired(36, 2, 12, 0)
    found = difference(before, after)
    assert isclose(found.value, 0.2)
    assert (round(found.low, 4), round(found.high, 4)) == (0.0569, 0.3404)
    other = difference(after, before)
    assert isclose(other.low, -found.high) and isclose(other.high, -found.low)


def test_problems_that_both_models_solve_alike_narrow_a_difference():
    alike, independent = paired(45, 5, 5, 45), paired(25, 25, 25, 25)
    widths = [found.high - found.low for found in (difference(*alike), difference(*independent))]
    assert widths[0] < widths[1] / 2
    same = difference(alike[0], alike[0])
    assert (same.value, round(same.low, 9), round(same.high, 9)) == (0, 0, 0)


def test_answers_that_repeat_each_other_count_once():
    once, always_alike = passes(30, 100), share(passes(30, 100), samples=8)
    assert isclose(always_alike.low, share(once).low)
    assert isclose(always_alike.high, share(once).high)


def test_independent_answers_count_each():
    draws = Rng(bytes(8))
    means = [sum(draws.uniform() < 0.3 for _ in range(8)) / 8 for _ in range(400)]
    found, all_of_them = share(means, samples=8), share(passes(960, 3200))
    width, least = found.high - found.low, all_of_them.high - all_of_them.low
    assert 0.9 * least < width < 1.2 * least


def test_problems_that_are_all_half_right_tell_no_more_than_their_number():
    assert share([0.5] * 50, samples=2) == share(passes(25, 50))


def test_nothing_has_no_interval():
    with pytest.raises(ValueError, match="of nothing"):
        share([])
