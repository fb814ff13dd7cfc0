"""The disk of a machine, and the storage ports of one daemon session on it.

A write takes ``COMMIT_SECONDS``. A daemon that dies meanwhile writes nothing of it, and its ports
change nothing afterwards.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import Shard, ShardIndex, chunk_digests, shard_count
from roles.ports.storage import (
    Blobs,
    Delete,
    Holding,
    Owner,
    PartialBlob,
    Purpose,
    Put,
    StorageFullError,
    Store,
    StoredFile,
)
from simulations.runtime.content import Extent, digest_of, joined
from simulations.runtime.trace import Emit
from simulations.scenario.scenario import Compute

COMMIT_SECONDS = 0.004
"""A synced SQLite transaction on an SSD; a guess."""


@dataclass(slots=True)
class Disk:
    """The disk of a machine; ``quota_bytes`` None means no limit."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    arrivals: dict[Digest, "SimIncomingFile"] = field(default_factory=dict)
    owners: dict[Owner, dict[Digest, None]] = field(default_factory=dict)
    files: dict[Path, bytes] = field(default_factory=dict)
    quota_bytes: int | None = None
    used_bytes: int = 0
    """Blobs and partial blobs."""

    def reserve(self, count: int) -> None:
        """Count bytes as used; raises ``StorageFullError``."""
        if self.quota_bytes is not None and self.used_bytes + count > self.quota_bytes:
            raise StorageFullError(f"no room for {count} bytes")
        self.used_bytes += count

    def require_room(self) -> None:
        """Check that the disk is not full; raises ``StorageFullError``."""
        if self.quota_bytes is not None and self.used_bytes >= self.quota_bytes:
            raise StorageFullError("the quota is used up")

    def file_of(self, index: Digest) -> bytes | None:
        """Return the file of an index; None unless all of its shards are here."""
        decoded = shard_index.decode(self.blobs.get(index, b""))
        if isinstance(decoded, Fault):
            return None
        shards = [self.blobs.get(shard.digest) for shard in decoded.shards]
        return None if None in shards else joined([shard for shard in shards if shard is not None])

    def wipe(self) -> None:
        """Delete everything."""
        for kept in (self.tables, self.blobs, self.arrivals, self.owners, self.files):
            kept.clear()
        self.used_bytes = 0


@dataclass(slots=True)
class Session:
    """One start of a daemon: alive or not, and the hook on its writes."""

    alive: bool = True
    at_write: Callable[[], Awaitable[None]] | None = None
    """Awaited before and after every durable write; a fault may end the session there."""

    @asynccontextmanager
    async def writing(self, seconds: float = COMMIT_SECONDS) -> AsyncGenerator[None, None]:
        """Wait for the duration of a durable write, which is made inside."""
        if self.at_write is not None and self.alive:
            await self.at_write()
        if seconds:
            await asyncio.sleep(seconds)
        yield
        if self.at_write is not None and self.alive:
            await self.at_write()


OnPut = Callable[[Put], None]


class SimStore(Store):
    """The ``Store`` port; ``on_put`` receives each entry that became durable."""

    def __init__(self, disk: Disk, session: Session, on_put: OnPut = lambda _put: None) -> None:
        self._disk = disk
        self._session = session
        self._on_put = on_put

    @override
    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        async with self._session.writing():
            if not self._session.alive:
                return
            self._disk.require_room()
            for change in changes:
                table = self._disk.tables.setdefault(change.table, {})
                if isinstance(change, Put):
                    table[change.key] = change.value
                    self._on_put(change)
                else:
                    table.pop(change.key, None)

    @override
    def get(self, table: str, key: bytes) -> bytes | None:
        return self._disk.tables.get(table, {}).get(key)

    @override
    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._disk.tables.get(table, {}).items())


