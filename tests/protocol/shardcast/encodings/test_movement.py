"""Movements beyond a bound, against the rule written out with fractions."""

import math
import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.shardcast.encodings import block, stream
from protocol.shardcast.encodings.stream import Base, StreamDecoder
from protocol.shardcast.movement_bound import MovementBound
from tests.worlds.tensor_files import file_of

BASE_POLICY = digest(b"base")
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
UNITS = {"BF16": (7, -126), "F16": (10, -14), "F32": (23, -126)}
"""Bits of the mantissa, and least exponent of a normal number."""

BOUND = MovementBound(updates=1, step=1e-3, decay=1e-4)


def number(pattern, dtype):
    if dtype == "F16":
        return struct.unpack("<e", struct.pack("<H", pattern))[0]
    shift = 16 if dtype == "BF16" else 0
    return struct.unpack("<f", struct.pack("<I", pattern << shift))[0]


def unit(value, dtype):
    """Return the distance of a finite number to the next larger one."""
    bits, least = UNITS[dtype]
    exponent = math.frexp(value)[1] - 1 if value else least
    return Fraction(2) ** (max(exponent, least) - bits)


def exceeds(old, new, dtype, bound):
    """Return whether a movement exceeds the bound, or None if rounding decides."""
    before, after = number(old, dtype), number(new, dtype)
    if old == new or (math.isnan(before) and math.isnan(after)):
        return False
    if not (math.isfinite(before) and math.isfinite(after)):
        return True
    crosses = math.copysign(1, before) != math.copysign(1, after)
    units = unit(before, dtype), unit(after, dtype)
    limit = Fraction(bound.step) + Fraction(bound.decay) * (abs(Fraction(before)) + units[0])
    larger = max(abs(Fraction(before)), abs(Fraction(after)))
    limit += bound.updates * (larger / 2**22 + Fraction(2) ** -126)
    limit += sum(units) if crosses else max(units)
    moved = abs(Fraction(after) - Fraction(before))
    return None if abs(moved - limit) < limit / 2**50 else moved > limit


def file_in(dtype, *arrays):
    """Return a file with tensors ``t0``, ``t1`` and so on of one type."""
    file = file_of({f"t{place}": words for place, words in enumerate(arrays)})
    name = {2: b'"BF16"', 4: b'"F32"'}[arrays[0].itemsize]
    return file.replace(name, f'"{dtype}"'.encode().ljust(len(name)))


def source_of(file):
    return stream.source_of(lambda offset, length: file[offset : offset + length], len(file))


def decoded(old, new, bound, block_bytes=256):
    """Return the excess of a patch, after a check that it decodes."""
    base = Base(BASE_POLICY, source_of(old))
    decoder = StreamDecoder(base, 1 << 30, bound=bound)
    encoding = b"".join(stream.encode(source_of(new), base, block_bytes))
    assert b"".join(map(bytes, decoder.feed(encoding))) == new
    assert decoder.policy == stream.policy_of(source_of(new))
    return decoder.excess


def patterns(dtype):
    """Return bit patterns with the borders of all ranges among them."""
    width = 8 * WIDTHS[dtype]
    bits = UNITS[dtype][0]
    infinity = (1 << width - 1) - (1 << bits)
    borders = [0, 1, 1 << bits, infinity - 1, infinity, infinity + 1, (1 << width - 1) - 1]
    borders += [one + (1 << width - 1) for one in borders]
    moderate = st.floats(-2, 2, width=16).map(
        lambda one: (
            struct.unpack("<I", struct.pack("<f", one))[0] >> 32 - width
            if dtype != "F16"
            else struct.unpack("<H", struct.pack("<e", one))[0]
        )
    )
    return st.one_of(st.sampled_from(borders), moderate, st.integers(0, (1 << width) - 1))


@st.composite
def pairs(draw):
    """Return a type, and bit patterns before and after, most of them near each other."""
    dtype = draw(st.sampled_from(list(WIDTHS)))
    mask, old, new = (1 << 8 * WIDTHS[dtype]) - 1, [], []
    infinity = (mask >> 1) + 1 - (1 << UNITS[dtype][0])
    # A base is finite: a version with another value is never taken.
    finite = patterns(dtype).filter(lambda word: word & mask >> 1 < infinity)
    for _ in range(draw(st.integers(1, 40))):
        before = draw(finite)
        near = st.integers(-3, 3).map(lambda step, before=before: before + step & mask)
        old.append(before)
        new.append(draw(st.one_of(near, st.just(before ^ mask + 1 >> 1), patterns(dtype))))
    return dtype, old, new


@settings(max_examples=400, deadline=None)
@given(pairs(), st.sampled_from([1e-3, 1e-6, 1e-20, 0.5, 1e300]), st.sampled_from([0.0, 0.3]))
def test_the_rule_is_applied_to_every_element_whatever_the_block(pair, step, decay):
    dtype, old, new = pair
    bound = MovementBound(3, step, decay)
    truth = [exceeds(*words, dtype, bound) for words in zip(old, new, strict=True)]
    if None in truth:
        return
    files = [file_in(dtype, np.array(words, f"<u{WIDTHS[dtype]}")) for words in (old, new)]
    found = decoded(*files, bound)
    assert (found is not None) is any(truth)
    assert stream.excess_of(*map(source_of, files[::-1]), bound, 64) == found


