"""Safetensors files: what others made is read with care, what we make is written piece by piece.

The library writes from tensors that are all there at once. A policy in bf16 made from float32
weights would need its own size once more, and a trainer's first state twice that.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.policy import TensorEntry
from protocol.shardcast.encodings import tensor_file
from protocol.shardcast.encodings.tensor_file import TensorFile
from protocol.types import Digest

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors by name."""

_ELEMENT_BYTES_MAX = 4
"""Weights and moments are float32 or shorter."""

_LENGTH_BYTES = tensor_file.LENGTH_BYTES
"""What a file begins with; its header is padded to as many."""

_HEADER_BYTES = 4096
_HEADER_BYTES_PER_TENSOR = 512
"""Name, dtype, shape and place of a tensor take about 150 in a header."""

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
"""Of weights, by their names in files."""


def file_bytes_max(shapes: Shapes) -> int:
    """Return the most bytes that a file of such tensors takes."""
    elements = sum(math.prod(shape) for shape in shapes.values())
    header_bytes = _HEADER_BYTES + len(shapes) * _HEADER_BYTES_PER_TENSOR
    return elements * _ELEMENT_BYTES_MAX + header_bytes


def read_tensors(path: Path, shapes: Shapes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, on the CPU, and its metadata.

    Raises ``ValueError`` when it is absent or damaged or holds other tensors than ``shapes`` names.
    """
    other = f"{path} does not hold the tensors of the configured model"
    try:
        if path.stat().st_size > file_bytes_max(shapes):
            raise ValueError(other)
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if {name: tuple(file.get_slice(name).get_shape()) for name in names} != dict(shapes):
                raise ValueError(other)
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable file of tensors: {error}") from error


def read_layout(path: Path) -> TensorFile:
    """Return where the tensors of a file are; raises ``EncodingError`` and ``OSError``."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        return tensor_file.parse(start + file.read(tensor_file.header_bytes(start) - len(start)))


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[TensorEntry]:
    """Write tensors of any device to a file, rounded to ``dtype`` if given; return what is in it.

    One of them at a time is copied, if it has to be. Raises ``ValueError`` for a dtype without a
    name, and ``OSError``.
    """
    # The longest elements first, so that all begin at multiples of their length.
    names = sorted(tensors, key=lambda name: (-(dtype or tensors[name].dtype).itemsize, name))
    header = _header({name: tensors[name] for name in names}, dtype, metadata)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        return [_write(file, name, plain(tensors[name], dtype)) for name in names]


def entry_of(name: str, tensor: Tensor) -> TensorEntry:
    """Return what names a tensor in a policy; raises ``ValueError`` for a dtype without a name."""
    content = Digest(blake3(_bytes_of(plain(tensor))).digest())
    return name, _dtype_name(tensor.dtype), tuple(tensor.shape), content


def plain(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on the CPU, its elements one after another; a copy if it has to be."""
    return tensor.to(dtype or tensor.dtype).cpu().contiguous()


def _write(file: BinaryIO, name: str, tensor: Tensor) -> TensorEntry:
    file.write(_bytes_of(tensor))
    return entry_of(name, tensor)


def _header(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None, metadata: Mapping[str, str] | None
) -> bytes:
    """Return the table of contents, padded with blanks as the format asks."""
    table: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        kind = dtype or tensor.dtype
        begin, end = end, end + tensor.numel() * kind.itemsize
        table[name] = {
            "dtype": _dtype_name(kind),
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table).encode()
    return text + b" " * (-len(text) % _LENGTH_BYTES)


def _bytes_of(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"a policy does not hold {dtype}")
    return _DTYPE_NAMES[dtype]
