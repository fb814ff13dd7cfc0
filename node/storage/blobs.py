"""Content-addressed blobs as files: the ``Blobs`` port on a directory.

``complete/ab/ab12…`` holds single blobs, named by their BLAKE3 digest; a file appears there by
rename after its bytes were checked and synced. ``files/`` holds files whose shards are blobs
(``node.storage.sharded_files``). ``owners/`` names the owners of each blob, and is written first; a
file has the owners of its index. Blobs without an owner are deleted at the start. ``temporary/``
holds unfinished blobs, and is emptied at the start.

Bookkeeping happens on the event loop, file access in threads. One process uses a directory (the
daemon's ``LOCK``).
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from typing_extensions import override

from node.storage import files
from node.storage.arrival import FilePlan, IncomingFile
from node.storage.files import FilePart
from node.storage.owners import Owners
from node.storage.sharded_files import ShardedFile, ShardedFiles, index_of, prepare
from protocol.core import crypto
from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import ShardIndex
from roles.ports.storage import Blobs, Holding, Owner, Purpose, StorageFullError, StoredFile

PART_BYTES = 2 << 20
"""Bytes read before a blob is looked up again, since it may have been released; a guess."""


class FileBlobs(Blobs):
    """Blob store in ``directory`` of at most ``quota_bytes``; None for no limit but the disk."""

    def __init__(self, directory: Path, quota_bytes: int | None = None) -> None:
        self._complete = directory / "complete"
        self._temporary = directory / "temporary"
        self._quota_bytes = quota_bytes
        shutil.rmtree(self._temporary, ignore_errors=True)
        for part in (self._complete, self._temporary):
            files.make_directory(part)
        self._owners = Owners(directory / "owners")
        self._sizes = dict(self._found())
        self._files = ShardedFiles(directory / "files")
        self.used_bytes = sum(self._sizes.values()) + self._files.restore(self._index_here)
        """Bytes of all blobs; arriving ones count with their full length."""
        self._names = itertools.count()
        self._changing = asyncio.Lock()
        """Held while a blob is added, removed or claimed; not while its bytes are written."""

    @override
    def has(self, digest: Digest) -> bool:
        found = self._files.find(digest)
        return digest in self._sizes or (found is not None and found.arrival is None)

    @override
    def has_file(self, index: Digest) -> bool:
        file = self._files.get(index)
        return file is not None and file.whole

    @override
    def size(self, digest: Digest) -> int | None:
        if digest in self._sizes:
            return self._sizes[digest]
        found = self._files.find(digest)
        return found.length if found else None

    @override
    def holding(self, digest: Digest) -> Holding | None:
        arrival = self._arrival(digest)
        return arrival.holding() if arrival else None

    @override
    async def put(self, data: bytes, owner: Owner) -> Digest:
        return await files.uninterrupted(self._put(data, owner))

    @override
    async def put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        return await files.uninterrupted(self._put_file(path, shard_bytes, chunk_bytes, purpose))

    @override
    async def get(self, digest: Digest) -> bytes | None:
        size = self.size(digest)
        if size is None or not self.has(digest):
            return None
        try:
            return await files.in_thread(self._part(digest, 0, size).read)
        except LookupError:  # released meanwhile
            return None

    @override
    async def open_file(self, index: ShardIndex, purpose: Purpose) -> Sequence[IncomingFile]:
        return await files.uninterrupted(self._open(index, purpose))

    @override
    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.parts(digest, offset, length)) as parts:
            async for part in parts:
                for start in range(0, len(part), files.PIECE_BYTES):
                    yield await files.in_thread(part[start : start + files.PIECE_BYTES].read)

    async def parts(
        self, digest: Digest, offset: int, length: int
    ) -> AsyncGenerator[FilePart, None]:
        """Yield the file ranges of a blob's range, waiting for chunks that are still arriving.

        Use each at once: the blob may be deleted. Raises as ``stream``.
        """
        size = self.size(digest)
        if size is None:
            raise LookupError("no such blob")
        if offset < 0 or offset + length > size:
            raise ValueError(f"no range {offset}+{length} in {size} bytes")
        end = offset + length
        while offset < end:
            readable_end = min(end, offset + PART_BYTES)
            arrival = self._arrival(digest)
            if arrival is not None:
                index = offset // arrival.plan.chunk_bytes
                await arrival.wait_for(index)
                readable_end = min(readable_end, (index + 1) * arrival.plan.chunk_bytes)
            yield self._part(digest, offset, readable_end - offset)
            offset = readable_end

    @override
    def owners(self, purpose: Purpose) -> list[Owner]:
        return self._owners.of(purpose)

    @override
    async def release(self, owner: Owner) -> None:
        await files.uninterrupted(self._release(owner))

    def purposes(self, digest: Digest) -> set[Purpose]:
        """Return the purposes of a blob's owners."""
        holders = (digest, *self._files.holders(digest))
        return {purpose for holder in holders for purpose in self._owners.purposes(holder)}

    def path_of(self, index: Digest) -> Path:
        """Return the path of an index's file; raises ``LookupError`` unless it is complete."""
        file = self._files.get(index)
        if file is None or not file.whole:
            raise LookupError("not every shard is here")
        return file.path

    def _arrival(self, digest: Digest) -> IncomingFile | None:
        """Return the arrival of a blob that is not yet complete."""
        found = None if digest in self._sizes else self._files.find(digest)
        return found.arrival if found else None

    # Single blobs

    async def _put(self, data: bytes, owner: Owner) -> Digest:
        digest = await files.in_thread(crypto.digest, data)
        async with self._changing:
            if digest in self._sizes:
                await self._claim(digest, owner)
                return digest
        self._reserve(len(data))
        temporary = self._temporary / str(next(self._names))
        try:
            await files.in_thread(files.write_synced, temporary, data)
            async with self._changing:
                await self._claim(digest, owner)
                await files.in_thread(files.promote, temporary, self._path(digest))
        except BaseException:
            self.used_bytes -= len(data)
            temporary.unlink(missing_ok=True)
            raise
        if digest in self._sizes:  # stored twice concurrently
            self.used_bytes -= len(data)
        self._sizes[digest] = len(data)
        return digest

    async def _claim(self, digest: Digest, owner: Owner) -> None:
        if not self._owners.needs(owner, digest):
            await files.in_thread(self._owners.write_file, owner, digest)
            self._owners.add(owner, digest)

    def _reserve(self, length: int, *, on_disk: bool = False) -> None:
        """Count ``length`` bytes as used; raises ``StorageFullError``."""
        quota_bytes = self.used_bytes + length if self._quota_bytes is None else self._quota_bytes
        room = quota_bytes - self.used_bytes
        if not on_disk:
            room = min(room, shutil.disk_usage(self._complete).free)
        if room < length:
            raise StorageFullError(f"no room for {length} bytes")
        self.used_bytes += length

    # Sharded files

    async def _put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        temporary = self._temporary / str(next(self._names))
        try:
            index = await files.in_thread(_take, path, temporary, shard_bytes, chunk_bytes)
            name, index_bytes = await self._put_index(index, purpose)
            async with self._changing:
                await self._keep(name, index, temporary)
        finally:
            await files.in_thread(temporary.unlink, True)
        return StoredFile(name, index_bytes, index)

    async def _put_index(self, index: ShardIndex, purpose: Purpose) -> tuple[Digest, int]:
        """Store an index as a blob; return its digest and its length in bytes."""
        data, name = await files.in_thread(_encode, index)
        return await self._put(data, Owner(purpose, name)), len(data)

    async def _keep(self, name: Digest, index: ShardIndex, temporary: Path) -> None:
        """Move a synced file to the place of its index."""
        known = self._files.get(name)
        if known is not None and known.whole:
            return
        path = self._files.whole_path(name)
        leftover = 0 if known else self._files.leftover_bytes(name)
        if known is None:
            self._reserve(index.total_bytes - leftover, on_disk=True)
            self._files.claim_leftover(name)
        try:
            await files.in_thread(files.promote, temporary, path)
            await files.in_thread(self._files.arriving_path(name).unlink, True)
        except BaseException:
            if known is None:
                self.used_bytes -= index.total_bytes
            raise
        if known is None:
            self._files.add(ShardedFile(name, path, index, ()))
        else:
            known.complete(path)

    async def _open(self, index: ShardIndex, purpose: Purpose) -> Sequence[IncomingFile]:
        name, _ = await self._put_index(index, purpose)
        async with self._changing:
            file = self._files.get(name) or await self._begin(name, index)
        if file.whole:
            everything = [bytearray(b"\1" * len(plan.chunks)) for plan in _plans(index)]
            return self._arrivals(file, everything)
        arrivals = file.arrivals
        for arrival in arrivals:
            if not arrival.missing() and not arrival.complete:
                await arrival.finish()  # a crash came between the last chunk and the rename
        return arrivals

    async def _begin(self, name: Digest, index: ShardIndex) -> ShardedFile:
        """Start the arrival of a file, or resume one after a restart."""
        plans, path = _plans(index), self._files.arriving_path(name)
        leftover = self._files.leftover_bytes(name)
        self._reserve(index.total_bytes - leftover)
        self._files.claim_leftover(name)
        try:
            here = await files.in_thread(prepare, path, plans)
        except BaseException:
            self.used_bytes -= index.total_bytes
            path.unlink(missing_ok=True)
            raise
        file = ShardedFile(name, path, index, ())
        file.arrivals = self._arrivals(file, here)
        self._files.add(file)
        return file

    def _arrivals(self, file: ShardedFile, here: Sequence[bytearray]) -> tuple[IncomingFile, ...]:
        """Return the arrivals of all shards; ``here`` masks the stored chunks."""
        arrived = partial(self._arrived, file)
        return tuple(
            IncomingFile(plan, file.path, file.offset(shard), here[shard], arrived)
            for shard, plan in enumerate(_plans(file.index))
        )

    async def _arrived(self, file: ShardedFile, arrival: IncomingFile, fits: bool) -> None:
        """Mark a shard as complete, or drop the file when its chunks do not form the shard."""
        async with self._changing:
            if self._files.get(file.name) is not file or file.whole:
                return  # released, or completed another way
            if not fits:
                self.used_bytes -= self._files.remove(file.name)
                await files.in_thread(self._files.unlink, file.name)
                return
            arrival.complete = True
            if all(one.complete for one in file.arrivals):
                path = self._files.whole_path(file.name)
                try:
                    await files.in_thread(files.promote, file.path, path)
                except BaseException:
                    arrival.complete = False
                    raise
                file.complete(path)

    # Release

    async def _release(self, owner: Owner) -> None:
        async with self._changing:
            await files.in_thread(self._owners.delete_file, owner)
            unowned = self._owners.remove(owner)
            for digest in unowned:
                self.used_bytes -= self._files.remove(digest) + self._sizes.pop(digest, 0)
            await files.in_thread(self._unlink, unowned)

    def _unlink(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._files.unlink(digest)
            self._path(digest).unlink(missing_ok=True)

    # Lookup

    def _found(self) -> Iterator[tuple[Digest, int]]:
        """Yield the blobs stored before a restart; delete those without an owner."""
        for digest, path in files.named_by_digest(self._complete.glob("*/*")):
            if self._owners.owned(digest):
                yield digest, path.stat().st_size
            else:
                path.unlink()

    def _index_here(self, digest: Digest) -> ShardIndex | None:
        if digest not in self._sizes:
            return None
        index = shard_index.decode(self._path(digest).read_bytes())
        return None if isinstance(index, Fault) else index

    def _path(self, digest: Digest) -> Path:
        name = digest.hex()
        return self._complete / name[:2] / name

    def _part(self, digest: Digest, offset: int, count: int) -> FilePart:
        if digest in self._sizes:
            return FilePart((self._path(digest),), offset, count)
        found = self._files.find(digest)
        if found is None:
            raise LookupError("the blob was deleted")
        file = found.file
        # An arriving file may be renamed when complete, before this part is read.
        paths = (file.path,) if file.whole else (file.path, self._files.whole_path(file.name))
        return FilePart(paths, found.offset + offset, count)


def _plans(index: ShardIndex) -> list[FilePlan]:
    return [
        FilePlan(shard.digest, shard.length, index.chunk_bytes, shard.chunks)
        for shard in index.shards
    ]


def _take(path: Path, target: Path, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
    """Link a file to a second name, which survives a rename over the first."""
    try:
        files.link_synced(path, target)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is empty or missing") from error
    return index_of(target, shard_bytes, chunk_bytes)


def _encode(index: ShardIndex) -> tuple[bytes, Digest]:
    data = shard_index.encode(index)
    return data, crypto.digest(data)
