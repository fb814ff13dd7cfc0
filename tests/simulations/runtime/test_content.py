"""Extents behave like the bytes that they stand for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.runtime.content import Extent, digest_of, joined

SEED = b"file"
LENGTH = 1000
CUTS = st.lists(st.integers(0, LENGTH), max_size=6)


@given(CUTS)
def test_a_file_cut_and_joined_is_the_file(cuts):
    whole, edges = Extent.of(SEED, 0, LENGTH), sorted({0, LENGTH, *cuts})
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges)]
    assert joined(pieces) == whole
    assert digest_of(joined(pieces)) == digest_of(whole)
    assert sum(map(len, pieces)) == LENGTH


@given(st.tuples(*[st.integers(-50, 1200)] * 2), st.tuples(*[st.integers(-50, 1200)] * 2))
def test_a_cut_of_a_cut_is_where_it_would_be_in_bytes(first, second):
    real = bytes(value % 251 for value in range(LENGTH))
    content = Extent.of(SEED, 0, LENGTH)[slice(*first)][slice(*second)]
    expected = real[slice(*first)][slice(*second)]
    assert len(content) == len(expected)
    assert bool(content) == bool(expected)
    if expected:
        assert real[content.start : content.start + len(content)] == expected


@pytest.mark.parametrize(
    "other", [Extent.of(b"other", 0, LENGTH), Extent.of(SEED, 1, LENGTH), Extent.of(SEED, 0, 999)]
)
def test_extents_of_other_files_places_and_lengths_differ(other):
    extent = Extent.of(SEED, 0, LENGTH)
    assert extent != other
    assert digest_of(extent) != digest_of(other)
    assert extent == Extent.of(SEED, 0, LENGTH)
    assert hash(extent) == hash(Extent.of(SEED, 0, LENGTH))


def test_what_does_not_fit_together_is_no_part_of_a_file():
    first, second = Extent.of(SEED, 0, 500), Extent.of(SEED, 500, 500)
    whole = joined([first, second])
    for wrong in ([second, first], [first, bytes(500)], [first, Extent.of(b"other", 500, 500)]):
        other = joined(wrong)
        assert len(other) == LENGTH
        assert other != whole
        assert digest_of(other) == digest_of(joined(wrong)), "the same pieces make the same"
    assert joined([b"a", b"b"]) == b"ab"


def test_an_extent_is_cut_in_one_piece_and_has_no_single_bytes():
    extent = Extent.of(SEED, 0, LENGTH)
    with pytest.raises(TypeError):
        extent[0]
    with pytest.raises(ValueError, match="one piece"):
        extent[::2]
