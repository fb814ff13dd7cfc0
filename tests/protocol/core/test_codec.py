import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import DEPTH_MAX, decode, encode
from protocol.core.faults import Fault
from protocol.core.types import Role

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def refused(data: bytes) -> str:
    result = decode(data, bytes_max=1000)
    assert isinstance(result, Fault), result
    return result.code


@given(VALUES)
def test_what_is_encoded_comes_back_with_its_types(value):
    back = decode(encode(value), bytes_max=10_000)
    assert repr(back) == repr(_sorted(value))


def _sorted(value):
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return tuple(map(_sorted, value)) if isinstance(value, tuple) else value


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_and_what_passes_is_canonical(data):
    value = decode(data, bytes_max=1000)
    if not isinstance(value, Fault):
        assert encode(value) == data


@given(VALUES, st.data())
def test_a_changed_byte_never_gives_the_same_value(value, data):
    good = encode(value)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    back = decode(bad, bytes_max=10_000)
    assert isinstance(back, Fault) or repr(back) != repr(decode(good, bytes_max=10_000))


@pytest.mark.parametrize(
    "header", [b"\xdd\x00\x00\x0f\xa0", b"\xdc\x0f\xa0", b"\xdf\x00\x00\x0f\xa0"]
)
def test_what_is_only_announced_takes_no_memory(header):
    data = (header * 4096)[:4096]
    tracemalloc.start()
    assert isinstance(decode(data, bytes_max=4096), Fault)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 40 * len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xcc\x05", "not-canonical"),  # 5 as uint8
        (b"\xd1\x00\x05", "not-canonical"),  # 5 as int16
        (b"\xca" + struct.pack(">f", 0.5), "not-canonical"),  # float32
        (b"\xd9\x01a", "not-canonical"),  # "a" as str8
        (b"\xdc\x00\x01\x05", "not-canonical"),  # [5] as array16
        (b"\x82\xa1b\x01\xa1a\x02", "not-canonical"),  # keys b, a
        (b"\x82\xa1a\x01\xa1a\x01", "not-canonical"),  # the key a twice
        (b"\x81\x01\x01", "undecodable"),  # an integer as key
        (b"\x81\xc4\x01a\x01", "undecodable"),  # bytes as key
        (b"\xd4\x01\x00", "not-canonical"),  # an extension
        (msgpack.packb(msgpack.Timestamp(1)), "undecodable"),
        (b"\xd6\xff\x00\x00\x00", "undecodable"),  # a timestamp cut short
        (b"\xcb" + struct.pack(">d", float("nan")), "undecodable"),
        (b"\xcb" + struct.pack(">d", float("-inf")), "undecodable"),
        (b"\xa2\xff\xfe", "undecodable"),  # not UTF-8
        (b"\xa3\xed\xa0\x80", "undecodable"),  # a lone surrogate
        (b"\xc1", "undecodable"),  # unused byte
        (b"", "undecodable"),
        (b"\x05\x05", "undecodable"),  # trailing bytes
        (b"\xdd\xff\xff\xff\xff", "undecodable"),  # claims four thousand million items
        (b"\xc6\xff\xff\xff\xff", "undecodable"),
    ],
)
def test_another_spelling_is_refused(data, reason):
    assert refused(data) == reason


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
@pytest.mark.parametrize("depth", [DEPTH_MAX, 300, 100_000])
def test_nesting_bombs_are_refused_without_recursion(opening, depth):
    data = opening * depth + b"\xc0"
    assert isinstance(decode(data, bytes_max=10**6), Fault)


def test_nesting_is_accepted_up_to_the_limit():
    data = b"\x91" * (DEPTH_MAX - 1) + b"\xc0"
    assert encode(decode(data, bytes_max=100)) == data


def test_oversize_is_refused_before_decoding():
    assert decode(b"\xa5hello", bytes_max=6) == "hello"
    assert decode(b"\xa5hello", bytes_max=5).code == "oversize"


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {1: 2},
        {b"a": 1},
        {1, 2},
        object(),
        "\ud800",
        2**64,
        -(2**63) - 1,
    ],
)
def test_what_has_no_canonical_form_raises(value):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        encode(value)


def test_true_is_not_one_and_one_is_not_one_point_zero():
    assert len({encode(True), encode(1), encode(1.0)}) == 3
    assert decode(encode(True), bytes_max=9) is True
    assert type(decode(encode(1), bytes_max=9)) is int


def test_an_enumeration_is_spelled_as_its_value():
    assert encode([Role.RELAY]) == encode(["relay"])
