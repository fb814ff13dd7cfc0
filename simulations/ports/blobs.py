"""The ``Blobs`` port of one daemon session, on the disk of its machine."""

from collections.abc import AsyncGenerator
from pathlib import Path

from typing_extensions import override

from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import Shard, ShardIndex, chunk_digests, shard_count
from roles.ports.storage import (
    Blobs,
    Holding,
    Owner,
    Purpose,
    StoredFile,
)
from simulations.ports.incoming_file import SimIncomingFile
from simulations.ports.storage import COMMIT_SECONDS, Disk, Session
from simulations.runtime.content import Extent, digest_of
from simulations.runtime.trace import Emit
from simulations.scenario.scenario import Compute


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
