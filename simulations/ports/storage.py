"""A machine's disk, and the ``Store`` and ``Blobs`` ports of one life of a daemon on it.

The disk outlives the daemon. A commit takes ``COMMIT_SECONDS``; a daemon that dies meanwhile has
committed nothing of it. The ports of a dead daemon change nothing any more, whatever still runs of
it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.shardcast import index as shard_index
from protocol.types import Digest
from roles.ports.storage import Delete, Put, StorageFullError
from simulations.runtime.content import Extent, digest_of, joined

COMMIT_SECONDS = 0.004
"""A synced SQLite transaction on an SSD; a guess."""

STORED_ENTRY_BYTES = 64
"""Overhead of an entry towards the quota; a guess."""


@dataclass(slots=True)
class Disk:
    """What a machine keeps: tables, blobs, arrivals, files; ``quota_bytes`` None is no limit."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    arrivals: dict[Digest, "Arrival"] = field(default_factory=dict)
    files: dict[Path, bytes] = field(default_factory=dict)
    quota_bytes: int | None = None
    used_bytes: int = 0
    """By blobs and arrivals."""

    def reserve(self, count: int) -> None:
        """Count bytes as used; raises ``StorageFullError``."""
        if self.quota_bytes is not None and self.used_bytes + count > self.quota_bytes:
            raise StorageFullError(f"no room for {count} bytes")
        self.used_bytes += count

    def wipe(self) -> None:
        """Lose everything."""
        self.tables.clear()
        self.blobs.clear()
        self.arrivals.clear()
        self.files.clear()
        self.used_bytes = 0


@dataclass(slots=True)
class Life:
    """Whether the daemon that holds a port still lives."""

    alive: bool = True


OnPut = Callable[[Put], None]


