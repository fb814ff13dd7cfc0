"""Location of tensors in a safetensors file: a validating reader of its header.

Format: eight bytes of length, a JSON object from name to dtype, shape and offsets, then the data
(huggingface/safetensors). Files with gaps, overlaps or an unknown type are rejected.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 16 << 20
"""Some 100,000 tensors; the published models have about a thousand."""

_NAME_CHARACTERS_MAX = 512
_DIMENSIONS_MAX = 16

_ELEMENT_BYTES = {
    "BOOL": 1, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


class EncodingError(ValueError):
    """A published file or encoding of weights is invalid."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor: ``offset`` in bytes from the start of the file, ``count`` elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int
    element_bytes: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """``header`` with its length prefix, ``places`` in file order, and the size of the file."""

    header: bytes
    places: tuple[TensorPlace, ...]
    total_bytes: int


def header_bytes(start: bytes | memoryview) -> int:
    """Return the length of the header with its prefix, from a file's first eight bytes.

    Raises ``EncodingError`` if it exceeds ``HEADER_BYTES_MAX``.
    """
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or not 2 <= length <= HEADER_BYTES_MAX - LENGTH_BYTES:
        raise EncodingError("not the beginning of a safetensors file")
    return LENGTH_BYTES + length


def parse(header: bytes) -> TensorFile:
    """Parse a header with its length prefix; raises ``EncodingError`` for every flaw."""
    if len(header) != header_bytes(header):
        raise EncodingError("a header of another length than stated")
    try:
        table = json.loads(header[LENGTH_BYTES:])
    except (ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError, too
        raise EncodingError("a header that is not JSON") from error
    if not isinstance(table, dict):
        raise EncodingError("a header that is not a JSON object")
    table.pop("__metadata__", None)
    places = sorted(
        (_place(name, entry, len(header)) for name, entry in table.items()),
        key=lambda place: (place.offset, place.count),
    )
    end = len(header)
    for place in places:
        if place.offset != end:
            raise EncodingError(f"tensor {place.name} does not follow the one before it")
        end += place.count * place.element_bytes
    return TensorFile(header, tuple(places), end)


def _place(name: str, entry: Any, data_offset: int) -> TensorPlace:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise EncodingError("a tensor without dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    element_bytes = _ELEMENT_BYTES.get(dtype) if isinstance(dtype, str) else None
    if (
        element_bytes is None
        or len(name) > _NAME_CHARACTERS_MAX
        or not _is_utf8(name)
        or not _lengths(shape, _DIMENSIONS_MAX)
        or not (_lengths(offsets, 2) and len(offsets) == 2)
    ):
        raise EncodingError("a tensor with invalid name, type, shape or data_offsets")
    count = math.prod(shape)
    if offsets[1] - offsets[0] != count * element_bytes:
        raise EncodingError(f"tensor {name} has data_offsets that do not match its shape")
    return TensorPlace(name, dtype, tuple(shape), data_offset + offsets[0], count, element_bytes)


def _is_utf8(name: str) -> bool:
    """Return whether a name can be encoded again: JSON may escape half of a character."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lengths(value: Any, length_max: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= length_max
        and all(type(item) is int and 0 <= item < 1 << 48 for item in value)
    )
