"""Which elements of a block are meant: ascending positions, as Rice codes of the gaps between them.

Where elements change as if drawn by lot, gaps are geometric, and a Rice code with the right
parameter takes 1 to 4 % more bits than their entropy. If nearly all are meant, the others are
coded; if neither few are meant nor few are not, a bit for each element is, as a byte plane: that
takes 1 to 2 % more bits than the entropy, and a quarter of the time. A gap is
``quotient * 2**k + remainder``: the quotients are unary in one string of bits, the remainders ``k``
strings, one for each of their bits, so that whole arrays are coded at once.
"""

import numpy as np
from numpy.typing import NDArray

from protocol.shardcast.encodings import planes
from protocol.shardcast.encodings.tensor_file import EncodingError

Positions = NDArray[np.int64]

HEAD_BYTES = 9
"""Parameter, number of positions, bytes of quotients (or of the plane)."""

_OTHERS = 0x80
"""Added to the parameter when the positions that are not meant are coded."""

_PARAMETER_MAX = 32

_PLANE = 0x40
"""In place of the parameter: a plane with a bit for each element follows."""

_PLANE_PART = 8
"""A plane is made where one element in so many is meant, and one in so many is not."""

_SPARSE_MIN, _SPARSE_MAX = 0.02, 0.1
"""Shares between which looking twice is faster, by up to 2.3 times (numpy 2.4, x86-64); from a
tenth on numpy does not guess."""


def of(meant: NDArray[np.bool_]) -> Positions:
    """Return where ``meant`` is true.

    As ``np.flatnonzero`` does, which guesses wrong at every position where a few percent are meant:
    there bytes of eight are looked through first, and then those that have any.
    """
    if not _SPARSE_MIN < np.count_nonzero(meant) / max(1, len(meant)) < _SPARSE_MAX:
        return np.flatnonzero(meant)
    eights = np.packbits(meant)
    some = np.flatnonzero(eights.view(np.bool_))
    places = np.flatnonzero(np.unpackbits(eights[some]).view(np.bool_))
    found: Positions = (some << 3)[places >> 3] + (places & 7)
    return found


def pack(meant: NDArray[np.bool_], positions: Positions) -> bytes:
    """Return the code of ``positions``, those where ``meant`` is true."""
    limit, count = len(meant), len(positions)
    if _PLANE_PART * min(count, limit - count) > limit:
        plane = planes.pack(np.packbits(meant))
        return b"".join([_head(_PLANE, count, len(plane)), plane])
    if count > limit // 2:
        return _packed(of(~meant), _OTHERS)
    return _packed(positions, 0)


def unpack(data: memoryview, limit: int) -> tuple[Positions, memoryview]:
    """Return positions below ``limit`` and the bytes after them; raises ``EncodingError``."""
    k, count, length = data[0] if data else 0, _number(data[1:5]), _number(data[5:HEAD_BYTES])
    if k == _PLANE and len(data) >= HEAD_BYTES + length:
        plane, rest = data[HEAD_BYTES : HEAD_BYTES + length], data[HEAD_BYTES + length :]
        return _found(planes.unpack(plane, -(-limit // 8), 1), limit, count), rest
    others, k = k & _OTHERS, k & ~_OTHERS
    if len(data) < HEAD_BYTES or k > _PARAMETER_MAX or count > limit:
        raise EncodingError("positions with an impossible head")
    # A bit for each, and as many more as gaps can hold: whatever is longer would take 72 times its
    # length to read.
    if length > -(-(count + (limit >> k)) // 8):
        raise EncodingError("positions with impossible gaps")
    row_bytes = -(-count // 8)
    end = HEAD_BYTES + length + k * row_bytes
    if len(data) < end:
        raise EncodingError("positions that end early")
    quotients = np.frombuffer(data[HEAD_BYTES : HEAD_BYTES + length], np.uint8)
    ends = _found(quotients, 8 * len(quotients), count)
    rows = np.frombuffer(data[HEAD_BYTES + length : end], np.uint8).reshape(k, row_bytes)
    # Gaps add up to positions: the quotients already have, as places of the ends of their codes.
    number = np.arange(count)
    positions = (ends - number << k) + number
    for first in range(0, k, 8):  # a byte of the remainders at a time
        remainders = np.zeros(count, np.uint8)
        for bit, row in enumerate(rows[first : first + 8]):
            remainders |= np.unpackbits(row, count=count) << bit
        positions += np.cumsum(remainders, dtype=np.int64) << first
    if count and not 0 <= positions[-1] < limit:
        raise EncodingError("positions beyond the block")
    return _others(positions, limit) if others else positions, data[end:]


def _found(bits: NDArray[np.uint8], limit: int, count: int) -> Positions:
    """Return where there are ones; ``EncodingError`` if it is not at ``count`` places."""
    places: Positions = np.flatnonzero(np.unpackbits(bits, count=limit).view(np.bool_))
    if len(places) != count:
        raise EncodingError("more or fewer positions than announced")
    return places


def _head(k: int, *lengths: int) -> bytes:
    return b"".join([bytes([k]), *(length.to_bytes(4, "little") for length in lengths)])


def _packed(positions: Positions, others: int) -> bytes:
    places = positions.astype(np.int32)
    gaps = places.copy()
    gaps[1:] -= places[:-1] + 1
    k = _parameter(gaps)
    ends = np.cumsum(gaps >> k, dtype=np.int64)
    ends += np.arange(len(ends))
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.bool_)
    bits[ends] = True
    quotients = np.packbits(bits).tobytes()
    rows = []
    for first in range(0, k, 8):  # a byte of the remainders at a time
        remainders = (gaps >> first).astype(np.uint8)
        rows += [np.packbits(remainders & 1 << bit).tobytes() for bit in range(min(8, k - first))]
    return b"".join([_head(k | others, len(positions), len(quotients)), quotients, *rows])


def _parameter(gaps: NDArray[np.int32]) -> int:
    """Return the parameter with the shortest code: near log2 of the mean gap times ln 2."""
    if not len(gaps):
        return 0
    guess = max(0, int(gaps.mean() * 0.6931).bit_length() - 1)
    near = range(guess, min(guess + 1, _PARAMETER_MAX) + 1)
    # All gaps together are shorter than a block, so sums need no more than 32 bits.
    return min(near, key=lambda k: int((gaps >> k).sum(dtype=np.int32)) + len(gaps) * k)


def _others(positions: Positions, limit: int) -> Positions:
    meant = np.zeros(limit, np.bool_)
    meant[positions] = True
    return of(~meant)


def _number(data: memoryview) -> int:
    return int.from_bytes(data, "little")
