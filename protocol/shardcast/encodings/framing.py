"""How an encoding is put together: a preamble, then one block after another.

The preamble says which version the blocks are against, how many bytes of the file a block has at
most, and, where there is no base, the header of the file; a patch takes that of its base. Blocks
are cut from all tensors of one width that follow one another: a block for each takes a small
model twice as long, of calls.
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
    """What a block holds of a tensor: ``count`` elements from ``first`` on, at ``start`` in it."""

    tensor: TensorPlace
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a file that one block holds: elements of one width, of one or more tensors."""

    parts: tuple[Part, ...]

    @property
    def element_bytes(self) -> int:
        """The width."""
        return self.parts[0].tensor.element_bytes

    @property
    def count(self) -> int:
        """How many elements."""
        return self.parts[-1].start + self.parts[-1].count

    @property
    def offset(self) -> int:
        """In the file, in bytes."""
        return self.parts[0].tensor.offset + self.parts[0].first * self.element_bytes

    @property
    def length(self) -> int:
        """Bytes in the file."""
        return self.count * self.element_bytes

    def words(self, data: bytes) -> Words:
        """Return the bit patterns of its elements."""
        return np.frombuffer(data, f"<u{self.element_bytes}")


class EncodedBlock(NamedTuple):
    """A block as it came, without its head."""

    piece: Piece
    kind: int
    body: memoryview


def pieces(layout: TensorFile, block_bytes: int) -> Iterator[Piece]:
    """Yield what the blocks of a file hold, in order."""
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
    """Return what an encoding of a file with ``header`` begins with."""
    data = codec.encode(
        {
            "base": b"" if base is None else base,
            "block_bytes": block_bytes,
            "header": header if base is None else b"",
        }
    )
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


class BlockReader:
    """Reads the blocks of one encoding while it arrives; holds what has come of the next.

    ``base`` is what it has to be against: a policy, and how the file of that is laid out. What is
    not so, or of more than ``file_bytes_max``, is an ``EncodingError``.
    """

    def __init__(self, base: tuple[Digest, TensorFile] | None, file_bytes_max: int) -> None:
        self._base = base
        self._file_bytes_max = file_bytes_max
        self._buffer = bytearray()
        self._pieces: Iterator[Piece] = iter(())
        self._piece: Piece | None = None
        self.layout: TensorFile | None = None
        """Of the file that it makes, once the preamble is here."""

    def take(self, data: bytes) -> None:
        """Take the next bytes of the encoding; raises ``EncodingError``."""
        self._buffer += data
        if self.layout is None:
            self._begin()

    def blocks(self) -> Iterator[EncodedBlock]:
        """Yield the blocks that are here now; raises ``EncodingError``."""
        while (piece := self._piece) is not None and len(self._buffer) >= block.HEAD_BYTES:
            body_bytes = block.body_bytes(self._buffer, piece.count, piece.element_bytes)
            end = block.HEAD_BYTES + body_bytes
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as here:  # which does not copy what is cut from it
                kind, body = here[0], bytes(here[block.HEAD_BYTES : end])
            del self._buffer[:end]
            self._piece = next(self._pieces, None)
            yield EncodedBlock(piece, kind, memoryview(body))

    def finish(self) -> None:
        """Raise ``EncodingError`` before the end of the encoding, or with bytes after it."""
        if self.layout is None or self._piece is not None:
            raise EncodingError("an encoding that ends early")
        if self._buffer:
            raise EncodingError("bytes after the last block")

    def _begin(self) -> None:
        """Read the preamble when it is here."""
        end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        if end > tensor_file.HEADER_BYTES_MAX:
            raise EncodingError("a preamble that is too long")
        if len(self._buffer) < max(end, _LENGTH_BYTES):
            return
        data = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        value = codec.decode(data, bytes_max=tensor_file.HEADER_BYTES_MAX)
        if isinstance(value, Fault) or not isinstance(value, dict) or tuple(value) != _KEYS:
            raise EncodingError("a preamble of other fields")
        base, block_bytes, header = value["base"], value["block_bytes"], value["header"]
        if type(block_bytes) is not int or not BLOCK_BYTES_MIN <= block_bytes <= BLOCK_BYTES_MAX:
            raise EncodingError("blocks of impossible size")
        if type(base) is not bytes or type(header) is not bytes:
            raise EncodingError("a preamble of other fields")
        policy, layout = self._base or (b"", None)
        if base != policy:
            raise EncodingError("an encoding against another base")
        if bool(base) == bool(header):
            raise EncodingError("an encoding with a header and a base, or without both")
        layout = layout or tensor_file.parse(header)
        if layout.total_bytes > self._file_bytes_max:
            raise EncodingError(f"a file of {layout.total_bytes} bytes")
        self.layout = layout
        self._pieces = pieces(layout, block_bytes)
        self._piece = next(self._pieces, None)
