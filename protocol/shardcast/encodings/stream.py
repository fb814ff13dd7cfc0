"""The whole encoding of a policy: a preamble, then the blocks of its tensors in file order.

The preamble says which version the blocks are against, how many elements a block has at most, and,
where there is no base, the header of the file; a patch takes that of its base. Blocks end with
their tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from protocol import codec
from protocol.faults import Fault
from protocol.policy import policy_digest
from protocol.shardcast.encodings import block, tensor_file
from protocol.shardcast.encodings.planes import Words
from protocol.shardcast.encodings.tensor_file import EncodingError, TensorFile, TensorPlace
from protocol.types import Digest

BLOCK_ELEMENTS = 1 << 19
"""Of one block: what is worked on stays in the cache, and an unchanged block costs five bytes."""

BLOCK_ELEMENTS_MAX = 1 << 22
"""A guess: some 60 MB while a block of float32 is decoded."""

_LENGTH_BYTES = 4
_KEYS = ("base", "block_elements", "header")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a tensor that one block holds: ``offset`` in the file, ``count`` elements."""

    tensor: TensorPlace
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Base:
    """A version to encode against: its policy digest, and the bytes of its file."""

    policy: Digest
    file: memoryview


def pieces(file: TensorFile, block_elements: int) -> Iterator[Piece]:
    """Yield what the blocks of a file hold, in order."""
    for tensor in file.places:
        for first in range(0, tensor.count, block_elements):
            count = min(block_elements, tensor.count - first)
            yield Piece(tensor, tensor.offset + first * tensor.element_bytes, count)


def read(file: memoryview) -> TensorFile:
    """Return what is in a file; raises ``EncodingError`` when it is not a whole one."""
    layout = tensor_file.parse(bytes(file[: tensor_file.header_bytes(file[:8])]))
    if layout.total_bytes != len(file):
        raise EncodingError("a file of another length than its header says")
    return layout


def preamble(layout: TensorFile, base: Base | None, block_elements: int = BLOCK_ELEMENTS) -> bytes:
    """Return what an encoding begins with.

    Raises ``EncodingError`` when the base does not hold the same tensors at the same places.
    """
    if base is not None and read(base.file).header != layout.header:
        raise EncodingError("the base holds other tensors")
    data = codec.encode(
        {
            "base": b"" if base is None else base.policy,
            "block_elements": block_elements,
            "header": layout.header if base is None else b"",
        }
    )
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def encode_piece(file: memoryview, piece: Piece, base: Base | None) -> bytes:
    """Return the block of a piece."""
    return block.encode(words(file, piece), None if base is None else words(base.file, piece))


def words(file: memoryview, piece: Piece) -> Words:
    """Return the bit patterns of a piece of a file, without a copy."""
    kind = np.dtype(f"<u{piece.tensor.element_bytes}")
    return np.frombuffer(file, kind, piece.count, piece.offset)


class Decoder:
    """Decodes one encoding while it arrives; holds one block and what has come of the next.

    ``policy`` is the digest of the decoded tensors, once everything is here.
    """

    def __init__(self, base: Base | None, file_bytes_max: int) -> None:
        self._base = base
        self._file_bytes_max = file_bytes_max
        self._buffer = bytearray()
        self._pieces: Iterator[Piece] | None = None
        self._piece: Piece | None = None
        self._hashers: dict[TensorPlace, blake3] = {}

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Take the next bytes of the encoding; yield the next of the file.

        Raises ``EncodingError``: the publisher has signed what cannot be decoded.
        """
        self._buffer += data
        if self._pieces is None:
            layout = self._begin()
            if layout is None:
                return
            yield memoryview(layout.header)
        while self._piece is not None and (decoded := self._next(self._piece)) is not None:
            elements = decoded.view(np.uint8).data
            self._hashers[self._piece.tensor].update(elements)
            yield elements
            self._advance()

    @property
    def policy(self) -> Digest:
        """The digest of what was decoded; ``EncodingError`` before its end or with bytes after it."""
        if self._pieces is None or self._piece is not None:
            raise EncodingError("an encoding that ends early")
        if self._buffer:
            raise EncodingError("bytes after the last block")
        return policy_digest(
            (place.name, place.dtype, place.shape, Digest(hasher.digest()))
            for place, hasher in self._hashers.items()
        )

    def _begin(self) -> TensorFile | None:
        """Read the preamble when it is here."""
        end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        if end > tensor_file.HEADER_BYTES_MAX:
            raise EncodingError("a preamble that is too long")
        if len(self._buffer) < max(end, _LENGTH_BYTES):
            return None
        data = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        value = codec.decode(data, bytes_max=tensor_file.HEADER_BYTES_MAX)
        if isinstance(value, Fault) or not isinstance(value, dict) or tuple(value) != _KEYS:
            raise EncodingError("a preamble of other fields")
        base, elements, header = value["base"], value["block_elements"], value["header"]
        if type(elements) is not int or not 0 < elements <= BLOCK_ELEMENTS_MAX:
            raise EncodingError("blocks of impossible size")
        if type(base) is not bytes or type(header) is not bytes:
            raise EncodingError("a preamble of other fields")
        if base != (b"" if self._base is None else self._base.policy):
            raise EncodingError("an encoding against another base")
        if bool(base) == bool(header):
            raise EncodingError("an encoding with a header and a base, or without both")
        layout = tensor_file.parse(header) if self._base is None else read(self._base.file)
        if layout.total_bytes > self._file_bytes_max:
            raise EncodingError(f"a file of {layout.total_bytes} bytes")
        self._hashers = {place: blake3() for place in layout.places}
        self._pieces = pieces(layout, elements)
        self._advance()
        return layout

    def _advance(self) -> None:
        assert self._pieces is not None
        self._piece = next(self._pieces, None)

    def _next(self, piece: Piece) -> Words | None:
        """Return the elements of the next block when it is here."""
        if len(self._buffer) < block.HEAD_BYTES:
            return None
        width = piece.tensor.element_bytes
        end = block.HEAD_BYTES + block.body_bytes(self._buffer, piece.count, width)
        if len(self._buffer) < end:
            return None
        base = None if self._base is None else words(self._base.file, piece)
        kind, body = self._buffer[0], bytes(self._buffer[block.HEAD_BYTES : end])
        del self._buffer[:end]
        return block.decode(kind, memoryview(body), base, piece.count, width)
