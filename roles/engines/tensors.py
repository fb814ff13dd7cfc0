"""Safetensors files that others made: tensors and text, as long in the file as in memory."""

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors by name."""

_ELEMENT_BYTES_MAX = 4
"""Weights and moments are float32 or shorter."""

_HEADER_BYTES = 4096
_HEADER_BYTES_PER_TENSOR = 512
"""Name, dtype, shape and place of a tensor take about 150 in a header."""


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
