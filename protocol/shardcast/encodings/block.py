"""One block: consecutive elements of one tensor, alone or against those of a base version.

Bit patterns of floats are mapped to integers of the same order, so that the difference of
neighbours is one: what an optimiser step changes in a bf16 weight is nearly always that. A patch is
made of layers: which elements differ, with the signs of their differences; which of those differ by
more than one; which of those by more than two; and so on, while that leaves elements out. What
remains of the sizes are byte planes. Where most elements differ, as in every step of float32, the
differences of all are byte planes.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from protocol.shardcast.encodings import planes, positions
from protocol.shardcast.encodings.planes import Words
from protocol.shardcast.encodings.positions import Positions
from protocol.shardcast.encodings.tensor_file import EncodingError

SAME, PATCH, FULL, DENSE = range(4)

HEAD_BYTES = 5
"""The kind of a block, and how many bytes follow."""

_LAYERS_MAX = 4
_LAYER_PAYS = 0.98
"""A layer of which more elements remain than this says nothing."""

_PATCH_PAYS = 0.8
"""A patch longer than this share of the elements is compared with the planes."""


def encode(words: Words, base: Words | None) -> bytes:
    """Return the shortest form of a block, with its head."""
    if base is None:
        return _headed(FULL, planes.pack(words))
    differs = words != base
    count = np.count_nonzero(differs)
    if not count:
        return _headed(SAME, b"")
    if 2 * count > len(words):
        kind, patch = DENSE, planes.pack(_folded(ordered(words) - ordered(base)))
    else:
        kind, patch = PATCH, _patch(words, base, differs)
    if len(patch) > _PATCH_PAYS * words.nbytes:
        full = planes.pack(words)
        if len(full) <= len(patch):
            return _headed(FULL, full)
    return _headed(kind, patch)


def body_bytes(head: bytes | bytearray, count: int, element_bytes: int) -> int:
    """Return how many bytes follow a head; ``EncodingError`` when no honest block is so long."""
    length = int.from_bytes(head[1:HEAD_BYTES], "little")
    if length > element_bytes * (count + planes.HEAD_BYTES):  # the planes as they are
        raise EncodingError(f"a block of {length} bytes")
    return length


def decode(
    kind: int, body: memoryview, base: Words | None, count: int, element_bytes: int
) -> Words:
    """Return the elements of a block; raises ``EncodingError``."""
    if kind == FULL:
        return planes.unpack(body, count, element_bytes)
    if base is None:
        raise EncodingError("a block that needs a base, of a version that names none")
    if kind == DENSE:
        return _moved(base, body)
    changed, values = changes(kind, body, base.take, count, element_bytes)
    if not len(changed):
        return base
    words = base.copy()
    words[changed] = values
    return words


def changes(
    kind: int,
    body: memoryview,
    base: Callable[[Positions], Words],
    count: int,
    element_bytes: int,
) -> tuple[Positions, Words]:
    """Return which elements of a block a patch sets, ascending, and to what.

    ``base`` returns those of the base at given positions. Raises ``EncodingError``.
    """
    if kind == FULL:
        return np.arange(count), planes.unpack(body, count, element_bytes)
    if kind == DENSE:
        every = np.arange(count)
        return every, _moved(base(every), body)
    if kind == SAME and not len(body):
        return np.empty(0, np.int64), np.empty(0, f"<u{element_bytes}")
    if kind != PATCH:
        raise EncodingError("a block of an unknown kind")
    changed, difference = _differences(body, count, element_bytes)
    return changed, _unordered(ordered(base(changed)) + difference)


def _patch(words: Words, base: Words, differs: NDArray[np.bool_]) -> bytes:
    changed = positions.of(differs)
    difference = ordered(words.take(changed))
    difference -= ordered(base.take(changed))  # wraps round
    negative = difference >> difference.dtype.type(difference.itemsize * 8 - 1)
    rest = _negated(difference, negative)
    rest -= 1
    layers: list[bytes] = []
    while len(layers) < _LAYERS_MAX:
        exceeds = rest != 0
        larger = positions.of(exceeds)
        if len(larger) > _LAYER_PAYS * len(rest):
            break
        layers.append(positions.pack(exceeds, larger))
        rest = rest[larger] - 1
    head = [positions.pack(differs, changed), np.packbits(negative.astype(np.uint8)).tobytes()]
    return b"".join([*head, bytes([len(layers)]), *layers, planes.pack(rest)])


def _differences(body: memoryview, count: int, element_bytes: int) -> tuple[Positions, Words]:
    """Return which elements differ from the base, and by how much, as integers that wrap round."""
    changed, body = positions.unpack(body, count)
    sign_bytes = -(-len(changed) // 8)
    if len(body) <= sign_bytes or body[sign_bytes] > _LAYERS_MAX:
        raise EncodingError("signs that end early, or more layers than there are")
    negative = np.unpackbits(np.frombuffer(body[:sign_bytes], np.uint8), count=len(changed))
    layers, body = body[sign_bytes], body[sign_bytes + 1 :]
    meant = [changed]
    for _ in range(layers):
        larger, body = positions.unpack(body, len(meant[-1]))
        meant.append(larger)
    difference = planes.unpack(body, len(meant[-1]), element_bytes) + 1
    for among, larger in reversed(list(pairwise(meant))):
        layer = np.ones(len(among), difference.dtype)
        layer[larger] = difference + 1
        difference = layer
    return changed, _negated(difference, negative.astype(difference.dtype))


def _moved(base: Words, body: memoryview) -> Words:
    """Return the elements of a dense block."""
    difference = _unfolded(planes.unpack(body, len(base), base.itemsize))
    difference += ordered(base)
    return _unordered(difference)


def _folded(difference: Words) -> Words:
    """Return twice the size of each difference, less one where it is negative.

    So the upper bytes of small ones are zero; works in place.
    """
    ones = _signs(difference)
    difference <<= 1
    difference ^= ones
    return difference


def _unfolded(folded: Words) -> Words:
    """Undo ``_folded``, in place."""
    ones = -(folded & 1)
    folded >>= 1
    folded ^= ones
    return folded


def _negated(numbers: Words, negative: Words) -> Words:
    """Return the numbers, negated where ``negative`` is one and not zero, without a branch."""
    ones = -negative
    result = numbers ^ ones
    result -= ones
    return result


def _signs(words: Words) -> Words:
    """Return all ones where the upper bit is set, else zero."""
    signed = words.view(f"<i{words.itemsize}")
    signs: Words = (signed >> (8 * words.itemsize - 1)).view(words.dtype)
    return signs


def ordered(words: Words) -> Words:
    """Map bit patterns of floats (sign and magnitude) to integers of the same order."""
    mask = _signs(words)
    mask |= words.dtype.type(1 << words.itemsize * 8 - 1)
    mask ^= words  # in place: new pages for each step would take longer than it
    return mask


def _unordered(words: Words) -> Words:
    kind = words.dtype.type
    top = kind(1 << words.itemsize * 8 - 1)
    mask = words >> kind(words.itemsize * 8 - 1)
    mask -= kind(1)
    mask |= top
    mask ^= words
    return mask


def _headed(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(HEAD_BYTES - 1, "little") + body
