"""Differences of words from a base in two bits each: none, one up or down, or more.

An optimiser step changes a bf16 weight nearly always by one value up or down. Four elements share a
byte, the first in the upper bits. Their differences are looked up in a table, so no list of
positions is needed for any share of changed elements.
"""

import numpy as np

from protocol.shardcast.encodings.planes import Plane, Positions, Words, ones
from protocol.shardcast.encodings.tensor_file import EncodingError

_DOWN, _FARTHER, _UP = 1, 2, 3
"""Zero: unchanged."""

_BITS = 2
_PER_BYTE = 8 // _BITS
_GATHER = np.uint32(0x40100401)
"""The product of this and a word of four numbers below four has all of them in its upper byte."""

_FIRST, _SECOND = np.uint8(0b10101010), np.uint8(0b01010101)
"""The higher and lower bit of each step in a byte."""


def _table(width: int) -> Words:
    """Return ``[byte, element]``: the differences that a byte encodes; zero for larger ones."""
    steps = np.arange(256)[:, None] >> np.array([6, 4, 2, 0]) & 3
    differences: Words = (steps == _UP).astype(f"<u{width}") - (steps == _DOWN)
    return differences


_TABLES = {width: _table(width) for width in (1, 2, 4, 8)}


def far_share(differences: Words) -> float:
    """Return the share of differences (wrapping) outside of -1, 0 and 1."""
    return float(np.count_nonzero(differences + differences.dtype.type(1) > 2) / len(differences))


def pack(differences: Words) -> Plane:
    """Return the steps of differences, packed in bytes; larger ones are only marked."""
    raised = differences + differences.dtype.type(1)
    steps = np.ones(octets(len(differences)) * _PER_BYTE, np.uint8)
    own = steps[: len(differences)]
    own[:] = raised  # 0, 1, 2 for down, unchanged, up, which are 1, 0, 3 below
    own |= -(raised > 2).view(np.uint8)  # shift and minimum are not vectorised in numpy
    own &= 3
    return (steps.view("<u4") * _GATHER >> np.uint32(24)).astype(np.uint8) ^ _SECOND


def octets(count: int) -> int:
    """Return the number of bytes for ``count`` elements."""
    return -(-count // _PER_BYTE)


def differences(told: Plane, count: int, width: int) -> Words:
    """Return the differences of ``count`` elements from their steps; zero for larger ones.

    Raises ``EncodingError`` if there are steps beyond ``count``.
    """
    result: Words = _TABLES[width].take(told, axis=0).reshape(-1)
    unused = len(result) - count
    if unused and told[-1] & (1 << _BITS * unused) - 1:
        raise EncodingError("steps beyond the block")
    return result[:count]


def moved(told: Plane) -> Positions:
    """Return the positions of changed elements."""
    return ones((told | told + told) & _FIRST) >> 1


def moved_farther(told: Plane) -> Positions:
    """Return the positions of elements that move by more than one value."""
    return ones(told & ~(told + told) & _FIRST) >> 1
