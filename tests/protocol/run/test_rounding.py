"""Dithered rounding: the rule on single numbers, and the thresholds that it uses."""

import struct
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.core.types import RunId
from protocol.run.policy import CHECK_VECTORS, LARGEST, NAN, rounded, threshold, threshold_keys
from protocol.toploc.sampling import noise_bits

RUN = RunId(bytes(32))
INFINITY, SIGN, HALF = 0x7F80_0000, 0x8000_0000, 0x8000

patterns = st.integers(0, 2**32 - 1)
thresholds = st.integers(0, 2**16 - 1)
magnitudes = st.integers(0, LARGEST)
"""Magnitudes between zero and the largest finite bf16 number."""


def value_of(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


@pytest.mark.parametrize(("byte", "tensor", "index", "expected"), CHECK_VECTORS)
def test_fixed_vectors(byte, tensor, index, expected):
    keys = threshold_keys(RunId(bytes([byte]) * 32), tensor)
    assert threshold(keys, index) == expected


@given(patterns, patterns, st.integers(0, 63))
def test_two_neighbours_share_an_integer_of_the_sampling_noise(first, second, word):
    import numpy as np  # noqa: PLC0415 - of the other implementation

    bits = noise_bits(np.array([[first, second]], dtype=np.uint32), 64)[0, word]
    drawn = [threshold((first, second), 2 * word + half) for half in (0, 1)]
    assert drawn[0] | drawn[1] << 16 == bits


@given(st.integers(0, 2**16 - 1), st.booleans(), thresholds)
@example(0x7F80, False, 0xFFFF)
@example(0x7F7F, True, 0xFFFF)
@example(0, True, 0xFFFF)
@example(1, False, 0xFFFF)
def test_a_number_on_the_grid_stays_bit_for_bit(high, negative, given_threshold):
    pattern = high << 16
    is_nan = high & 0x7FFF > INFINITY >> 16
    assert rounded(pattern, given_threshold) == (NAN if is_nan else high)


@given(magnitudes, magnitudes, thresholds)
def test_a_larger_master_never_gets_a_smaller_weight(one, other, given_threshold):
    less, more = sorted((one, other))
    assert rounded(less, given_threshold) <= rounded(more, given_threshold)
    mirrored = [rounded(SIGN | pattern, given_threshold) for pattern in (less, more)]
    assert mirrored == [HALF | rounded(pattern, given_threshold) for pattern in (less, more)]


@settings(max_examples=10)  # each tries all thresholds
@given(st.integers(0, LARGEST - 1), st.booleans())
@example(0x0000_0001, False)
@example(0x007F_FFFF, True)
@example(0x3F7F_8000, False)
def test_the_mean_over_all_thresholds_is_the_master(magnitude, negative):
    pattern = magnitude | negative * SIGN
    fraction = pattern & 0xFFFF
    ups = sum(rounded(pattern, one) != pattern >> 16 for one in range(2**16))
    assert ups == fraction
    down, up = ((pattern >> 16) + step << 16 for step in (0, 1))
    mean = value_of(down) + (value_of(up) - value_of(down)) * ups / 2**16
    assert mean == value_of(pattern)


@given(st.integers(LARGEST + 1, INFINITY - 1), thresholds)
def test_a_finite_master_never_gets_an_infinite_weight(magnitude, given_threshold):
    assert rounded(magnitude, given_threshold) == LARGEST >> 16
    assert rounded(SIGN | magnitude, given_threshold) == (SIGN | LARGEST) >> 16


@given(st.integers(INFINITY + 1, SIGN - 1), st.booleans(), thresholds)
@example(INFINITY + 1, False, 0)
@example(SIGN - 1, True, 0xFFFF)
def test_what_is_no_number_stays_none(magnitude, negative, given_threshold):
    assert rounded(magnitude | negative * SIGN, given_threshold) == NAN


def test_thresholds_are_uniform_and_differ_by_run_tensor_and_place():
    others = (threshold_keys(RunId(bytes([1]) * 32), "w"), threshold_keys(RUN, "v"))
    keys = threshold_keys(RUN, "w")
    drawn = [threshold(keys, index) / 2**16 for index in range(20_000)]
    # Four deviations of the mean of so many uniform numbers are 0.0082, of their squares 0.0084.
    assert fmean(drawn) == pytest.approx(0.5, abs=0.0082)
    assert fmean(one**2 for one in drawn) == pytest.approx(1 / 3, abs=0.0084)
    for begin, own in ((1, keys), (0, others[0]), (0, others[1])):
        other = [threshold(own, begin + index) / 2**16 - 0.5 for index in range(20_000)]
        product = fmean((a - 0.5) * b for a, b in zip(drawn, other, strict=True))
        assert abs(product) < 4 / 12 / 20_000**0.5
