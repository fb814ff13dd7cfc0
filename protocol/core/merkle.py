"""Merkle tree of RFC 6962 (section 2.1) over BLAKE3, with audit paths.

Leaves and inner nodes are hashed with different prefixes, so an inner node cannot pass for a leaf.
A tree of ``n`` leaves is split at the largest power of two below ``n``. Level by level that is the
same as hashing neighbours in pairs, and moving the last node up unhashed if it has no neighbour.
"""

from collections.abc import Iterator, Sequence

from protocol.core.crypto import digest
from protocol.core.types import DIGEST_BYTES, Digest

LEAF, NODE = b"\x00", b"\x01"
"""Prefixes of hashed leaves and of hashed inner nodes."""


def leaf_hash(leaf: bytes) -> Digest:
    """Return the hash of a leaf, which may have any size."""
    return digest(LEAF + leaf)


def root_of(hashes: Sequence[bytes]) -> Digest:
    """Return the root over the hashes of all leaves; the digest of no bytes for an empty tree."""
    if not hashes:
        return digest(b"")
    *_, top = _levels(hashes)
    return Digest(top[0])


def path(hashes: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the audit path of a leaf: its neighbours from the leaf to the root.

    Raises ``IndexError`` if no leaf has that index.
    """
    if not 0 <= index < len(hashes):
        raise IndexError(f"leaf {index} of {len(hashes)}")
    neighbours = []
    for level in _levels(hashes):
        if index ^ 1 < len(level):
            neighbours.append(level[index ^ 1])
        index >>= 1
    return tuple(neighbours)


def root_from(leaf: bytes, index: int, size: int, neighbours: Sequence[bytes]) -> Digest | None:
    """Return the root that an audit path leads to, from the hash of its leaf.

    None if a tree of ``size`` leaves has no such leaf or a path of another length. Total: every
    argument may come from outside. Takes one hash for each neighbour, at most 64.
    """
    if not 0 <= index < size < 1 << 64 or any(len(one) != DIGEST_BYTES for one in neighbours):
        return None
    found, last, left = leaf, size - 1, list(neighbours)
    while last:
        if index ^ 1 <= last:
            if not left:
                return None
            pair = (left.pop(0), found) if index & 1 else (found, left.pop(0))
            found = digest(NODE + pair[0] + pair[1])
        index, last = index >> 1, last >> 1
    return Digest(found) if not left and len(found) == DIGEST_BYTES else None


def _levels(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the leaves, then each level above them up to the root."""
    level = hashes
    yield level
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        above: list[bytes] = [digest(NODE + left + right) for left, right in pairs]
        if len(level) % 2:
            above.append(level[-1])
        level = above
        yield level