class SimIncomingFile(PartialBlob):
    """A blob that arrives chunk by chunk; ``on_complete`` is called when it is whole."""

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
        self.on_complete: Callable[[SimIncomingFile, bytes | None], None] | None = None
        self._here: list[bytes | None] = [None] * len(chunks)
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}

    @override
    def missing(self) -> list[int]:
        return [number for number, chunk in enumerate(self._here) if chunk is None]

    def holding(self) -> Holding:
        """Return the set of stored chunks."""
        mask = sum(1 << index for index, chunk in enumerate(self._here) if chunk is not None)
        return Holding(self.chunk_bytes, mask)

    @override
    async def write_chunk(self, index: int, data: bytes | bytearray) -> bool:
        data = data if isinstance(data, bytes) else bytes(data)
        if not self.fits(index, data):
            return False
        if self.abandoned:
            raise LookupError("the arrival was abandoned")
        if self._here[index] is None:
            self._here[index] = data
            self._wake(index)
            if None not in self._here:
                self._finish()
        return True

    def fits(self, index: int, data: bytes) -> bool:
        """Return whether ``data`` is chunk ``index``."""
        return digest_of(data) == self.chunks[index]

    def _finish(self) -> None:
        whole = joined([chunk for chunk in self._here if chunk is not None])
        fits = digest_of(whole) == self.digest
        if self.on_complete is not None:
            self.on_complete(self, whole if fits else None)
        if not fits:
            raise ValueError("the chunks fit and do not make the blob")

    def fill(self, whole: bytes) -> None:
        """Store the whole blob at once."""
        for index in range(len(self._here)):
            start = index * self.chunk_bytes
            self._here[index] = whole[start : start + self.chunk_bytes]
            self._wake(index)

    def abandon(self) -> None:
        """Fail every wait for a chunk that will not come."""
        self.abandoned = True
        for index in list(self._waiting):
            self._wake(index)

    async def chunk(self, index: int) -> bytes:
        """Return a chunk once it is here; raises ``LookupError`` if it never will be."""
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


