"""Byte planes: words split into their first bytes, second bytes and so on, packed separately.

The upper bytes of weights and of their changes repeat and compress; the lower ones are noise, on
which zstd would only spend time. If most bytes are zero, Huffman codes waste fractions of a bit,
and zstd searches for repetitions that gain little. Then a bit per byte marks the non-zero bytes,
itself encoded as a plane, and only those follow. For a block of random steps, nested planes take at
most 10 % more than the entropy if half a percent move or more.
"""

import math

import numpy as np
import zstandard
from numpy.typing import NDArray

from protocol.shardcast.encodings.tensor_file import EncodingError

Words = NDArray[np.unsignedinteger]
"""``[count]``: bit patterns of elements as unsigned integers of 1, 2, 4 or 8 bytes."""

Plane = NDArray[np.uint8]

_ZERO, _RAW, _ZSTD, _SPARSE = range(4)

LENGTH_BYTES = 4
"""Length of the field before a zstd frame; other planes have a known length."""

SPARSE_BYTES_MIN = 64
"""A shorter plane is never sparse, which bounds the nesting."""

_FAST = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=18, hash_log=6, min_match=7, target_length=0
)
"""Planes compress by byte frequencies. With almost no search for repetitions the upper bytes of
float32 differences took a quarter of level 1's time, and 3 % fewer bytes."""

_SAMPLE_BYTES = 8192
_TIMES_LOG = np.array([count * math.log2(count or 1) for count in range(2 * _SAMPLE_BYTES)])
"""``n * log2(n)`` of every possible count in a sample: logarithms would take most of the time."""

_NOISE_BITS = 7.2
"""A sample above this entropy is not compressed: Huffman codes would save less than a tenth of the
plane, and for float32 take a quarter of the total time."""

Positions = NDArray[np.int64]

_MANY = 0.57
"""Share of bytes with a set bit, as when a tenth of random bits are set. Above it numpy's
``flatnonzero`` works without branches (2.4, x86-64). Below it would branch, mispredict at every set
bit, and take up to 2.3 times as long as searching for bytes first."""


def ones(bits: NDArray[np.uint8]) -> Positions:
    """Return the positions of set bits, ascending; the first bit of a byte is the highest."""
    occupied = bits != 0
    if np.count_nonzero(occupied) > _MANY * len(bits):
        return np.flatnonzero(np.unpackbits(bits).view(np.bool_))
    some = np.flatnonzero(occupied)
    places = np.flatnonzero(np.unpackbits(bits[some]).view(np.bool_))
    found: Positions = (some << 3)[places >> 3]
    found += places & 7
    return found


class PlaneWriter:
    """Packs one plane after another into ``parts``."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=_FAST)
        self.parts: list[bytes | memoryview] = []

    def words(self, words: Words) -> None:
        """Add the planes of little-endian words, the lowest first."""
        self.plane(words.astype(np.uint8))
        for place in range(1, words.itemsize):
            self.plane((words >> words.dtype.type(8 * place)).astype(np.uint8))

    def plane(self, plane: Plane) -> None:
        """Add a plane; the caller must not change it afterwards."""
        count = np.count_nonzero(plane)
        if not count:
            self.parts.append(bytes([_ZERO]))
        elif len(plane) >= SPARSE_BYTES_MIN and 2 * count < len(plane):
            self.parts.append(bytes([_SPARSE]))
            bits = np.packbits(plane)
            self.plane(bits)
            self.plane(plane.take(ones(bits)))
        else:
            self._occupied(plane)

    def _occupied(self, plane: Plane) -> None:
        if _entropy_bits(plane) < _NOISE_BITS:
            frame = self._zstd.compress(plane.data)
            if LENGTH_BYTES + len(frame) < len(plane):
                length = len(frame).to_bytes(LENGTH_BYTES, "little")
                self.parts += bytes([_ZSTD]), length, frame
                return
        self.parts += bytes([_RAW]), plane.data


class PlaneReader:
    """Unpacks one plane after another; all methods raise ``EncodingError``."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._zstd = zstandard.ZstdDecompressor()

    def words(self, count: int, element_bytes: int) -> Words:
        """Return the next ``count`` words."""
        words: Words = self.plane(count).astype(f"<u{element_bytes}")
        octets = words.view(np.uint8).reshape(count, element_bytes)
        for place in range(1, element_bytes):
            self._fill(octets[:, place])
        return words

    def plane(self, count: int) -> Plane:
        """Return the next plane."""
        plane = np.zeros(count, np.uint8)
        self._fill(plane)
        return plane

    def finish(self) -> None:
        """Raise ``EncodingError`` if bytes are left."""
        if len(self._data):
            raise EncodingError("bytes after the last plane")

    def _fill(self, plane: Plane) -> None:
        """Write the next plane into zeros."""
        kind = self._take(1)[0]
        if kind == _SPARSE:
            self._fill_sparse(plane)
        elif kind != _ZERO:
            plane[:] = self._occupied(kind, len(plane))

    def _fill_sparse(self, plane: Plane) -> None:
        """Write a sparse plane: its bits, an eighth of its length, then the marked bytes."""
        if len(plane) < SPARSE_BYTES_MIN:
            raise EncodingError("a sparse plane that is too short")
        found = ones(self.plane(-(-len(plane) // 8)))
        if 2 * len(found) >= len(plane) or (len(found) and found[-1] >= len(plane)):
            raise EncodingError("a sparse plane of too many bytes")
        plane[found] = self._occupied(self._take(1)[0], len(found))

    def _occupied(self, kind: int, count: int) -> Plane:
        """Return the next plane, which must not be sparse."""
        if kind == _RAW:
            return np.frombuffer(self._take(count), np.uint8)
        if kind != _ZSTD:
            raise EncodingError("a plane of an unknown kind")
        length = int.from_bytes(self._take(LENGTH_BYTES), "little")
        return np.frombuffer(self._inflate(self._take(length), count), np.uint8)

    def _inflate(self, frame: memoryview, count: int) -> bytes:
        """Return the ``count`` bytes of a frame, after a check of its stated size."""
        try:
            if zstandard.frame_content_size(frame) != count:
                raise EncodingError("a plane of another length than its block")
            plane = self._zstd.decompress(frame)
        except zstandard.ZstdError as error:
            raise EncodingError("a plane that is no zstd frame") from error
        if len(plane) != count:
            raise EncodingError("a plane of another length than stated")
        return plane

    def _take(self, count: int) -> memoryview:
        taken, self._data = self._data[:count], self._data[count:]
        if len(taken) != count:
            raise EncodingError("a plane that ends early")
        return taken


def _entropy_bits(plane: Plane) -> float:
    """Return the entropy per byte of a sample spread over the plane."""
    sample = plane[:: max(1, len(plane) // _SAMPLE_BYTES)]
    counts = np.bincount(sample, minlength=256)
    return math.log2(len(sample)) - float(_TIMES_LOG.take(counts).sum()) / len(sample)