@pytest.mark.parametrize("kind", [block.PATCH, block.DENSE, block.FULL])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_weight_in_a_block_of_any_kind_is_found_and_named(kind, place):
    rng = np.random.default_rng(1)
    old = rng.uniform(0.01, 0.02, 1000).astype("<f4").view("<u4") >> 16
    old = old.astype("<u2")
    new = old.copy()
    if kind == block.DENSE:
        new += 2
    elif kind == block.FULL:
        old = rng.integers(0, 0x3C80, 1000).astype("<u2") | rng.choice([0, 0x8000], 1000).astype(
            "<u2"
        )
        new[:] = 0x3C40
    else:
        new[::10] += 1
    bound = MovementBound(1, 0.05, 0.0)
    files = [file_in("BF16", words[:600], words[600:]) for words in (old, new)]
    assert block.encode(new, old)[0] == kind
    assert decoded(*files, bound, 4096) is None
    new[place] = 0x4000  # 2.0
    worst = decoded(files[0], file_in("BF16", new[:600], new[600:]), bound, 4096)
    assert worst.tensor == ("t0" if place < 600 else "t1")
    assert worst.ratio == pytest.approx(2 / 0.05, rel=0.3)
    assert str(worst).startswith(f"a weight of {worst.tensor} moves ")


def test_the_largest_of_several_movements_is_reported():
    old = np.full(3000, 0x3C00, "<u2")
    new = old.copy()
    new[[10, 1500, 2900]] = 0x4000, 0x4400, 0x4200
    worst = decoded(file_in("BF16", old), file_in("BF16", new), BOUND)
    assert worst.ratio > 512 / (1e-3 + 2**3) * 0.9


@pytest.mark.parametrize(
    ("old", "new"), [(0x0000, 0xFFFF), (0x8000, 0x7FFF), (0x7F7F, 0x7F80), (0xFF7F, 0xFF80)]
)
def test_a_step_of_one_value_to_no_number_is_found(old, new):
    """Patches name these like any other step of one value."""
    before = np.full(500, 0x3C00, "<u2")
    before[400] = old
    after = before.copy()
    after[400] = new
    worst = decoded(file_in("BF16", before), file_in("BF16", after), replace(BOUND, step=1e38))
    assert worst.ratio == math.inf
    assert decoded(file_in("BF16", after), file_in("BF16", after), BOUND) is None


def test_tensors_of_other_types_must_not_change():
    """Training moves no integers; a bf16 tensor of the same width may share their block."""
    old, new = np.arange(300, dtype="<u2"), np.arange(300, dtype="<u2")
    new[7] += 1
    mixed = file_in("BF16", old, old), file_in("BF16", new, new)
    kinds = [file.replace(b'"BF16"', b'"I16" ', 1) for file in mixed]
    assert decoded(*mixed, BOUND, 4096) is None
    worst = decoded(*kinds, BOUND, 4096)
    assert (worst.tensor, worst.ratio) == ("t0", math.inf)
    assert (
        decoded(kinds[0], file_in("BF16", old, new).replace(b'"BF16"', b'"I16" ', 1), BOUND) is None
    )


def test_files_with_the_same_tensors_in_another_order_are_compared_by_name():
    one, two = np.full(300, 0x3C00, "<u2"), np.full(200, 0x4000, "<u2")
    base = source_of(file_of({"a": one, "b": two}))
    assert stream.excess_of(source_of(file_of({"b": two, "a": one})), base, BOUND, 64) is None
    moved = two.copy()
    moved[-1] += 40
    worst = stream.excess_of(source_of(file_of({"b": moved, "a": one})), base, BOUND, 64)
    assert worst.tensor == "b"


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": np.zeros(8, "<u2")},
        {"a": np.zeros(8, "<u2"), "b": np.zeros(8, "<u2"), "c": np.zeros(1, "<u2")},
        {"a": np.zeros(8, "<u2"), "c": np.zeros(8, "<u2")},
        {"a": np.zeros(8, "<u2"), "b": np.zeros(8, "<u4")},
        {"a": np.zeros(8, "<u2"), "b": np.zeros((2, 4), "<u2")},
    ],
    ids=["one missing", "one more", "another name", "another type", "another shape"],
)
def test_a_file_with_other_tensors_exceeds_every_bound(tensors):
    base = source_of(file_of({"a": np.zeros(8, "<u2"), "b": np.zeros(8, "<u2")}))
    worst = stream.excess_of(source_of(file_of(tensors)), base, replace(BOUND, step=1e300))
    assert (worst.tensor, worst.ratio) == ("", math.inf)
    assert "does not hold the tensors" in str(worst)


masters = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-(2.0**-120), 2.0**-120, width=32),
    st.integers(-8, 8).map(lambda step: 2.0**-7 * (1 + step * 2.0**-12)),
)


@settings(max_examples=1000)
@given(masters, masters, st.integers(0, 2**16 - 1))
def test_two_masters_rounded_by_one_threshold_stay_within_the_bound(one, other, threshold):
    """Dithered rounding adds a threshold to the pattern; to nearest adds a half."""
    both = np.array([one, other], "<f4")
    words = ((both.view("<u4") + np.uint32(threshold)) >> 16).astype("<u2")
    moved = abs(Fraction(float(both[0])) - Fraction(float(both[1])))
    bound = MovementBound(1, float(moved), 0.0)
    assert exceeds(int(words[0]), int(words[1]), "BF16", bound) is not True
