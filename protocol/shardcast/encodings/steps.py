"""How words differ from those of a base, in two bits each: by nothing, by one, or by more.

What an optimiser step changes in a bf16 weight is nearly always one place up or down. Four elements
share a byte, the first in the upper bits, and their differences are found in a table: no list of
positions is made, whatever share of them moves.
"""

import numpy as np

from protocol.shardcast.encodings import positions
from protocol.shardcast.encodings.planes import Plane, Words
from protocol.shardcast.encodings.positions import Positions
from protocol.shardcast.encodings.tensor_file import EncodingError

_DOWN, _FARTHER, _UP = 1, 2, 3
"""Zero stays."""

_BITS = 2
_PER_BYTE = 8 // _BITS
_GATHER = np.uint32(0x40100401)
"""A word of four numbers below four, times this, has all of them in its upper byte."""

_FIRST, _SECOND = np.uint8(0b10101010), np.uint8(0b01010101)
"""Bits of each step in a byte."""


def _table(width: int) -> Words:
    """Return ``[byte, element]``: the differences that a byte tells; zero for what goes farther."""
    steps = np.arange(256)[:, None] >> np.array([6, 4, 2, 0]) & 3
    differences: Words = (steps == _UP).astype(f"<u{width}") - (steps == _DOWN)
    return differences


_TABLES = {width: _table(width) for width in (1, 2, 4, 8)}


def far_share(differences: Words) -> float:
    """Return the share of differences, that wrap round, which are none of -1, 0 and 1."""
    return float(np.count_nonzero(differences + differences.dtype.type(1) > 2) / len(differences))


def pack(differences: Words) -> Plane:
    """Return the bytes that tell differences, but how far those go that go farther."""
    raised = differences + differences.dtype.type(1)
    steps = np.ones(octets(len(differences)) * _PER_BYTE, np.uint8)
    own = steps[: len(differences)]
    own[:] = raised  # 0, 1, 2 for down, stays, up, which are 1, 0, 3 below
    own |= -(raised > 2).view(np.uint8)  # no shift and no minimum: numpy does those byte by byte
    own &= 3
    return (steps.view("<u4") * _GATHER >> np.uint32(24)).astype(np.uint8) ^ _SECOND


def octets(count: int) -> int:
    """Return how many bytes so many elements take."""
    return -(-count // _PER_BYTE)


def differences(told: Plane, count: int, width: int) -> Words:
    """Return what bytes tell of ``count`` elements, in words; zero for what goes farther.

    Raises ``EncodingError`` when they tell of more.
    """
    result: Words = _TABLES[width].take(told, axis=0).reshape(-1)
    unused = len(result) - count
    if unused and told[-1] & (1 << _BITS * unused) - 1:
        raise EncodingError("steps beyond the block")
    return result[:count]


def moved(told: Plane) -> Positions:
    """Return the elements that do not stay."""
    return positions.ones((told | told + told) & _FIRST) >> 1


def moved_farther(told: Plane) -> Positions:
    """Return the elements that go farther."""
    return positions.ones(told & ~(told + told) & _FIRST) >> 1
