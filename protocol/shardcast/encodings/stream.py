"""The whole encoding of a policy: a preamble, then the blocks of its tensors in file order.

The preamble says which version the blocks are against, how many elements a block has at most, and,
where there is no base, the header of the file; a patch takes that of its base. Blocks end with
their tensor.
"""

from collections.abc import Callable, Iterator
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

    @property
    def length(self) -> int:
        """Bytes in the file."""
        return self.count * self.tensor.element_bytes

    def words(self, data: bytes) -> Words:
        """Return the bit patterns of its elements."""
        return np.frombuffer(data, f"<u{self.tensor.element_bytes}")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of weights that is here: ``read`` returns ``length`` bytes from ``offset`` on."""

    layout: TensorFile
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Base:
    """A version to encode against: its policy digest, and its file."""

    policy: Digest
    source: Source


def source_of(read: Callable[[int, int], bytes], total_bytes: int) -> Source:
    """Read what is in a file; raises ``EncodingError`` when it is not a whole one."""
    layout = tensor_file.parse(read(0, tensor_file.header_bytes(read(0, 8))))
    if layout.total_bytes != total_bytes:
        raise EncodingError("a file of another length than its header says")
    return Source(layout, read)


def pieces(layout: TensorFile, block_elements: int) -> Iterator[Piece]:
    """Yield what the blocks of a file hold, in order."""
    for tensor in layout.places:
        for first in range(0, tensor.count, block_elements):
            count = min(block_elements, tensor.count - first)
            yield Piece(tensor, tensor.offset + first * tensor.element_bytes, count)


def encode(
    source: Source, base: Base | None, block_elements: int = BLOCK_ELEMENTS
) -> Iterator[bytes]:
    """Yield the encoding of a file, block by block.

    Raises ``EncodingError`` when the base does not hold the same tensors at the same places.
    """
    if base is not None and base.source.layout.header != source.layout.header:
        raise EncodingError("the base holds other tensors")
    data = codec.encode(
        {
            "base": b"" if base is None else base.policy,
            "block_elements": block_elements,
            "header": source.layout.header if base is None else b"",
        }
    )
    yield len(data).to_bytes(_LENGTH_BYTES, "little") + data
    for piece in pieces(source.layout, block_elements):
        words = piece.words(source.read(piece.offset, piece.length))
        yield block.encode(words, None if base is None else _base_words(base, piece))


def _base_words(base: Base, piece: Piece) -> Words:
    return piece.words(base.source.read(piece.offset, piece.length))


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
        """The digest of what was decoded; ``EncodingError`` before its end, or with bytes over."""
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
        layout = tensor_file.parse(header) if self._base is None else self._base.source.layout
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
        base = None if self._base is None else _base_words(self._base, piece)
        kind, body = self._buffer[0], bytes(self._buffer[block.HEAD_BYTES : end])
        del self._buffer[:end]
        return block.decode(kind, memoryview(body), base, piece.count, width)
