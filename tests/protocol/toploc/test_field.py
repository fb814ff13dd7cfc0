import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.toploc.field import PRIME, evaluate, interpolate, inverses
from tests.vectors import toploc_reference as reference

EDGES = [0, 1, 2, 32767, 32768, PRIME - 2, PRIME - 1]


def u32(rows):
    return np.array(rows, dtype=np.uint32)


def horner(coefficients, x):
    total = 0
    for c in reversed(coefficients):
        total = (total * x + c) % PRIME
    return total


def test_the_modulus_is_the_published_prime():
    assert PRIME == 65497
    assert all(PRIME % d for d in range(2, 256))


def test_every_inverse_is_one():
    table = inverses().astype(np.int64)
    assert table.shape == (PRIME,)
    assert table[0] == 0
    assert (np.arange(1, PRIME) * table[1:] % PRIME == 1).all()


def test_a_negative_index_finds_the_inverse_of_the_negative():
    assert int(inverses()[-3]) * (PRIME - 3) % PRIME == 1


@st.composite
def point_sets(draw):
    k = draw(st.integers(1, 24))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        element = st.integers(0, PRIME - 1) | st.sampled_from(EDGES)
        xs = draw(st.lists(element, min_size=k, max_size=k, unique=True))
        ys = draw(st.lists(element, min_size=k, max_size=k))
        rows.append((xs, ys, draw(st.integers(1, k))))
    return rows


@settings(max_examples=100)
@given(point_sets())
def test_interpolation_equals_lagrange_in_python_integers(rows):
    points = u32([xs for xs, _, _ in rows])
    values = u32([ys for _, ys, _ in rows])
    before = points.copy(), values.copy()
    counts = np.array([count for _, _, count in rows])
    coefficients = interpolate(points, values, counts)
    for row, (xs, ys, count) in zip(coefficients.tolist(), rows, strict=True):
        padding = [0] * (len(xs) - count)
        assert row == reference.lagrange(xs[:count], ys[:count]) + padding
    for array, kept in zip((points, values), before, strict=True):
        assert (array == kept).all()


@given(
    st.lists(st.integers(0, PRIME - 1) | st.sampled_from(EDGES), min_size=1, max_size=40),
    st.lists(st.integers(0, PRIME - 1) | st.sampled_from(EDGES), min_size=1, max_size=9),
)
def test_evaluation_equals_python_integers(coefficients, xs):
    values = evaluate(u32([coefficients]), u32([xs]))
    assert values.tolist() == [[horner(coefficients, x) for x in xs]]


@pytest.mark.parametrize("element", [0, PRIME - 1])
def test_the_largest_elements_do_not_overflow(element):
    coefficients = [element] * 128
    values = evaluate(u32([coefficients]), u32([[PRIME - 1, 0, 1]]))
    assert values.tolist() == [[horner(coefficients, x) for x in (PRIME - 1, 0, 1)]]
    points = [PRIME - 1 - i for i in range(64)] + list(range(64))
    fitted = interpolate(u32([points]), u32([coefficients]), np.array([128]))
    assert fitted.tolist() == [[element] + [0] * 127]


def test_what_lies_behind_a_rows_count_is_ignored():
    points, values = u32([[5, 9, 0, 0]]), u32([[7, 8, 65496, 1]])
    fitted = interpolate(points, values, np.array([2])).tolist()
    assert fitted == [[*reference.lagrange([5, 9], [7, 8]), 0, 0]]
