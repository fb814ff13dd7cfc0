"""Range responses: RFC 9110's conditional and range requests, without I/O."""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from node.storage.files import FilePart

Header = tuple[bytes, bytes]
"""Name in lower case, value."""

BODY = "prime-node.body"
"""ASGI extension: a function that sends part of a body (bytes or a ``FilePart``). It sends as much
as the socket accepts, and returns that count. The caller ends the body by standard ASGI."""

_BYTE_RANGE = re.compile(rb"bytes=(?:([0-9]{1,19})-([0-9]{0,19})|-([0-9]{1,19}))")


@dataclass(frozen=True, slots=True)
class Resource:
    """Content of a path: ``length`` bytes; ``read`` yields a range from an offset.

    ``read`` yields bytes or file parts.
    """

    length: int
    read: Callable[[int, int], AsyncGenerator[bytes | FilePart, None]]
    etag: bytes | None = None
    """Strong validator; None if unknown."""
    content_type: bytes = b"application/octet-stream"
    caching: bytes = b"no-cache"


@dataclass(frozen=True, slots=True)
class RangeResponse:
    """Status and headers; ``length`` bytes of the resource from ``offset`` follow."""

    status: int
    headers: tuple[Header, ...]
    offset: int = 0
    length: int = 0


def answer(resource: Resource, headers: Sequence[Header]) -> RangeResponse:
    """Return the response to a GET with these headers; HEAD omits the bytes.

    Invalid and multiple ranges are ignored, as RFC 9110 (14.2) allows.
    """
    fixed = _fixed_headers(resource)
    if resource.etag is not None and _matches(_values(headers, b"if-none-match"), resource.etag):
        return RangeResponse(304, fixed)
    total = resource.length
    wanted = _wanted_range(resource, headers)
    if wanted is None:
        whole = (*fixed, (b"content-length", b"%d" % total))
        return RangeResponse(200, whole, 0, total)
    offset, length = wanted
    if length <= 0:
        none = (b"content-range", b"bytes */%d" % total), (b"content-length", b"0")
        return RangeResponse(416, (*fixed, *none))
    part = (
        (b"content-range", b"bytes %d-%d/%d" % (offset, offset + length - 1, total)),
        (b"content-length", b"%d" % length),
    )
    return RangeResponse(206, (*fixed, *part), offset, length)


def parse_range(value: bytes, total: int) -> tuple[int, int] | None:
    """Return offset and length of a single range in ``total`` bytes.

    None if invalid; a length of 0 or less if the range starts beyond the end.
    """
    match = _BYTE_RANGE.fullmatch(value)
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        length = min(int(suffix), total)
        return total - length, length
    offset = int(first)
    stop = min(int(last) + 1, total) if last else total
    if last and int(last) < offset:
        return None
    return offset, stop - offset


def _fixed_headers(resource: Resource) -> tuple[Header, ...]:
    tag = () if resource.etag is None else ((b"etag", resource.etag),)
    return (
        *tag,
        (b"content-type", resource.content_type),
        (b"cache-control", resource.caching),
        (b"accept-ranges", b"bytes"),
    )


def _wanted_range(resource: Resource, headers: Sequence[Header]) -> tuple[int, int] | None:
    ranges, conditions = _values(headers, b"range"), _values(headers, b"if-range")
    if len(ranges) != 1 or (conditions and conditions != [resource.etag]):
        return None
    return parse_range(ranges[0], resource.length)


def _values(headers: Sequence[Header], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _matches(conditions: list[bytes], etag: bytes) -> bool:
    """Return whether ``If-None-Match`` lists ``etag``; weak comparison (RFC 9110, 13.1.2)."""
    tags = [tag.strip().removeprefix(b"W/") for line in conditions for tag in line.split(b",")]
    return etag in tags or b"*" in tags
