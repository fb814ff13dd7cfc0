"""Encoding of one block: consecutive elements of one tensor, alone or against a base version.

The difference of two float bit patterns of equal sign is the number of values between them. In a
bf16 weight that an optimiser step changes it is nearly always one. A patch encodes these steps in
two bits, and larger differences as byte planes. If most are larger, as in every step of float32,
the differences of all elements are byte planes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from protocol.shardcast.encodings import steps
from protocol.shardcast.encodings.planes import Plane, PlaneReader, PlaneWriter, Positions, Words
from protocol.shardcast.encodings.tensor_file import EncodingError

SAME, PATCH, FULL, DENSE = range(4)

HEAD_BYTES = 5
"""The kind of a block, and the number of bytes that follow."""

_OVERHEAD_BYTES = 5
"""More than the heads of uncompressed planes take, for each byte of an element."""

_SAMPLE_STEP = 16
_DENSE_SHARE = 0.5
"""If more of a sample move by more than one value, all differences are encoded as planes."""

_PATCH_PAYS = 0.8
"""A patch longer than this share of the elements is compared with the planes."""


def encode(words: Words, base: Words | None) -> bytes:
    """Return the shortest form of a block, with its head."""
    if base is None:
        return _full(words)
    writer, kind = PlaneWriter(), PATCH
    difference = words - base
    if steps.far_share(difference[::_SAMPLE_STEP]) > _DENSE_SHARE:
        kind = DENSE
        writer.words(_balanced(difference))
    else:
        told = steps.pack(difference)
        if not told.any():
            return _headed(SAME, writer)
        writer.plane(told)
        writer.words(_balanced(difference.take(steps.moved_farther(told))))
    patch = _headed(kind, writer)
    if len(patch) > _PATCH_PAYS * words.nbytes:
        return min(_full(words), patch, key=len)
    return patch


def body_bytes(head: bytes | bytearray, count: int, element_bytes: int) -> int:
    """Return the number of bytes after a head; ``EncodingError`` beyond any honest block."""
    length = int.from_bytes(head[1:HEAD_BYTES], "little")
    if length > element_bytes * (count + _OVERHEAD_BYTES):  # uncompressed planes
        raise EncodingError(f"a block of {length} bytes")
    return length


class FarMoves(NamedTuple):
    """Elements that move by more than one value: ascending positions, wrapping differences."""

    positions: Positions
    differences: Words


class DecodedBlock(NamedTuple):
    """Elements of a block; ``far`` is None if all may be more than one value from their base."""

    words: Words
    far: FarMoves | None = None


def decode(
    kind: int, body: memoryview, base: Words | None, count: int, element_bytes: int
) -> DecodedBlock:
    """Return the elements of a block; raises ``EncodingError``."""
    if kind == FULL:
        return DecodedBlock(_alone(body, count, element_bytes))
    if base is None:
        raise EncodingError("a block that needs a base, in an encoding without one")
    if kind == DENSE:
        return DecodedBlock(_moved(base, body))
    if _is_same(kind, body):
        return DecodedBlock(base, FarMoves(np.empty(0, np.int64), base[:0]))
    _, words, far = _differences(body, count, element_bytes)
    words += base
    return DecodedBlock(words, far)


def changes(
    kind: int,
    body: memoryview,
    base: Callable[[Positions], Words],
    count: int,
    element_bytes: int,
) -> tuple[Positions, Words]:
    """Return the positions that a patch changes in a block, ascending, and their new elements.

    ``base`` returns those of the base at given positions. Raises ``EncodingError``.
    """
    if kind == FULL:
        return np.arange(count), _alone(body, count, element_bytes)
    if kind == DENSE:
        every = np.arange(count)
        return every, _moved(base(every), body)
    if _is_same(kind, body):
        return np.empty(0, np.int64), np.empty(0, f"<u{element_bytes}")
    told, difference, _ = _differences(body, count, element_bytes)
    changed = steps.moved(told)
    return changed, base(changed) + difference.take(changed)


def _is_same(kind: int, body: memoryview) -> bool:
    if kind not in (SAME, PATCH) or (kind == SAME and len(body)):
        raise EncodingError("a block of an unknown kind")
    return kind == SAME


def _differences(body: memoryview, count: int, element_bytes: int) -> tuple[Plane, Words, FarMoves]:
    """Return the steps from the base, the differences, which wrap around, and the large ones."""
    reader = PlaneReader(body)
    told = reader.plane(steps.octets(count))
    difference = steps.differences(told, count, element_bytes)
    positions = steps.moved_farther(told)
    far = FarMoves(positions, _plain(reader.words(len(positions), element_bytes)))
    difference[positions] = far.differences
    reader.finish()
    return told, difference, far


def _moved(base: Words, body: memoryview) -> Words:
    """Return the elements of a dense block."""
    words = _plain(_alone(body, len(base), base.itemsize))
    words += base
    return words


def _alone(body: memoryview, count: int, element_bytes: int) -> Words:
    """Return the words of planes that fill ``body``."""
    reader = PlaneReader(body)
    words = reader.words(count, element_bytes)
    reader.finish()
    return words


def _balanced(difference: Words) -> Words:
    """Convert wrapping bytes to digits of -128 to 127, one byte each, in place.

    The upper bytes of small differences are then zero, whether negative or not.
    """
    middle = _middle(difference)
    difference += middle
    difference ^= middle
    return difference


def _plain(balanced: Words) -> Words:
    """Undo ``_balanced``, in place."""
    middle = _middle(balanced)
    balanced ^= middle
    balanced -= middle
    return balanced


def _middle(words: Words) -> np.unsignedinteger:
    """Return 128 in each byte of a word."""
    return words.dtype.type(int.from_bytes(b"\x80" * words.itemsize, "little"))


def _full(words: Words) -> bytes:
    writer = PlaneWriter()
    writer.words(words)
    return _headed(FULL, writer)


def _headed(kind: int, writer: PlaneWriter) -> bytes:
    length = sum(map(len, writer.parts))
    return b"".join([bytes([kind]), length.to_bytes(HEAD_BYTES - 1, "little"), *writer.parts])
