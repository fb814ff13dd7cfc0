"""Policies and checkpoints of a group: all ranks write one file, and share the hashing.

The file is the same, to the byte, for any number of ranks. So another group can load it, as can a
node without a trainer. Each rank writes its rows at their place: no rank has a whole model in
memory. Only ``policy_digest`` gathers tensors, one at a time.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from protocol.core.crypto import TensorEntry, policy_digest
from protocol.core.types import DIGEST_BYTES, Digest
from roles.engines.files.atomic_write import (
    full_disk_told,
    partial_path,
    publish,
    replacing,
)
from roles.engines.files.policy import digest_of
from roles.engines.files.safetensors import (
    Shapes,
    entries_of,
    layout_of,
    pieces,
    write_tensors,
)
from roles.engines.training.ranks import Ranks

Metadata = Callable[[Digest], Mapping[str, str]]
"""Digest of a file's tensors -> metadata of its header, of a constant length."""

_UNKNOWN = Digest(bytes(DIGEST_BYTES))


def write_rows(
    path: Path,
    rows: Mapping[str, Tensor],
    shapes: Shapes,
    ranks: Ranks,
    *,
    dtype: torch.dtype | None = None,
    metadata: Metadata = lambda _: {},
) -> Digest:
    """Write tensors of which each rank has its rows, atomically; return their digest.

    They are rounded to ``dtype`` if given. Raises ``StorageFullError`` on all ranks.
    """
    file = _SharedFile(path, rows, shapes, ranks, dtype, metadata)
    return file.write_alone() if ranks.count == 1 else file.write()


class _SharedFile:
    def __init__(
        self,
        path: Path,
        rows: Mapping[str, Tensor],
        shapes: Shapes,
        ranks: Ranks,
        dtype: torch.dtype | None,
        metadata: Metadata,
    ) -> None:
        self._path, self._unfinished = path, partial_path(path)
        self._rows, self._shapes, self._dtype, self._ranks = rows, shapes, dtype, ranks
        self._kinds = {
            name: (dtype or one.dtype, tuple(shapes[name])) for name, one in rows.items()
        }
        self._metadata = metadata
        self._planned = layout_of(self._kinds, metadata(_UNKNOWN))

    def write_alone(self) -> Digest:
        """Several threads write and hash at once."""
        with replacing(self._path) as path:
            metadata = self._metadata(_UNKNOWN)
            digest = policy_digest(write_tensors(path, self._rows, self._dtype, metadata))
            self._seal(digest)
        return digest

    def write(self) -> Digest:
        """Create the file on the first rank, and end there when all have written their rows."""
        ranks, planned = self._ranks, self._planned
        own = ranks.own({name: planned.bytes_of(name) for name in self._kinds})
        try:
            self._first(self._create)
            self._on_disk(self._put)
            # The digest is of the file's bytes, so it differs if a rank wrote wrong ones.
            digest = _joined(ranks, lambda: [planned.entry(one, self._unfinished) for one in own])
            self._first(partial(self._end, digest))
        except BaseException:
            if ranks.rank == 0:
                self._unfinished.unlink(missing_ok=True)
            raise
        return digest

    def _create(self) -> None:
        with self._unfinished.open("wb") as file:
            file.write(self._planned.header)
            file.truncate(self._planned.file_bytes)

    def _put(self) -> None:
        with self._unfinished.open("r+b") as file:
            for name, own in self._rows.items():
                shape = self._shapes[name]
                row_bytes = self._planned.bytes_of(name) // max(1, shape[0])
                file.seek(self._planned.begin(name) + self._ranks.first_row(shape) * row_bytes)
                for piece in pieces(own, self._dtype):
                    file.write(piece)

    def _end(self, digest: Digest) -> None:
        self._seal(digest)
        publish(self._path)

    def _seal(self, digest: Digest) -> None:
        with self._unfinished.open("r+b") as file:
            file.write(layout_of(self._kinds, self._metadata(digest)).header)

    def _first(self, work: Callable[[], None]) -> None:
        self._on_disk(work if self._ranks.rank == 0 else _nothing)

    def _on_disk(self, work: Callable[[], None]) -> None:
        def told() -> None:
            with full_disk_told(self._path):
                work()

        self._ranks.together(told)


def shared_digest(
    tensors: Mapping[str, Tensor],
    ranks: Ranks,
    value: Callable[[str, Tensor], Tensor] | None = None,
) -> Digest:
    """Return the policy digest of tensors that all ranks have; each hashes some of them.

    ``value`` is applied to each tensor first, if given.
    """
    own = ranks.own({name: tensor.nbytes for name, tensor in tensors.items()})

    def entries() -> list[TensorEntry]:
        if value is None:
            return entries_of({name: tensors[name] for name in own})
        return [entry for name in own for entry in entries_of({name: value(name, tensors[name])})]

    return _joined(ranks, entries)


def gathered_digest(
    rows: Mapping[str, Tensor], shapes: Shapes, ranks: Ranks, dtype: torch.dtype
) -> Digest:
    """Return the policy digest of tensors of which each rank has its rows, rounded to ``dtype``.

    One tensor at a time is whole, on the ranks' devices.
    """
    if ranks.count == 1:  # several threads hash at once
        return digest_of(rows, dtype)
    mine = frozenset(ranks.own({name: math.prod(shapes[name]) for name in rows}))
    entries: list[TensorEntry] = []
    for name, own in rows.items():
        whole = ranks.gathered(own.to(dtype), shapes[name])
        if name in mine:
            entries += entries_of({name: whole})
    return _joined(ranks, lambda: entries)


def _joined(ranks: Ranks, entries: Callable[[], list[TensorEntry]]) -> Digest:
    return policy_digest(chain.from_iterable(ranks.exchange(ranks.together(entries))))


def _nothing() -> None:
    """Let another rank do it."""
