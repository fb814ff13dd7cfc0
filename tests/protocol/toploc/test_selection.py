import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.toploc.field import PRIME
from protocol.toploc.selection import MODULUS_MIN, Selection, find_moduli, select_top
from tests.vectors import toploc_reference as reference

VARIANT = {np.uint16: "bf16", np.uint32: "fp32"}


def chosen(chunks, top_k):
    selection = select_top(chunks, top_k)
    rows = zip(selection.indices.tolist(), selection.counts.tolist(), strict=True)
    return [row[:count] for row, count in rows]


def expected(chunks, top_k):
    return [
        sorted(reference.top(chunk.tolist(), VARIANT[chunk.dtype.type], top_k)) for chunk in chunks
    ]


def of_indices(indices):
    return Selection(np.array([indices]), np.array([len(indices)]))


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 300), min_size=1, max_size=5),
    st.integers(1, 40),
    st.sampled_from([1, 2, 40, 2**14]),
    st.sampled_from([np.uint16, np.uint32]),
)
def test_selection_equals_sorting_with_many_and_few_ties(seed, sizes, top_k, levels, dtype):
    draw = np.random.default_rng(seed)
    sign = np.iinfo(dtype).max // 2 + 1
    chunks = [
        (draw.integers(0, levels, size) + sign * draw.integers(0, 2, size)).astype(dtype)
        for size in sizes
    ]
    assert chosen(chunks, top_k) == expected(chunks, top_k)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 20_001])
@pytest.mark.parametrize("levels", [1, 3, 300, 2**15])
def test_the_prefilter_of_big_chunks_changes_nothing(size, levels):
    chunks = [np.random.default_rng(size).integers(0, levels, size).astype(np.uint16)]
    assert chosen(chunks, 128) == expected(chunks, 128)


def test_ties_at_the_cut_go_to_the_lowest_index():
    chunk = np.full(163_840, 0x3F80, dtype=np.uint16)
    chunk[100_000] = 0x4000
    assert chosen([chunk], 128) == [[*range(127), 100_000]]


def test_the_sign_does_not_rank():
    assert chosen([np.array([0x3F80, 0xC000, 0x3F00], dtype=np.uint16)], 1) == [[1]]


def test_nan_and_infinity_rank_above_every_finite_value():
    chunk = np.array([0x7F7F, 0x7F80, 0xFFC1, 0xFF7F], dtype=np.uint16)
    assert chosen([chunk], 2) == [[1, 2]]


def test_unused_places_hold_index_zero():
    chunks = [np.array([1, 2], dtype=np.uint16), np.array([9, 8, 7, 6], dtype=np.uint16)]
    selection = select_top(chunks, 3)
    assert selection.indices.tolist() == [[0, 1, 0], [0, 1, 2]]
    assert selection.counts.tolist() == [2, 3]
    assert selection.used.tolist() == [[True, True, False], [True, True, True]]


def test_a_chunk_that_cannot_collide_has_the_largest_modulus():
    assert find_moduli(of_indices([0, PRIME - 1]), np.array([PRIME])).tolist() == [PRIME]


@given(st.lists(st.integers(0, 163_839), min_size=2, max_size=128, unique=True))
def test_the_modulus_is_the_largest_without_a_collision(indices):
    found = find_moduli(of_indices(indices), np.array([163_840])).tolist()
    assert found == [reference.modulus(indices)]


def test_rows_are_searched_independently():
    selection = Selection(np.array([[0, 65497], [0, 5], [0, 65496 * 2]]), np.array([2, 2, 2]))
    sizes = np.array([163_840] * 3)
    assert find_moduli(selection, sizes).tolist() == [65496, 65497, 65497]


def spread(count_far):
    """Differences of the two groups cover an interval from ``MODULUS_MIN`` upward."""
    near = list(range(181))
    return near + [MODULUS_MIN + 180 + 181 * i for i in range(count_far)]


def test_the_search_goes_down_to_its_end_and_then_refuses():
    covering = spread(181)
    assert covering[-1] - covering[0] >= PRIME
    with pytest.raises(ValueError, match="every modulus"):
        find_moduli(of_indices(covering), np.array([163_840]))
    # Without the first far index, differences 32768..32948 are missing.
    last = [i for i in covering if i != MODULUS_MIN + 180]
    assert find_moduli(of_indices(last), np.array([163_840])).tolist() == [MODULUS_MIN + 180]
