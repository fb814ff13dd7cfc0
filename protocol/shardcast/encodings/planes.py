"""Byte planes: words split into their first bytes, their second bytes and so on, each packed alone.

The upper bytes of weights, and of what changes in them, repeat and compress; the lower ones are
noise, on which zstd would only spend time.
"""

from itertools import chain

import numpy as np
import zstandard
from numpy.typing import NDArray

from protocol.shardcast.encodings.tensor_file import EncodingError

Words = NDArray[np.unsignedinteger]
"""``[count]``: bit patterns of elements as unsigned integers of 1, 2, 4 or 8 bytes."""

_ZERO, _RAW, _ZSTD = range(3)
HEAD_BYTES = 5
"""How a plane is packed, and how many bytes follow."""

_FAST = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=18, hash_log=6, min_match=7, target_length=0
)
"""What there is in planes is the frequencies of bytes. With next to no search for repetitions the
upper bytes of float32's differences take a quarter of level 1's time, and 3 % fewer bytes."""

_SAMPLE_BYTES = 8192
_NOISE_BITS = 7.6
"""A sample with so much entropy is left alone: Huffman codes would win less than 5 %."""


def pack(words: Words) -> bytes:
    """Return the planes of little-endian words, the lowest first."""
    shifts = (words.dtype.type(8 * place) for place in range(words.itemsize))
    parts = (_packed_plane((words >> shift).astype(np.uint8)) for shift in shifts)
    return b"".join(chain.from_iterable(parts))


def unpack(data: memoryview, count: int, element_bytes: int) -> Words:
    """Return ``count`` words from planes that fill ``data``; raises ``EncodingError``."""
    planes = np.zeros((count, element_bytes), np.uint8)
    for place in range(element_bytes):
        method, length = _head(data)
        body, data = data[HEAD_BYTES : HEAD_BYTES + length], data[HEAD_BYTES + length :]
        if len(body) != length:
            raise EncodingError("a plane that ends early")
        if method == _RAW and length == count:
            planes[:, place] = np.frombuffer(body, np.uint8)
        elif method == _ZSTD:
            planes[:, place] = np.frombuffer(_inflate(body, count), np.uint8)
        elif method != _ZERO or length:
            raise EncodingError("a plane of an unknown kind")
    if len(data):
        raise EncodingError("bytes after the last plane")
    return planes.reshape(-1).view(f"<u{element_bytes}")


def _packed_plane(plane: NDArray[np.uint8]) -> tuple[bytes, memoryview]:
    """Return the head of a plane, and what follows it."""
    method, body = _RAW, plane.data
    if not plane.any():
        method, body = _ZERO, plane.data[:0]
    elif _entropy_bits(plane) < _NOISE_BITS:
        packed = zstandard.ZstdCompressor(compression_params=_FAST).compress(body)
        if len(packed) < len(plane):
            method, body = _ZSTD, memoryview(packed)
    return bytes([method]) + len(body).to_bytes(HEAD_BYTES - 1, "little"), body


def _entropy_bits(plane: NDArray[np.uint8]) -> float:
    """Return the entropy of a byte in a sample from all over the plane."""
    counts = np.bincount(plane[:: max(1, len(plane) // _SAMPLE_BYTES)], minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _head(data: memoryview) -> tuple[int, int]:
    if len(data) < HEAD_BYTES:
        raise EncodingError("a plane that ends early")
    return data[0], int.from_bytes(data[1:HEAD_BYTES], "little")


def _inflate(body: memoryview, count: int) -> bytes:
    """Return the ``count`` bytes of a zstd frame, whose promise is read before it is believed."""
    try:
        if zstandard.frame_content_size(body) != count:
            raise EncodingError("a plane of another length than its block")
        plane = zstandard.decompress(body)
    except zstandard.ZstdError as error:
        raise EncodingError("a plane that is no zstd frame") from error
    if len(plane) != count:
        raise EncodingError("a plane of another length than it says")
    return plane
