"""Framing of an encoding: a preamble, then one block after another.

The preamble contains the base version's policy and the maximum bytes of the file per block. Without
a base it also contains the file's header; a patch uses the header of its base. Blocks are cut from
all consecutive tensors of one element width. With a block per tensor, a small model takes twice the
time, in call overhead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from protocol.core import codec
from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.shardcast.encodings import block, tensor_file
from protocol.shardcast.encodings.planes import Words
from protocol.shardcast.encodings.tensor_file import EncodingError, TensorFile, TensorPlace

BLOCK_BYTES_MIN = 8
"""The longest element."""

BLOCK_BYTES_MAX = 1 << 22
"""Twice ours: some 25 MB while a block of the shortest elements is decoded."""

_LENGTH_BYTES = 4
_KEYS = ("base", "block_bytes", "header")


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor's elements in a block: ``count`` from ``first`` on, at ``start`` in the block."""

    tensor: TensorPlace
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a file in one block: elements of one width, of one or more tensors."""

    parts: tuple[Part, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes per element."""
        return self.parts[0].tensor.element_bytes

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.parts[-1].start + self.parts[-1].count

    @property
    def offset(self) -> int:
        """Offset in the file, in bytes."""
        return self.parts[0].tensor.offset + self.parts[0].first * self.element_bytes

    @property
    def length(self) -> int:
        """Bytes in the file."""
        return self.count * self.element_bytes

    def words(self, data: bytes) -> Words:
        """Return the bit patterns of its elements."""
        return np.frombuffer(data, f"<u{self.element_bytes}")


class EncodedBlock(NamedTuple):
    """A received block, without its head."""

    piece: Piece
    kind: int
    body: memoryview


def pieces(layout: TensorFile, block_bytes: int) -> Iterator[Piece]:
    """Yield the parts of a file that its blocks hold, in order."""
    for width, run in groupby(layout.places, key=attrgetter("element_bytes")):
        parts, elements, start = list[Part](), block_bytes // width, 0
        for tensor in run:
            first = 0
            while first < tensor.count:
                count = min(elements - start, tensor.count - first)
                parts.append(Part(tensor, first, start, count))
                first, start = first + count, start + count
                if start == elements:
                    yield Piece(tuple(parts))
                    parts, start = [], 0
        if parts:
            yield Piece(tuple(parts))


def preamble(base: Digest | None, block_bytes: int, header: bytes) -> bytes:
    """Return the first bytes of an encoding of a file with ``header``."""
    data = codec.encode(
        {
            "base": b"" if base is None else base,
            "block_bytes": block_bytes,
            "header": header if base is None else b"",
        }
    )
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


class BlockReader:
    """Incremental reader of one encoding's blocks; buffers the incomplete one.

    ``base`` is the expected base: a policy, and the layout of its file. Another base, or a file of
    more than ``file_bytes_max``, is an ``EncodingError``.
    """

    def __init__(self, base: tuple[Digest, TensorFile] | None, file_bytes_max: int) -> None:
        self._base = base
        self._file_bytes_max = file_bytes_max
        self._buffer = bytearray()
        self._pieces: Iterator[Piece] = iter(())
        self._piece: Piece | None = None
        self.layout: TensorFile | None = None
        """Layout of the encoded file, after the preamble."""

    def take(self, data: bytes) -> None:
        """Add the next bytes of the encoding; raises ``EncodingError``."""
        self._buffer += data
        if self.layout is None:
            self._begin()

    def blocks(self) -> Iterator[EncodedBlock]:
        """Yield the complete blocks; raises ``EncodingError``."""
        while (piece := self._piece) is not None and len(self._buffer) >= block.HEAD_BYTES:
            body_bytes = block.body_bytes(self._buffer, piece.count, piece.element_bytes)
            end = block.HEAD_BYTES + body_bytes
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as here:  # slices of it are not copied
                kind, body = here[0], bytes(here[block.HEAD_BYTES : end])
            del self._buffer[:end]
            self._piece = next(self._pieces, None)
            yield EncodedBlock(piece, kind, memoryview(body))

    def finish(self) -> None:
        """Raise ``EncodingError`` before the end of the encoding, or if bytes follow it."""
        if self.layout is None or self._piece is not None:
            raise EncodingError("an encoding that ends early")
        if self._buffer:
            raise EncodingError("bytes after the last block")

    def _begin(self) -> None:
        """Read the preamble if it is complete."""
        end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        if end > tensor_file.HEADER_BYTES_MAX:
            raise EncodingError("a preamble that is too long")
        if len(self._buffer) < max(end, _LENGTH_BYTES):
            return
        data = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        value = codec.decode(data, bytes_max=tensor_file.HEADER_BYTES_MAX)
        if isinstance(value, Fault) or not isinstance(value, dict) or tuple(value) != _KEYS:
            raise EncodingError("a preamble with unknown or missing fields")
        base, block_bytes, header = value["base"], value["block_bytes"], value["header"]
        if type(block_bytes) is not int or not BLOCK_BYTES_MIN <= block_bytes <= BLOCK_BYTES_MAX:
            raise EncodingError("an invalid block size")
        if type(base) is not bytes or type(header) is not bytes:
            raise EncodingError("a preamble with unknown or missing fields")
        policy, layout = self._base or (b"", None)
        if base != policy:
            raise EncodingError("an encoding against another base")
        if bool(base) == bool(header):
            raise EncodingError("an encoding with both a header and a base, or neither")
        layout = layout or tensor_file.parse(header)
        if layout.total_bytes > self._file_bytes_max:
            raise EncodingError(f"a file of {layout.total_bytes} bytes")
        self.layout = layout
        self._pieces = pieces(layout, block_bytes)
        self._piece = next(self._pieces, None)
