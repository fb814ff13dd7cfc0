import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.network.http.range_response import Resource, answer, parse_range

ETAG = b'"abc"'


def resource(length=100, etag=ETAG):
    return Resource(length, lambda _offset, _length: None, etag=etag)


def header(reply, name):
    return next((value for key, value in reply.headers if key == name), None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"bytes=0-0", (0, 1)),
        (b"bytes=0-", (0, 100)),
        (b"bytes=99-", (99, 1)),
        (b"bytes=10-19", (10, 10)),
        (b"bytes=90-1000", (90, 10)),
        (b"bytes=-10", (90, 10)),
        (b"bytes=-1000", (0, 100)),
    ],
)
def test_a_range_is_cut_where_the_resource_ends(value, expected):
    assert parse_range(value, 100) == expected
    reply = answer(resource(), [(b"range", value)])
    offset, length = expected
    assert (reply.status, reply.offset, reply.length) == (206, offset, length)
    assert header(reply, b"content-length") == b"%d" % length
    assert header(reply, b"content-range") == b"bytes %d-%d/100" % (offset, offset + length - 1)


@pytest.mark.parametrize("value", [b"bytes=100-", b"bytes=100-200", b"bytes=-0", b"bytes=9" * 2])
def test_what_lies_beyond_the_end_is_not_satisfied(value):
    reply = answer(resource(), [(b"range", value)])
    if parse_range(value, 100) is None:
        assert reply.status == 200
        return
    assert (reply.status, reply.length) == (416, 0)
    assert header(reply, b"content-range") == b"bytes */100"
    assert header(reply, b"content-length") == b"0"


@pytest.mark.parametrize(
    "value",
    [b"", b"bytes", b"bytes=", b"bytes=-", b"bytes=5-4", b"bytes=0-1,3-4", b"items=0-1",
     b"bytes= 0-1", b"bytes=+1-2", b"bytes=0x1-2", b"bytes=1-2-3", b"bytes=" + b"9" * 40 + b"-",
     b"bytes=\xd9\xa1-\xd9\xa2"],
)  # fmt: skip
def test_what_is_no_single_range_is_ignored(value):
    reply = answer(resource(), [(b"range", value)])
    assert (reply.status, reply.offset, reply.length) == (200, 0, 100)


@given(st.binary(max_size=40) | st.from_regex(rb"bytes=[0-9]{0,3}-[0-9]{0,3}", fullmatch=True),
       st.integers(1, 999))  # fmt: skip
@example(b"bytes=000-007", 8)
def test_every_range_is_within_the_resource_and_what_python_slices(value, total):
    reply = answer(resource(total), [(b"range", value)])
    data = bytes(total)
    if reply.status == 206:
        assert reply.offset >= 0 and reply.length >= 1 and reply.offset + reply.length <= total
        first, last = re.fullmatch(rb"bytes=([0-9]*)-([0-9]*)", value).groups()
        if first:
            stop = int(last) + 1 if last else total
            assert len(data[int(first) : stop]) == reply.length and reply.offset == int(first)
        else:
            assert len(data[-int(last) :]) == reply.length and reply.offset == total - reply.length
    else:
        assert (reply.status, reply.length) in ((200, total), (416, 0))


def test_conditions():
    match = [(b"if-none-match", b'"x", W/"abc"')]
    assert answer(resource(), match).status == 304
    assert answer(resource(), [(b"if-none-match", b"*")]).status == 304
    assert answer(resource(), [(b"if-none-match", b'"x"')]).status == 200
    assert answer(resource(etag=None), match).status == 200
    part = [(b"range", b"bytes=0-0")]
    assert answer(resource(), [*part, (b"if-range", ETAG)]).status == 206
    assert answer(resource(), [*part, (b"if-range", b"W/" + ETAG)]).status == 200
    assert answer(resource(), [*part, (b"if-range", b'"x"')]).status == 200
    assert answer(resource(etag=None), [*part, (b"if-range", ETAG)]).status == 200
    assert answer(resource(), [*part, *part]).status == 200
