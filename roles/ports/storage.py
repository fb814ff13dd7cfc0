"""What survives a restart: content-addressed blobs, files of policies, and small state."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from protocol.core.types import Digest
from protocol.run.manifest import RunFileName
from protocol.shardcast.index import ShardIndex
from roles.ports.engines import Policy


class StorageFullError(Exception):
    """The disk, or the quota set for it, has no room; the node pauses what needs room."""


class Purpose(StrEnum):
    """What blobs are stored for; the values are names of directories."""

    ROLLOUT_BODY = "rollout-body"
    WEIGHTS = "weights"
    OPTIMISER_STATE = "optimiser-state"
    RUN_FILE = "run-file"


@dataclass(frozen=True, slots=True)
class Owner:
    """What this node stored a blob for; ``subject`` is a commit, or the index of a file."""

    purpose: Purpose
    subject: Digest


@dataclass(frozen=True, slots=True)
class Holding:
    """Which chunks of an arriving blob are here: bit i of ``mask`` for chunk i."""

    chunk_bytes: int
    mask: int

    def covers(self, offset: int, length: int) -> bool:
        """Return whether every byte of a range is here."""
        first, last = offset // self.chunk_bytes, (offset + length - 1) // self.chunk_bytes
        wanted = (1 << last + 1) - (1 << first)
        return self.mask & wanted == wanted


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file whose shards are blobs here, and so is its ``index``, of ``index_bytes``."""

    digest: Digest
    """Of the encoded index, which names the file."""
    index_bytes: int
    index: ShardIndex

    @property
    def total_bytes(self) -> int:
        """The length of the file."""
        return self.index.total_bytes


class PartialBlob(Protocol):
    """A blob that is arriving: verified chunk by chunk, readable while it grows, resumable."""

    def missing(self) -> list[int]:
        """Return the indices of the chunks that are not here yet, ascending."""

    async def write_chunk(self, index: int, data: bytes | bytearray) -> bool:
        """Store a chunk if its digest fits; False means that the sender sent bad bytes.

        Raises ``StorageFullError``; ``LookupError`` when the last owner has released the blob;
        ``ValueError`` when every chunk fits and the whole has another digest than promised.
        """


class Blobs(Protocol):
    """Content-addressed bytes; what comes out was verified on its way in.

    A blob has one or more owners, which survive a restart, and goes when the last of them is
    released: whoever names the digest of another one's blob can add an owner and take none away.
    """

    async def put(self, data: bytes, owner: Owner) -> Digest:
        """Store ``data`` durably for ``owner``; raises ``StorageFullError``."""

    async def put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        """Make blobs of the shards of a file, and of their index, which owns all of them.

        Where it can the file is not copied: nobody may write into it any more, but it may be
        deleted or replaced. Raises ``ValueError`` when it is empty, missing, or too large for its
        chunks; ``StorageFullError``.
        """

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None when it is not (completely) here."""

    def size(self, digest: Digest) -> int | None:
        """Return the length in bytes of a blob that is here or arriving, else None."""

    def has(self, digest: Digest) -> bool:
        """Return whether the blob is here completely."""

    def has_file(self, index: Digest) -> bool:
        """Return whether all shards of the file of an index are here."""

    def holding(self, digest: Digest) -> Holding | None:
        """Return which chunks of a blob are here, None when it is not arriving."""

    async def open_file(self, index: ShardIndex, purpose: Purpose) -> Sequence[PartialBlob]:
        """Start, resume or join the arrival of a file: of its shards, owned by their index.

        The index is stored as a blob first. Raises ``StorageFullError``; ``ValueError`` when all
        chunks of a shard are here and their whole has another digest.
        """

    def stream(self, digest: Digest, offset: int, length: int) -> AsyncIterator[bytes]:
        """Yield a range, waiting for chunks that are still arriving (cut-through).

        Raises ``LookupError`` when the blob is not here or goes meanwhile; ``ValueError`` when the
        range does not lie within it.
        """

    def owners(self, purpose: Purpose) -> list[Owner]:
        """Return everything that blobs are stored for now, also from before a restart."""

    async def release(self, owner: Owner) -> None:
        """Forget what only ``owner`` needs, complete or arriving; idempotent."""


ENCODING = ".encoding"


def weights_name(version: int) -> str:
    """Return the name of the file with the weights of a version."""
    return f"v{version}.safetensors"


class PolicyFiles(ABC):
    """Weights, trainer states and the run's own files, which engines and tasks know by path.

    ``genesis`` is where the run's creator may have left the genesis weights, ``task`` the directory
    of the run's files, which it may have left there.
    """

    def __init__(self, directory: Path, genesis: Path, task: Path) -> None:
        self._directory = directory
        self._task = task
        self.genesis = genesis

    def run_file(self, name: RunFileName) -> Path:
        """Return where a file of the run belongs."""
        return self._task / name

    def weights(self, version: int) -> Path:
        """Return where the weights of a version belong."""
        return self._directory / weights_name(version)

    def encoding(self, version: int) -> Path:
        """Return where an encoding of a version's weights is: its patch, as long as it is here."""
        return self._directory / f"v{version}{ENCODING}"

    def state(self, version: int) -> Path:
        """Return where the trainer's state (model, optimiser, progress) of a version belongs."""
        return self._directory / f"v{version}.state"

    @abstractmethod
    def size(self, path: Path) -> int | None:
        """Return the length in bytes of a file, None when there is none."""

    @abstractmethod
    async def delete(self, path: Path) -> None:
        """Delete a file; idempotent."""

    @abstractmethod
    async def encode(self, path: Path, base: Policy | None, target: Path) -> Digest | None:
        """Write the encoding of a policy's file to ``target``; return its BLAKE3.

        None when the base holds other tensors. Raises ``ValueError`` when one of them is no whole
        file of tensors, ``StorageFullError``.
        """

    @abstractmethod
    async def decode(
        self,
        encoding: AsyncIterator[bytes],
        base: Policy | None,
        target: Path,
        policy: Digest,
        file_bytes_max: int,
    ) -> Digest:
        """Write the file that an encoding makes, atomically, while it comes; return its BLAKE3.

        Raises ``ValueError`` when it cannot be decoded, makes another policy than ``policy`` or a
        longer file than allowed; ``StorageFullError``.
        """

    @abstractmethod
    async def link(self, index: Digest, path: Path) -> None:
        """Make the file of an index what ``path`` names, atomically and without a copy if possible.

        Nobody may write into it. Raises ``LookupError`` unless all of its shards are here;
        ``StorageFullError``.
        """


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
    """Durable small state: named tables of bytes to bytes."""

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        """Apply all changes or none; when it returns they survive ``kill -9`` and power loss.

        Raises ``StorageFullError``, and then nothing of it is applied. Cancelling does not undo.
        """

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a table in key order, each as it is about when it is yielded."""
