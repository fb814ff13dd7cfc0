"""Bytes with length and identity but no content, so a thousand nodes can hold weights.

An ``Extent`` is a range of a file that is never materialised. It is a ``bytes`` that costs nothing
to cut, join or check; its digest is a hash of file and range.
"""

from collections.abc import Sequence

from protocol.core.crypto import digest
from protocol.core.types import Digest

_PATCH = b"patch/"
_POISONED = b"poisoned"


class Extent(bytes):
    """Bytes ``start`` to ``start + length`` of the file named by ``seed``."""

    seed: bytes
    start: int
    _length: int

    @classmethod
    def of(cls, seed: bytes, start: int, length: int) -> "Extent":
        """Return a range of a file."""
        extent = cls(b"extent")  # non-empty, so that it is true
        extent.seed, extent.start, extent._length = seed, start, length
        return extent

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self._length > 0

    def __getitem__(self, key: object) -> "Extent":  # type: ignore[override] # slices only
        if not isinstance(key, slice):
            raise TypeError("an extent has no single bytes")
        start, stop, step = key.indices(self._length)
        if step != 1:
            raise ValueError("an extent is cut in one piece")
        if start == 0 and stop == self._length:
            return self
        return Extent.of(self.seed, self.start + start, max(0, stop - start))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent) and self._identity == other._identity

    def __ne__(self, other: object) -> bool:
        return not self == other  # otherwise bytes' own, which finds all extents equal

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[bytes, int, int]:
        return (self.seed, self.start, self._length)

    @property
    def digest(self) -> Digest:
        """The stand-in for the digest of these bytes."""
        place = self.start.to_bytes(8, "big") + self._length.to_bytes(8, "big")
        return digest(b"extent/" + self.seed + place)


def digest_of(content: bytes) -> Digest:
    """Return the digest of bytes or of an extent."""
    return content.digest if isinstance(content, Extent) else digest(content)


def joined(pieces: Sequence[bytes]) -> bytes:
    """Return ``pieces`` as one: neighbours of one file form an extent again.

    Other combinations, as when a relay mixes in other bytes, become an extent of no file.
    """
    if len(pieces) == 1:
        return pieces[0]
    if not any(isinstance(piece, Extent) for piece in pieces):
        return b"".join(pieces)
    length = sum(map(len, pieces))
    first = pieces[0]
    if isinstance(first, Extent) and _contiguous(pieces):
        return Extent.of(first.seed, first.start, length)
    return Extent.of(digest(b"".join(map(digest_of, pieces))), 0, length)


def _contiguous(pieces: Sequence[bytes]) -> bool:
    end: tuple[bytes, int] | None = None
    for piece in pieces:
        if not isinstance(piece, Extent) or end not in (None, (piece.seed, piece.start)):
            return False
        end = (piece.seed, piece.start + len(piece))
    return True


def policy_digest(content: bytes) -> Digest:
    """Return the policy digest of a weights file."""
    if isinstance(content, Extent) and content.start == 0:
        return digest(b"policy/" + content.seed + len(content).to_bytes(8, "big"))
    return digest(b"no policy/" + digest(bytes(content)))


def poisoned_seed(seed: bytes) -> bytes:
    """Return the seed of weights that no training makes of the version before."""
    return seed[: -len(_POISONED)] + _POISONED


def is_poisoned(content: bytes) -> bool:
    """Return whether a weights file has such a seed."""
    return isinstance(content, Extent) and content.seed.endswith(_POISONED)


def patch_of(file: Extent, base: Digest, share: float) -> Extent:
    """Return the patch of a weights file against a base policy, with ``share`` of its size."""
    length = max(1, round(len(file) * share))
    return Extent.of(_PATCH + base + file.seed, 0, length)


def patched(patch: bytes, base: Digest, length: int) -> Extent | None:
    """Return the file that a patch of this base produces; None for any other patch."""
    if not isinstance(patch, Extent) or not patch.seed.startswith(_PATCH + base):
        return None
    return Extent.of(patch.seed[len(_PATCH + base) :], 0, length)
