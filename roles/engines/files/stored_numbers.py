"""Token ids and log-probabilities of sequences: read from their file, and written to one.

A file is read pass by pass, so an engine holds the numbers of one pass only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from roles.engines.files.atomic_write import replacing
from roles.ports.engines import EngineError, Logprobs, StoredNumbers, TokenIds


def integers(numbers: TokenIds) -> Tensor:
    """Return token ids as int64 ``[n]``; raises ``EngineError`` when the file is too short."""
    if isinstance(numbers, StoredNumbers):
        return _read(numbers, np.dtype(np.int32)).long()
    return torch.tensor(numbers, dtype=torch.int64)


def floats(numbers: Logprobs | Tensor) -> Tensor:
    """Return log-probabilities as float32 ``[n]``; raises ``EngineError`` as ``integers``."""
    if isinstance(numbers, Tensor):
        return numbers
    if isinstance(numbers, StoredNumbers):
        return _read(numbers, np.dtype(np.float32))
    return torch.tensor(numbers, dtype=torch.float32)


def _read(numbers: StoredNumbers, kind: np.dtype) -> Tensor:
    found = np.fromfile(numbers.path, kind, numbers.count, offset=4 * numbers.first)
    if len(found) < numbers.count:
        raise EngineError(f"{numbers.path.name} is shorter than its batch says")
    return torch.from_numpy(found)


class LogprobsWriter:
    """Log-probabilities that are computed one sequence after the other."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def write(self, logprobs: Tensor) -> StoredNumbers:
        """Append float32 values ``[n]``, and return their place."""
        place = StoredNumbers(self._path, self._file.tell() // 4, len(logprobs))
        self._file.write(logprobs.numpy().data)
        return place


@contextmanager
def logprobs_written(path: Path) -> Iterator[LogprobsWriter]:
    """Write log-probabilities to a file that replaces ``path``; raises ``StorageFullError``."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        yield LogprobsWriter(path, file)
