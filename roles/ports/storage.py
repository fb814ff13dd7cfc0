"""What survives a restart: content-addressed blobs, and small state in transactions."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.types import Digest


class StorageFullError(Exception):
    """The disk, or the quota set for it, has no room; the node pauses what needs room."""


class PartialBlob(Protocol):
    """A blob that is arriving: verified chunk by chunk, readable while it grows, resumable."""

    def missing(self) -> list[int]:
        """Return the indices of the chunks that are not here yet, ascending."""

    async def write_chunk(self, index: int, data: bytes) -> bool:
        """Store a chunk if its digest fits; False means that the sender sent bad bytes."""


class Blobs(Protocol):
    """Content-addressed bytes; what comes out was verified on its way in."""

    async def put(self, data: bytes) -> Digest:
        """Store ``data`` durably; raises ``StorageFullError``."""

    async def put_file(self, path: Path, offset: int, length: int) -> Digest:
        """Store a slice of a file without holding it in memory; raises ``StorageFullError``."""

    async def chunk_digests(self, digest: Digest, chunk_bytes: int) -> tuple[Digest, ...]:
        """Return the digests of a blob's chunks; raises ``LookupError`` when it is not here."""

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None when it is not (completely) here."""

    def size(self, digest: Digest) -> int | None:
        """Return the length in bytes of a blob that is here or arriving, else None."""

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here completely."""

    async def open_partial(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest]
    ) -> PartialBlob:
        """Start or resume the arrival of a blob; raises ``StorageFullError``."""

    def stream(self, digest: Digest, offset: int, length: int) -> AsyncIterator[bytes]:
        """Yield a range, waiting for chunks that are still arriving (cut-through)."""

    async def concatenate(self, digests: Sequence[Digest], path: Path) -> None:
        """Write blobs one after another to ``path`` atomically; raises ``StorageFullError``."""

    async def delete(self, digest: Digest) -> None:
        """Forget a blob; idempotent."""

    def file_bytes(self, path: Path) -> int | None:
        """Return the length of a file that an engine or ``concatenate`` wrote, None without one."""

    def delete_file(self, path: Path) -> None:
        """Delete such a file; idempotent."""


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
        """Apply all changes or none; when it returns they survive ``kill -9`` and power loss."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a table in key order."""
