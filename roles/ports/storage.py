"""Durable storage: content-addressed blobs, policy files, and small state."""

import re
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from protocol.core.types import Digest
from protocol.run.manifest import RunFileName
from protocol.shardcast.index import ShardIndex
from protocol.shardcast.movement_bound import MovementBound
from roles.ports.engines import Policy, TrainingSequence


class StorageFullError(Exception):
    """The disk or its quota is full; the node pauses work that needs disk space."""


class Purpose(StrEnum):
    """Purpose of a blob; the values are directory names."""

    ROLLOUT_BODY = "rollout-body"
    WEIGHTS = "weights"
    OPTIMISER_STATE = "optimiser-state"
    DIFFERENCE = "difference"
    RUN_FILE = "run-file"


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a blob; ``subject`` is a commit, or the index of a file."""

    purpose: Purpose
    subject: Digest


@dataclass(frozen=True, slots=True)
class Holding:
    """Stored chunks of a blob in download: bit i of ``mask`` stands for chunk i."""

    chunk_bytes: int
    mask: int

    def covers(self, offset: int, length: int) -> bool:
        """Return whether every byte of a range is stored."""
        first, last = offset // self.chunk_bytes, (offset + length - 1) // self.chunk_bytes
        wanted = (1 << last + 1) - (1 << first)
        return self.mask & wanted == wanted


@dataclass(frozen=True, slots=True)
class StoredFile:
    """File stored as blobs: its shards and its ``index`` of ``index_bytes``."""

    digest: Digest
    """Digest of the encoded index, which identifies the file."""
    index_bytes: int
    index: ShardIndex

    @property
    def total_bytes(self) -> int:
        """Length of the file."""
        return self.index.total_bytes


class PartialBlob(Protocol):
    """Blob in download: verified per chunk, readable meanwhile, resumable."""

    def missing(self) -> list[int]:
        """Return the indices of the missing chunks, ascending."""

    async def write_chunk(self, index: int, data: bytes | bytearray) -> bool:
        """Store a chunk if its digest matches; return False for a corrupt chunk.

        Raises ``StorageFullError``; ``LookupError`` when the last owner has released the blob;
        ``ValueError`` when every chunk matches and the digest of the whole blob differs.
        """


class Blobs(Protocol):
    """Content-addressed blobs, verified when they are stored.

    A blob has one or more owners, which survive a restart. It is deleted when the last owner is
    released: a digest of another owner's blob can add an owner but remove none.
    """

    async def put(self, data: bytes, owner: Owner) -> Digest:
        """Store ``data`` durably for ``owner``; raises ``StorageFullError``."""

    async def put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        """Store the shards of a file as blobs, with their index, which owns all of them.

        The file is not copied where the disk allows that: it must not be written to afterwards, but
        may be deleted or replaced. Raises ``ValueError`` when it is empty, missing, or too large
        for its chunks; ``StorageFullError``.
        """

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None when it is missing or incomplete."""

    def size(self, digest: Digest) -> int | None:
        """Return the length in bytes of a blob that is stored or in download, else None."""

    def has(self, digest: Digest) -> bool:
        """Return whether the blob is complete."""

    def has_file(self, index: Digest) -> bool:
        """Return whether all shards of the file of an index are complete."""

    def holding(self, digest: Digest) -> Holding | None:
        """Return the stored chunks of a blob in download, else None."""

    async def open_file(self, index: ShardIndex, purpose: Purpose) -> Sequence[PartialBlob]:
        """Start, resume or join the download of a file; the index owns its shards.

        The index is stored as a blob first. Raises ``StorageFullError``; ``ValueError`` when all
        chunks of a shard match and the digest of the shard differs.
        """

    def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield a range, waiting for chunks in download (cut-through).

        Use within ``contextlib.aclosing``.

        Raises ``LookupError`` when the blob is missing or deleted meanwhile; ``ValueError`` for a
        range outside of it.
        """

    def owners(self, purpose: Purpose) -> list[Owner]:
        """Return all current owners, including those from before a restart."""

    async def release(self, owner: Owner) -> None:
        """Delete the blobs that only ``owner`` needs, complete or in download; idempotent."""


ENCODING = ".encoding"

_DIFFERENCE = re.compile(r"v(\d+)\.difference-\d+")


def weights_name(version: int) -> str:
    """Return the name of the file with the weights of a version."""
    return f"v{version}.safetensors"


class PolicyFiles(ABC):
    """Paths of weights, trainer states and run files, for engines and tasks.

    ``genesis`` is the path of the genesis weights and ``task`` the directory of the run's files;
    the run's creator may have put both there.
    """

    def __init__(self, directory: Path, genesis: Path, task: Path) -> None:
        self._directory = directory
        self._task = task
        self.genesis = genesis

    def run_file(self, name: RunFileName) -> Path:
        """Return the path of a file of the run."""
        return self._task / name

    def weights(self, version: int) -> Path:
        """Return the path of a version's weights."""
        return self._directory / weights_name(version)

    def encoding(self, version: int) -> Path:
        """Return the path of a version's encoding: its patch, while that is stored."""
        return self._directory / f"v{version}{ENCODING}"

    def state(self, version: int) -> Path:
        """Return the path of a version's trainer state (model, optimiser, progress)."""
        return self._directory / f"v{version}.state"

    def difference(self, version: int, trainer: int) -> Path:
        """Return the path of the difference that a trainer made for a version.

        ``trainer`` is its place in the genesis.
        """
        return self._directory / f"v{version}.difference-{trainer}"

    def differences(self) -> dict[Path, int]:
        """Return the existing files of differences, each with its version."""
        found = [(path, _DIFFERENCE.fullmatch(path.name)) for path in self._existing()]
        return {path: int(match[1]) for path, match in found if match is not None}

    @abstractmethod
    def _existing(self) -> Iterable[Path]:
        """Return the paths of all files in the directory."""

    @abstractmethod
    def size(self, path: Path) -> int | None:
        """Return the length of a file in bytes, None when it is missing."""

    @abstractmethod
    async def delete(self, path: Path) -> None:
        """Delete a file; idempotent."""

    @abstractmethod
    async def encode(self, path: Path, base: Policy | None, target: Path) -> Digest | None:
        """Write the encoding of a policy's file to ``target``; return its BLAKE3.

        Return None when the base holds other tensors. Raises ``ValueError`` when one of the files
        is not a complete safetensors file; ``StorageFullError``.
        """

    @abstractmethod
    async def decode(
        self,
        encoding: AsyncIterator[bytes],
        base: Policy | None,
        target: Path,
        policy: Digest,
        file_bytes_max: int,
        bound: MovementBound | None = None,
    ) -> Digest:
        """Decode an encoding to ``target`` while it downloads, atomically; return its BLAKE3.

        Raises ``ValueError`` when decoding fails or yields another policy than ``policy`` or more
        than ``file_bytes_max``; ``ExcessiveMovementError`` when it yields ``policy``, and a weight
        moves from ``base`` beyond ``bound``; ``StorageFullError``.
        """

    @abstractmethod
    async def check_movement(self, path: Path, base: Policy, bound: MovementBound) -> None:
        """Compare the file of a version with that of an earlier one.

        Raises ``ExcessiveMovementError`` when a weight moves beyond ``bound``, another
        ``ValueError`` when the file of ``base`` is damaged.
        """

    @abstractmethod
    async def link(self, index: Digest, path: Path) -> None:
        """Expose the file of an index at ``path``, atomically and without a copy if possible.

        The file must not be written to. Raises ``LookupError`` unless all shards are complete;
        ``StorageFullError``.
        """


class BatchRows:
    """Numbers of the sequences of a batch, for the training engine.

    This base class leaves them in memory; a node stores them in files, which nothing needs after
    the step.
    """

    async def store(
        self, commit: Digest, sequences: Sequence[TrainingSequence]
    ) -> list[TrainingSequence]:
        """Return the sequences of a rollout as the engine gets them.

        Raises ``StorageFullError``.
        """
        del commit
        return list(sequences)

    def logprobs(self, name: str) -> Path | None:
        """Return the path for recomputed log-probabilities; None to leave them in memory."""
        del name
        return None

    async def retain(self, commits: Collection[Digest]) -> None:
        """Delete the files of all other rollouts, and all recomputed log-probabilities."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set ``table[key]`` to ``value``."""

    table: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove ``table[key]`` if it is there."""

    table: str
    key: bytes


class Store(Protocol):
    """Durable key-value store: named tables of bytes to bytes."""

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        """Apply all changes or none; after its return they survive ``kill -9`` and power loss.

        Raises ``StorageFullError`` and then applies nothing. A cancelled commit is not undone.
        """

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a table in key order, each as of about its time of yield."""