class SimBlobs(Blobs):
    """Blobs on a disk; ``emit`` records the purpose of each, and deletions."""

    def __init__(
        self,
        disk: Disk,
        session: Session,
        emit: Emit = lambda _kind, **_facts: None,
        compute: Compute | None = None,
    ) -> None:
        self._disk = disk
        self._session = session
        self._emit = emit
        self._compute = compute or Compute()

    @override
    async def put(self, data: bytes, owner: Owner) -> Digest:
        async with self._session.writing():
            return self._keep(data, owner)

    @override
    async def put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        content = self._content(path)
        if not content:
            raise ValueError(f"{path} is empty or missing")
        index = _index_of(content, shard_bytes, chunk_bytes)
        data = shard_index.encode(index)
        owner = Owner(purpose, digest_of(data))
        seconds = COMMIT_SECONDS + self._compute.weights_seconds(len(content))
        async with self._session.writing(seconds):
            for number in range(len(index.shards)):
                self._keep(content[number * shard_bytes : (number + 1) * shard_bytes], owner)
            self._keep(data, owner)
        return StoredFile(owner.subject, len(data), index)

    def _content(self, path: Path) -> bytes:
        """Return the content of a file."""
        return self._disk.files.get(path, b"")

    def _keep(self, data: bytes, owner: Owner) -> Digest:
        digest = digest_of(data)
        if not self._session.alive:
            return digest
        if digest not in self._disk.blobs:
            arrival = self._disk.arrivals.get(digest)
            if arrival is None:
                self._disk.reserve(len(data))
            else:
                del self._disk.arrivals[digest]
                arrival.fill(data)
            self._disk.blobs[digest] = data
        self._claim(digest, owner)
        return digest

    def _claim(self, digest: Digest, owner: Owner) -> None:
        digests = self._disk.owners.setdefault(owner, {})
        if digest not in digests:
            digests[digest] = None
            self._emit("blob-owned", digest=digest, purpose=owner.purpose, subject=owner.subject)

    @override
    async def get(self, digest: Digest) -> bytes | None:
        return self._disk.blobs.get(digest)

    @override
    def size(self, digest: Digest) -> int | None:
        content = self._disk.blobs.get(digest)
        if content is not None:
            return len(content)
        arrival = self._disk.arrivals.get(digest)
        return None if arrival is None else arrival.length

    @override
    def has(self, digest: Digest) -> bool:
        return digest in self._disk.blobs

    @override
    def has_file(self, index: Digest) -> bool:
        return self._disk.file_of(index) is not None

    @override
    def holding(self, digest: Digest) -> Holding | None:
        arrival = self._disk.arrivals.get(digest)
        return arrival.holding() if arrival else None

    @override
    async def open_file(self, index: ShardIndex, purpose: Purpose) -> list[SimIncomingFile]:
        data = shard_index.encode(index)
        owner = Owner(purpose, await self.put(data, Owner(purpose, digest_of(data))))
        return [self._open(shard, index.chunk_bytes, owner) for shard in index.shards]

    def _open(self, shard: Shard, chunk_bytes: int, owner: Owner) -> SimIncomingFile:
        """Return a partial blob for a shard, already whole if the blob is here."""
        whole = self._disk.blobs.get(shard.digest)
        arrival = self._disk.arrivals.get(shard.digest)
        if arrival is None:
            arrival = SimIncomingFile(shard.digest, shard.length, chunk_bytes, shard.chunks)
        if whole is not None:
            arrival.fill(whole)
        elif self._session.alive:
            if shard.digest not in self._disk.arrivals:
                self._disk.reserve(shard.length)
                self._disk.arrivals[shard.digest] = arrival
            arrival.on_complete = self._completed
        if self._session.alive:
            self._claim(shard.digest, owner)
        return arrival

    def _completed(self, arrival: SimIncomingFile, whole: bytes | None) -> None:
        """Turn a whole partial blob into a blob; ``None`` if its chunks make another one."""
        if not self._session.alive or self._disk.arrivals.pop(arrival.digest, None) is None:
            return
        if whole is None:
            self._disk.used_bytes -= arrival.length
            arrival.abandon()
        else:
            self._disk.blobs[arrival.digest] = whole

    @override
    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        size = self.size(digest)
        if size is None:
            raise LookupError("no such blob")
        if offset < 0 or offset + length > size:
            raise ValueError(f"no range {offset}+{length} in {size} bytes")
        end = offset + length
        while offset < end:
            content = self._disk.blobs.get(digest)
            if content is not None:
                yield content[offset:end]
                return
            arrival = self._disk.arrivals.get(digest)
            if arrival is None:
                raise LookupError("the blob was deleted")
            index, within = divmod(offset, arrival.chunk_bytes)
            chunk = await arrival.chunk(index)
            piece = chunk[within : within + end - offset]
            offset += len(piece)
            yield piece

    @override
    def owners(self, purpose: Purpose) -> list[Owner]:
        return [owner for owner in self._disk.owners if owner.purpose is purpose]

    @override
    async def release(self, owner: Owner) -> None:
        if not self._session.alive or owner not in self._disk.owners:
            return
        digests = self._disk.owners.pop(owner)
        self._emit("blobs-released", purpose=owner.purpose, subject=owner.subject)
        needed = {digest for others in self._disk.owners.values() for digest in others}
        for digest in digests:
            if digest not in needed:
                self._delete(digest)

    def _delete(self, digest: Digest) -> None:
        arrival = self._disk.arrivals.pop(digest, None)
        if arrival is not None:
            arrival.abandon()
            self._disk.used_bytes -= arrival.length
        content = self._disk.blobs.pop(digest, None)
        self._disk.used_bytes -= len(content) if content is not None else 0
        self._emit("blob-deleted", digest=digest)


def _index_of(content: bytes, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
    shards = []
    for number in range(shard_count(len(content), shard_bytes)):
        shard = content[number * shard_bytes : (number + 1) * shard_bytes]
        shards.append(Shard(digest_of(shard), len(shard), _chunk_digests(shard, chunk_bytes)))
    return ShardIndex(len(content), shard_bytes, chunk_bytes, tuple(shards))


def _chunk_digests(content: bytes, chunk_bytes: int) -> tuple[Digest, ...]:
    if not isinstance(content, Extent):
        return chunk_digests([content], chunk_bytes)
    starts = range(0, len(content), chunk_bytes)
    return tuple(digest_of(content[start : start + chunk_bytes]) for start in starts)
