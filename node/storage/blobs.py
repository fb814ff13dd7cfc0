"""Content-addressed blobs as files: the ``Blobs`` port on a directory.

``complete/ab/ab12…`` holds whole blobs, named by their BLAKE3 digest; a file appears there by
rename after its bytes were checked and synced. ``arriving/ab12…`` holds a blob that comes chunk by
chunk, at its full length from the start, so that a full disk shows at once; a restart trusts no
journal but hashes the chunks again. ``owners/`` says what each of them is stored for, and is
written first; what has no owner is deleted at the start. ``temporary/`` holds what ``put`` writes,
and is emptied at the start.

Bookkeeping happens on the event loop, file access in threads. One process uses a directory (the
daemon's ``LOCK``).
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path

from typing_extensions import override

from node.storage import files
from node.storage.arrival import Arrival, Plan, prepare
from node.storage.owners import Owners
from protocol import crypto
from protocol.types import Digest
from roles.ports.storage import Blobs, Holding, Owner, Purpose, StorageFullError


class FileBlobs(Blobs):
    """Blobs in ``directory``, at most ``quota_bytes`` of them (None: the disk is the limit)."""

    def __init__(self, directory: Path, quota_bytes: int | None = None) -> None:
        self._complete = directory / "complete"
        self._arriving = directory / "arriving"
        self._temporary = directory / "temporary"
        self._quota_bytes = quota_bytes
        shutil.rmtree(self._temporary, ignore_errors=True)
        for part in (self._complete, self._arriving, self._temporary):
            files.make_directory(part)
        self._owners = Owners(directory / "owners")
        self._sizes = dict(self._found(self._complete.glob("*/*")))
        self._leftovers = dict(self._found(self._arriving.iterdir()))  # not resumed so far
        self._arrivals: dict[Digest, Arrival] = {}
        self.used_bytes = sum(self._sizes.values()) + sum(self._leftovers.values())
        """What all blobs take, arriving ones at their full length."""
        self._names = itertools.count()
        self._changing = asyncio.Lock()
        """Held while a blob comes to be here, goes, or gets an owner; not while it is written."""

    @override
    def has(self, digest: Digest) -> bool:
        return digest in self._sizes

    @override
    def size(self, digest: Digest) -> int | None:
        arrival = self._arrivals.get(digest)
        return arrival.plan.length if arrival else self._sizes.get(digest)

    @override
    def holding(self, digest: Digest) -> Holding | None:
        arrival = self._arrivals.get(digest)
        return arrival.holding() if arrival else None

    @override
    async def put(self, data: bytes, owner: Owner) -> Digest:
        return await files.uninterrupted(self._put(data, owner))

    @override
    async def put_file(self, path: Path, offset: int, length: int, owner: Owner) -> Digest:
        pieces = files.slice_of(path, offset, length)
        try:
            return await files.uninterrupted(self._store(length, pieces, owner))
        except FileNotFoundError as error:
            raise ValueError(f"{path} is missing") from error

    @override
    async def get(self, digest: Digest) -> bytes | None:
        if digest not in self._sizes:
            return None
        try:
            return await files.in_thread(self._path(digest).read_bytes)
        except FileNotFoundError:  # released meanwhile
            return None

    @override
    async def open_partial(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest], owner: Owner
    ) -> Arrival:
        plan = Plan(digest, length, chunk_bytes, tuple(chunks))
        return await files.uninterrupted(self._open(plan, owner))

    @override
    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        size = self.size(digest)
        if size is None:
            raise LookupError("no such blob")
        if offset < 0 or offset + length > size:
            raise ValueError(f"no range {offset}+{length} in {size} bytes")
        end = offset + length
        while offset < end:
            readable_end = end
            arrival = self._arrivals.get(digest)
            if arrival is not None:
                index = offset // arrival.plan.chunk_bytes
                await arrival.wait_for(index)
                readable_end = min(end, (index + 1) * arrival.plan.chunk_bytes)
            count = min(readable_end - offset, files.PIECE_BYTES)
            piece = await files.in_thread(self._read, digest, offset, count)
            yield piece
            offset += len(piece)

    @override
    def owners(self, purpose: Purpose) -> list[Owner]:
        return self._owners.of(purpose)

    @override
    async def release(self, owner: Owner) -> None:
        await files.uninterrupted(self._release(owner))

    def purposes(self, digest: Digest) -> set[Purpose]:
        """Return what a blob is stored for."""
        return self._owners.purposes(digest)

    def file_of(self, digest: Digest) -> Path:
        """Return the file that holds a blob; raises ``LookupError`` when it is not here."""
        if digest not in self._sizes:
            raise LookupError("no such blob")
        return self._path(digest)

    # Storing

    async def _put(self, data: bytes, owner: Owner) -> Digest:
        digest = await files.in_thread(crypto.digest, data)
        async with self._changing:
            if digest in self._sizes:
                await self._claim(digest, owner)
                return digest
        return await self._store(len(data), (data,), owner)

    async def _store(self, length: int, pieces: Iterable[bytes], owner: Owner) -> Digest:
        self._reserve(length)
        temporary = self._temporary / str(next(self._names))
        try:
            digest = await files.in_thread(files.write_synced, temporary, pieces)
            async with self._changing:
                await self._keep(temporary, digest, length, owner)
        except BaseException:
            self.used_bytes -= length
            temporary.unlink(missing_ok=True)
            raise
        return digest

    async def _keep(self, temporary: Path, digest: Digest, length: int, owner: Owner) -> None:
        """Make a synced file the blob that it is, for which ``length`` bytes are reserved."""
        await self._claim(digest, owner)
        await files.in_thread(files.promote, temporary, self._path(digest))
        if digest in self._sizes:
            self.used_bytes -= length
        self._sizes[digest] = length
        leftover = self._leftovers.pop(digest, 0)
        self.used_bytes -= leftover
        arrival = self._arrivals.pop(digest, None)
        if arrival is not None:
            self.used_bytes -= arrival.plan.length
            arrival.fill()
        if arrival is not None or leftover:
            await files.in_thread(self._arriving_path(digest).unlink, True)

    async def _claim(self, digest: Digest, owner: Owner) -> None:
        if not self._owners.needs(owner, digest):
            await files.in_thread(self._owners.write_file, owner, digest)
            self._owners.add(owner, digest)

    async def _open(self, plan: Plan, owner: Owner) -> Arrival:
        async with self._changing:
            arrival = await self._join(plan, owner) or await self._begin(plan, owner)
        if not arrival.missing() and plan.digest not in self._sizes:
            await arrival.finish()  # the end came after the last chunk and before the rename
        return arrival

    async def _join(self, plan: Plan, owner: Owner) -> Arrival | None:
        """Return an arrival of what is here or arriving already."""
        known = self._arrivals.get(plan.digest)
        other_plan = known is not None and known.plan != plan
        if other_plan or self._sizes.get(plan.digest, plan.length) != plan.length:
            raise ValueError("the blob is here with other sizes or chunks")
        if known is None and plan.digest not in self._sizes:
            return None
        await self._claim(plan.digest, owner)
        return known or self._arrival(plan, bytearray(b"\1" * len(plan.chunks)))

    async def _begin(self, plan: Plan, owner: Owner) -> Arrival:
        """Start an arrival, or resume one from before a restart."""
        leftover = self._leftovers.get(plan.digest, 0)
        self._reserve(plan.length, on_disk_bytes=leftover)
        self.used_bytes -= self._leftovers.pop(plan.digest, 0)
        try:
            await self._claim(plan.digest, owner)
            here = await files.in_thread(prepare, self._arriving_path(plan.digest), plan)
        except BaseException:
            self.used_bytes -= plan.length
            self._arriving_path(plan.digest).unlink(missing_ok=True)
            raise
        arrival = self._arrivals[plan.digest] = self._arrival(plan, here)
        return arrival

    def _arrival(self, plan: Plan, here: bytearray) -> Arrival:
        return Arrival(plan, self._arriving_path(plan.digest), here, self._arrived)

    async def _arrived(self, arrival: Arrival, fits: bool) -> None:
        """Make a whole arrival a blob, or drop it because its chunks make another one."""
        digest = arrival.plan.digest
        async with self._changing:
            if self._arrivals.get(digest) is not arrival:  # released, or it came another way
                return
            path = self._arriving_path(digest)
            if fits:
                await files.in_thread(files.promote, path, self._path(digest))
                self._sizes[digest] = arrival.plan.length
            else:
                self.used_bytes -= arrival.plan.length
                await files.in_thread(path.unlink, True)
                arrival.abandon()
            del self._arrivals[digest]

    def _reserve(self, length: int, on_disk_bytes: int = 0) -> None:
        """Count ``length`` bytes, some of them written, as used; raises ``StorageFullError``."""
        room = shutil.disk_usage(self._complete).free
        if self._quota_bytes is not None:
            room = min(room, self._quota_bytes - self.used_bytes)
        if room + on_disk_bytes < length:
            raise StorageFullError(f"no room for {length} bytes")
        self.used_bytes += length

    # Forgetting

    async def _release(self, owner: Owner) -> None:
        async with self._changing:
            await files.in_thread(self._owners.delete_file, owner)
            unowned = self._owners.remove(owner)
            for digest in unowned:
                arrival = self._arrivals.pop(digest, None)
                if arrival is not None:
                    arrival.abandon()
                    self.used_bytes -= arrival.plan.length
                self.used_bytes -= self._leftovers.pop(digest, 0) + self._sizes.pop(digest, 0)
            await files.in_thread(self._unlink, unowned)

    # Files

    def _found(self, paths: Iterable[Path]) -> Iterator[tuple[Digest, int]]:
        """Yield what was stored before a restart; delete what has no owner."""
        for digest, path in files.named_by_digest(paths):
            if self._owners.owned(digest):
                yield digest, path.stat().st_size
            else:
                path.unlink()

    def _path(self, digest: Digest) -> Path:
        name = digest.hex()
        return self._complete / name[:2] / name

    def _arriving_path(self, digest: Digest) -> Path:
        return self._arriving / digest.hex()

    def _read(self, digest: Digest, offset: int, count: int) -> bytes:
        """Read from wherever the blob is; it may move from arriving to complete meanwhile."""
        final, partial = self._path(digest), self._arriving_path(digest)
        for path in (final, partial, final):
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    if piece := file.read(count):
                        return piece
            except FileNotFoundError:
                continue
        raise LookupError("the blob was deleted")

    def _unlink(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._arriving_path(digest).unlink(missing_ok=True)
            self._path(digest).unlink(missing_ok=True)