class SimStore:
    """The ``Store`` port; ``on_put`` hears of each entry that became durable."""

    def __init__(self, disk: Disk, life: Life, on_put: OnPut = lambda _put: None) -> None:
        self._disk = disk
        self._life = life
        self._on_put = on_put

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        """Apply all changes or none; raises ``StorageFullError`` when the quota is used up."""
        await asyncio.sleep(COMMIT_SECONDS)
        if not self._life.alive:
            return
        quota = self._disk.quota_bytes
        if quota is not None and self._disk.used_bytes >= quota:
            raise StorageFullError("no room for a commit")
        for change in changes:
            table = self._disk.tables.setdefault(change.table, {})
            if isinstance(change, Put):
                table[change.key] = change.value
                self._on_put(change)
            else:
                table.pop(change.key, None)

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._disk.tables.get(table, {}).get(key)

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a table in key order."""
        yield from sorted(self._disk.tables.get(table, {}).items())


class Arrival:
    """The ``PartialBlob`` port: a blob that comes chunk by chunk."""

    def __init__(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest]
    ) -> None:
        if length < 1 or len(chunks) != -(-length // chunk_bytes):
            raise ValueError("the chunks do not add up to the blob")
        self.digest = digest
        self.length = length
        self.chunk_bytes = chunk_bytes
        self.chunks = tuple(chunks)
        self.abandoned = False
        self.on_complete: Callable[[Arrival, bytes], None] | None = None
        self._here: list[bytes | None] = [None] * len(chunks)
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}

    def missing(self) -> list[int]:
        """Return the numbers of the chunks that are not here yet."""
        return [number for number, chunk in enumerate(self._here) if chunk is None]

    async def write_chunk(self, index: int, data: bytes) -> bool:
        """Store a chunk if it is the right one."""
        if not self.fits(index, data):
            return False
        if self._here[index] is None:
            self._here[index] = data
            self._wake(index)
            if None not in self._here:
                self._finish()
        return True

    def fits(self, index: int, data: bytes) -> bool:
        """Tell whether ``data`` is chunk ``index``."""
        return digest_of(data) == self.chunks[index]

    def _finish(self) -> None:
        whole = joined([chunk for chunk in self._here if chunk is not None])
        if digest_of(whole) != self.digest:
            raise ValueError("the chunks fit and do not make the blob")
        if self.on_complete is not None:
            self.on_complete(self, whole)

    def fill(self, whole: bytes) -> None:
        """Take the whole blob at once."""
        for index in range(len(self._here)):
            start = index * self.chunk_bytes
            self._here[index] = whole[start : start + self.chunk_bytes]
            self._wake(index)

    def abandon(self) -> None:
        """Tell whoever waits for a chunk that it will not come."""
        self.abandoned = True
        for index in list(self._waiting):
            self._wake(index)

    async def chunk(self, index: int) -> bytes:
        """Return a chunk when it is here; raises ``LookupError`` if it never will be."""
        while (data := self._here[index]) is None:
            if self.abandoned:
                raise LookupError("the arrival was abandoned")
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(index, []).append(future)
            await future
        return data

    def _wake(self, index: int) -> None:
        for future in self._waiting.pop(index, ()):
            if not future.done():
                future.set_result(None)


class SimBlobs:
    """The ``Blobs`` port of one life of a daemon."""

    def __init__(self, disk: Disk, life: Life) -> None:
        self._disk = disk
        self._life = life

    async def put(self, data: bytes) -> Digest:
        """Store a blob; raises ``StorageFullError``."""
        await asyncio.sleep(COMMIT_SECONDS)
        return self._keep(data)

    async def put_file(self, path: Path, offset: int, length: int) -> Digest:
        """Store a slice of a file; raises ``StorageFullError``."""
        await asyncio.sleep(COMMIT_SECONDS)
        content = self._disk.files[path]
        if offset + length > len(content):
            raise ValueError(f"{path} ends before its slice")
        return self._keep(content[offset : offset + length])

    def _keep(self, data: bytes) -> Digest:
        digest = digest_of(data)
        if self._life.alive and digest not in self._disk.blobs:
            arrival = self._disk.arrivals.pop(digest, None)
            if arrival is None:
                self._disk.reserve(len(data))
            else:
                arrival.fill(data)
            self._disk.blobs[digest] = data
        return digest

    async def chunk_digests(self, digest: Digest, chunk_bytes: int) -> tuple[Digest, ...]:
        """Return the digests of a blob's chunks; raises ``LookupError``."""
        content = self._disk.blobs[digest]
        if not isinstance(content, Extent):
            return shard_index.chunk_digests([content], chunk_bytes)
        starts = range(0, len(content), chunk_bytes)
        return tuple(digest_of(content[start : start + chunk_bytes]) for start in starts)

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None."""
        return self._disk.blobs.get(digest)

    def size(self, digest: Digest) -> int | None:
        """Return the length of a blob that is here or arriving."""
        content = self._disk.blobs.get(digest)
        if content is not None:
            return len(content)
        arrival = self._disk.arrivals.get(digest)
        return None if arrival is None else arrival.length

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here completely."""
        return digest in self._disk.blobs

    async def open_partial(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest]
    ) -> Arrival:
        """Start or resume the arrival of a blob; raises ``StorageFullError``."""
        whole = self._disk.blobs.get(digest)
        known = self._disk.arrivals.get(digest)
        if known is not None:
            if (known.length, known.chunk_bytes, known.chunks) != (
                length,
                chunk_bytes,
                tuple(chunks),
            ):
                raise ValueError("the blob is arriving with other sizes or chunks")
            known.on_complete = self._completed
            return known
        arrival = Arrival(digest, length, chunk_bytes, chunks)
        if whole is not None:
            arrival.fill(whole)
            return arrival
        if self._life.alive:
            self._disk.reserve(length)
            self._disk.arrivals[digest] = arrival
        arrival.on_complete = self._completed
        return arrival

    def _completed(self, arrival: Arrival, whole: bytes) -> None:
        if self._life.alive and self._disk.arrivals.pop(arrival.digest, None) is not None:
            self._disk.blobs[arrival.digest] = whole

    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield a range, waiting for chunks that are still arriving (cut-through)."""
        end = offset + length
        while offset < end:
            content = self._disk.blobs.get(digest)
            if content is not None:
                yield content[offset:end]
                return
            arrival = self._disk.arrivals.get(digest)
            if arrival is None:
                raise LookupError("no such blob")
            index, within = divmod(offset, arrival.chunk_bytes)
            chunk = await arrival.chunk(index)
            piece = chunk[within : within + end - offset]
            offset += len(piece)
            yield piece

    async def concatenate(self, digests: Sequence[Digest], path: Path) -> None:
        """Write blobs one after another to a file; raises ``LookupError``."""
        await asyncio.sleep(COMMIT_SECONDS)
        content = joined([self._disk.blobs[digest] for digest in digests])
        if self._life.alive:
            self._disk.files[path] = content

    async def delete(self, digest: Digest) -> None:
        """Forget a blob, complete or arriving; idempotent."""
        if not self._life.alive:
            return
        arrival = self._disk.arrivals.pop(digest, None)
        if arrival is not None:
            arrival.abandon()
            self._disk.used_bytes -= arrival.length
        content = self._disk.blobs.pop(digest, None)
        self._disk.used_bytes -= len(content) if content is not None else 0

    def file_bytes(self, path: Path) -> int | None:
        """Return the length of a file, None when there is none."""
        content = self._disk.files.get(path)
        return None if content is None else len(content)

    def delete_file(self, path: Path) -> None:
        """Delete a file; idempotent."""
        if self._life.alive:
            self._disk.files.pop(path, None)
