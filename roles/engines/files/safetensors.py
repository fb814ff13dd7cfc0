"""Safetensors files: validated reads of untrusted files, and writes in pieces.

The safetensors library writes only from tensors that are all in memory. A bf16 policy rounded from
float32 masters would need its own size again, and a trainer's first checkpoint twice that. Here
several threads write or hash tensors, and each holds one piece of one tensor.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.core.crypto import TensorEntry
from protocol.core.types import Digest
from protocol.shardcast.encodings import tensor_file
from protocol.shardcast.encodings.tensor_file import TensorFile

Shapes = Mapping[str, tuple[int, ...]]

_ELEMENT_BYTES_MAX = 4
"""Weights and moments are at most float32."""

_LENGTH_BYTES = tensor_file.LENGTH_BYTES
"""Length of the header's size field; the header is padded to a multiple of it."""

PIECE_ELEMENTS = 4 * 2**20
"""Elements rounded, copied from the device, hashed and written at once: 16 MB of float32. A
guess."""

_READ_BYTES = 2**24
"""Read and hashed at once; a guess."""

THREADS = min(8, max(1, (os.cpu_count() or 1) // 2))
"""BLAKE3, copies and writes release the interpreter lock; the other half of the cores computes."""

_HEADER_BYTES = 4096
_HEADER_BYTES_PER_TENSOR = 512
"""Header bytes per tensor: name, dtype, shape and offsets take about 150."""

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Dtypes of weights, by their names in files."""

CODED_DTYPES = {"I8": torch.int8, "F32": torch.float32}
"""Dtypes of encoded weights and their scales, by their names in files."""

_DTYPE_NAMES = {dtype: name for name, dtype in (DTYPES | CODED_DTYPES).items()}


def file_bytes_max(shapes: Shapes) -> int:
    """Return the maximum bytes of a file of such tensors."""
    elements = sum(math.prod(shape) for shape in shapes.values())
    header_bytes = _HEADER_BYTES + len(shapes) * _HEADER_BYTES_PER_TENSOR
    return elements * _ELEMENT_BYTES_MAX + header_bytes


def read_tensors(
    path: Path, shapes: Shapes, dtypes: Collection[str] = DTYPES.keys()
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file's tensors to the CPU, and its metadata.

    Raises ``ValueError`` if it is absent, damaged, or holds other tensors than ``shapes`` and other
    dtypes than ``dtypes``.
    """
    other = f"{path} does not hold the tensors of the configured model"
    try:
        if path.stat().st_size > file_bytes_max(shapes):
            raise ValueError(other)
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            views = {name: file.get_slice(name) for name in names}
            if {name: tuple(view.get_shape()) for name, view in views.items()} != dict(shapes):
                raise ValueError(other)
            if any(view.get_dtype() not in dtypes for view in views.values()):
                raise ValueError(other)
            return {name: file.get_tensor(name) for name in views}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable file of tensors: {error}") from error


def read_layout(path: Path) -> TensorFile:
    """Return the layout of a file's tensors; raises ``EncodingError`` and ``OSError``."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        return tensor_file.parse(start + file.read(tensor_file.header_bytes(start) - len(start)))


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[TensorEntry]:
    """Write tensors of any device to a file, rounded to ``dtype`` if given; return its entries.

    Raises ``ValueError`` for a dtype that policies do not support, and ``OSError``.
    """
    kinds = {name: (dtype or one.dtype, tuple(one.shape)) for name, one in tensors.items()}
    layout = layout_of(kinds, metadata)
    path.write_bytes(layout.header)

    def write(name: str) -> TensorEntry:
        with path.open("r+b") as file:
            file.seek(layout.begin(name))
            return _entry(name, tensors[name], dtype, file.write)

    return _in_threads(write, layout.table)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Header of a new file of tensors, and the table in it, by tensor."""

    header: bytes
    table: Mapping[str, Mapping[str, Any]]

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        ends = (entry["data_offsets"][1] for entry in self.table.values())
        return len(self.header) + max(ends, default=0)

    def begin(self, name: str) -> int:
        """Return the offset of a tensor in the file."""
        offset: int = self.table[name]["data_offsets"][0]
        return len(self.header) + offset

    def bytes_of(self, name: str) -> int:
        """Return the length of a tensor."""
        begin, end = self.table[name]["data_offsets"]
        return int(end - begin)

    def entry(self, name: str, path: Path) -> TensorEntry:
        """Return the digest entry of a tensor as the file ``path`` holds it; raises ``OSError``."""
        hasher, left = blake3(), self.bytes_of(name)
        with path.open("rb") as file:
            file.seek(self.begin(name))
            while left and (piece := file.read(min(left, _READ_BYTES))):
                hasher.update(piece)
                left -= len(piece)
        described = self.table[name]
        return name, described["dtype"], tuple(described["shape"]), Digest(hasher.digest())


def layout_of(
    kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
) -> FileLayout:
    """Lay out a file of tensors with these dtypes and shapes; raises as ``write_tensors``."""
    # The longest elements first, so that each tensor begins at a multiple of its element size.
    names = sorted(kinds, key=lambda name: (-kinds[name][0].itemsize, name))
    table = _table({name: kinds[name] for name in names})
    header = _header(table, metadata)
    return FileLayout(len(header).to_bytes(_LENGTH_BYTES, "little") + header, table)


def entries_of(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> list[TensorEntry]:
    """Return the policy digest's entries of tensors, rounded to ``dtype`` if given.

    Raises ``ValueError`` for a dtype that policies do not support.
    """
    return _in_threads(lambda name: _entry(name, tensors[name], dtype), tensors)


def pieces(tensor: Tensor, dtype: torch.dtype | None = None) -> Iterator[memoryview]:
    """Yield the bytes of a tensor of any device in order, rounded to ``dtype`` if given."""
    flat = tensor.reshape(-1)
    for begin in range(0, flat.numel(), PIECE_ELEMENTS):
        piece = flat[begin : begin + PIECE_ELEMENTS]
        yield piece.to(dtype or tensor.dtype).cpu().contiguous().view(torch.uint8).numpy().data


def _in_threads(work: Callable[[str], TensorEntry], names: Iterable[str]) -> list[TensorEntry]:
    one_thread_each = partial(torch.set_num_threads, 1)
    with ThreadPoolExecutor(THREADS, "tensors", one_thread_each) as executor:
        return list(executor.map(work, names))


def _entry(
    name: str,
    tensor: Tensor,
    dtype: torch.dtype | None,
    each: Callable[[memoryview], object] = len,
) -> TensorEntry:
    """Return the digest entry of a tensor, and call ``each`` with its pieces."""
    hasher = blake3()
    for piece in pieces(tensor, dtype):
        each(piece)
        hasher.update(piece)
    kind, shape = _dtype_name(dtype or tensor.dtype), tuple(tensor.shape)
    return name, kind, shape, Digest(hasher.digest())


def _table(
    kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
) -> dict[str, dict[str, Any]]:
    """Return the header's table of contiguous tensors."""
    table: dict[str, dict[str, Any]] = {}
    end = 0
    for name, (dtype, shape) in kinds.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        table[name] = {
            "dtype": _dtype_name(dtype),
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    return table


def _header(table: Mapping[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    """Encode a header, padded with blanks as the format requires."""
    told = {"__metadata__": dict(metadata)} if metadata else {}
    text = json.dumps({**told, **table}).encode()
    return text + b" " * (-len(text) % _LENGTH_BYTES)


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"a file of weights does not hold {dtype}")
    return _DTYPE_NAMES[dtype]
