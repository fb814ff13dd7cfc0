"""Content-addressed blobs as files: the ``Blobs`` port on a directory.

``complete/ab/ab12…`` holds whole blobs, named by their BLAKE3 digest; a file appears there by
rename after its bytes were checked and synced. ``arriving/ab12…`` holds a blob that comes chunk by
chunk, at its full length from the start, so that a full disk shows at once; a restart trusts no
journal but hashes the chunks again. ``temporary/`` holds what ``put`` writes, and is emptied at the
start.

Bookkeeping happens on the event loop, file access in threads. One process uses a directory (the
daemon's ``LOCK``).
"""

import asyncio
import functools
import itertools
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

from node.storage import files
from node.storage.arrival import Arrival, Plan, prepare
from protocol.shardcast import index as shard_index
from protocol.types import DIGEST_BYTES, Digest
from roles.ports.storage import StorageFullError

PIECE_BYTES = 256 * 1024
"""Read and yielded at once: a guess between thread hops and memory."""


class FileBlobs:
    """Blobs in ``directory``, at most ``quota_bytes`` of them (None: the disk is the limit)."""

    def __init__(self, directory: Path, quota_bytes: int | None = None) -> None:
        self._complete = directory / "complete"
        self._arriving = directory / "arriving"
        self._temporary = directory / "temporary"
        self._quota_bytes = quota_bytes
        shutil.rmtree(self._temporary, ignore_errors=True)
        for part in (self._complete, self._arriving, self._temporary):
            part.mkdir(parents=True, exist_ok=True)
        self._sizes = dict(_sizes(self._complete.glob("*/*")))
        self._leftovers = dict(_sizes(self._arriving.iterdir()))  # not resumed in this life so far
        self._arrivals: dict[Digest, Arrival] = {}
        self._used_bytes = sum(self._sizes.values()) + sum(self._leftovers.values())
        self._names = itertools.count()
        self._opening = asyncio.Lock()

    @property
    def used_bytes(self) -> int:
        """What all blobs take, arriving ones at their full length."""
        return self._used_bytes

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here completely."""
        return digest in self._sizes

    def size(self, digest: Digest) -> int | None:
        """Return the length in bytes of a blob that is here or arriving, else None."""
        arrival = self._arrivals.get(digest)
        return arrival.plan.length if arrival else self._sizes.get(digest)

    async def put(self, data: bytes) -> Digest:
        """Store ``data`` durably; raises ``StorageFullError``."""
        return await files.uninterrupted(self._store(len(data), lambda: (data,)))

    async def put_file(self, path: Path, offset: int, length: int) -> Digest:
        """Store a slice of a file without holding it in memory; raises ``StorageFullError``.

        Raises ``ValueError`` when the file ends before the slice does.
        """
        pieces = functools.partial(_slice, path, offset, length)
        return await files.uninterrupted(self._store(length, pieces))

    async def chunk_digests(self, digest: Digest, chunk_bytes: int) -> tuple[Digest, ...]:
        """Return the digests of a blob's chunks; raises ``LookupError`` when it is not here."""
        if digest not in self._sizes:
            raise LookupError("no such blob")
        try:
            return await files.in_thread(
                _chunk_digests, self._path(digest), self._sizes[digest], chunk_bytes
            )
        except FileNotFoundError as error:  # deleted meanwhile
            raise LookupError("no such blob") from error

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None when it is not (completely) here."""
        if digest not in self._sizes:
            return None
        try:
            return await files.in_thread(self._path(digest).read_bytes)
        except FileNotFoundError:  # deleted meanwhile
            return None

    async def open_partial(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest]
    ) -> Arrival:
        """Start or resume the arrival of a blob; raises ``StorageFullError``.

        Raises ``ValueError`` when the blob is already here, or arriving, with other sizes or
        chunks, or when all its chunks are here and their whole has another digest.
        """
        plan = Plan(digest, length, chunk_bytes, tuple(chunks))
        async with self._opening:
            return await files.uninterrupted(self._open(plan))

    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield a range, waiting for chunks that are still arriving (cut-through).

        Raises ``LookupError`` when the blob is not here, is deleted, or its arrival is abandoned;
        ``ValueError`` when the range does not lie within it.
        """
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
            count = min(readable_end - offset, PIECE_BYTES)
            piece = await files.in_thread(self._read, digest, offset, count)
            yield piece
            offset += len(piece)

    async def concatenate(self, digests: Sequence[Digest], path: Path) -> None:
        """Write blobs one after another to ``path`` atomically; raises ``StorageFullError``.

        Raises ``LookupError`` when one of them is not here completely.
        """
        if not all(digest in self._sizes for digest in digests):
            raise LookupError("not every blob is here")
        sources = [self._path(digest) for digest in digests]
        await files.uninterrupted(files.in_thread(_concatenate, sources, path))

    async def delete(self, digest: Digest) -> None:
        """Forget a blob, complete or arriving; idempotent."""
        arrival = self._arrivals.pop(digest, None)
        if arrival is not None:
            arrival.abandon()
            self._used_bytes -= arrival.plan.length
        self._used_bytes -= self._leftovers.pop(digest, 0) + self._sizes.pop(digest, 0)
        await files.uninterrupted(files.in_thread(self._unlink, digest))

    def file_bytes(self, path: Path) -> int | None:
        """Return the length of a file beside the blobs, None when there is none."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def delete_file(self, path: Path) -> None:
        """Delete a file beside the blobs; idempotent."""
        path.unlink(missing_ok=True)

    # Storing

    async def _store(self, length: int, pieces: Callable[[], Iterable[bytes]]) -> Digest:
        self._reserve(length)
        temporary = self._temporary / str(next(self._names))
        try:
            digest = await files.in_thread(_write_pieces, temporary, pieces)
            await files.in_thread(files.promote, temporary, self._path(digest))
        except BaseException:
            self._used_bytes -= length
            temporary.unlink(missing_ok=True)
            raise
        if digest in self._sizes:
            self._used_bytes -= length
        self._sizes[digest] = length
        arrival = self._arrivals.pop(digest, None)
        if arrival is not None:
            self._used_bytes -= arrival.plan.length
            arrival.fill()
            self._arriving_path(digest).unlink(missing_ok=True)
        return digest

    async def _open(self, plan: Plan) -> Arrival:
        known = self._arrivals.get(plan.digest)
        if known is not None and known.plan == plan:
            return known
        if known is not None or self._sizes.get(plan.digest, plan.length) != plan.length:
            raise ValueError("the blob is here with other sizes or chunks")
        if plan.digest in self._sizes:
            return self._arrival(plan, bytearray(b"\1" * len(plan.chunks)))
        leftover = self._leftovers.pop(plan.digest, 0)
        self._used_bytes -= leftover
        self._reserve(plan.length, on_disk_bytes=leftover)
        try:
            here = await files.in_thread(prepare, self._arriving_path(plan.digest), plan)
        except BaseException:
            self._used_bytes -= plan.length
            raise
        arrival = self._arrivals[plan.digest] = self._arrival(plan, here)
        if not arrival.missing():
            await self._finish(arrival)
        return arrival

    def _arrival(self, plan: Plan, here: bytearray) -> Arrival:
        path, target = self._arriving_path(plan.digest), self._path(plan.digest)
        return Arrival(plan, path, target, here, self._arrival_ended)

    async def _finish(self, arrival: Arrival) -> None:
        """Complete an arrival that the last life left with every chunk here."""
        try:
            await arrival.finish()
        except StorageFullError:
            del self._arrivals[arrival.plan.digest]
            self._leftovers[arrival.plan.digest] = arrival.plan.length
            raise

    def _arrival_ended(self, arrival: Arrival, complete: bool) -> None:
        digest = arrival.plan.digest
        if self._arrivals.get(digest) is not arrival:  # deleted, or stored by put, meanwhile
            return
        del self._arrivals[digest]
        if complete:
            self._sizes[digest] = arrival.plan.length
        else:
            self._used_bytes -= arrival.plan.length
            arrival.abandon()
            self._arriving_path(digest).unlink(missing_ok=True)

    def _reserve(self, length: int, on_disk_bytes: int = 0) -> None:
        """Count ``length`` bytes as used, at the cost of leftovers; raises ``StorageFullError``."""
        while self._room_bytes(on_disk_bytes) < length:
            if not self._leftovers:
                raise StorageFullError(f"no room for {length} bytes")
            digest, leftover = self._leftovers.popitem()
            self._arriving_path(digest).unlink(missing_ok=True)
            self._used_bytes -= leftover
        self._used_bytes += length

    def _room_bytes(self, on_disk_bytes: int) -> int:
        """Return what disk and quota leave, when ``on_disk_bytes`` of it are written already."""
        disk = shutil.disk_usage(self._complete).free + on_disk_bytes
        return (
            disk if self._quota_bytes is None else min(disk, self._quota_bytes - self._used_bytes)
        )

    # Files

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

    def _unlink(self, digest: Digest) -> None:
        self._arriving_path(digest).unlink(missing_ok=True)  # first: a rename may be under way
        self._path(digest).unlink(missing_ok=True)


def _sizes(paths: Iterable[Path]) -> Iterator[tuple[Digest, int]]:
    for path in paths:
        if len(path.name) == 2 * DIGEST_BYTES:
            yield Digest(bytes.fromhex(path.name)), path.stat().st_size


def _write_pieces(path: Path, pieces: Callable[[], Iterable[bytes]]) -> Digest:
    return files.write_synced(path, pieces())


def _slice(path: Path, offset: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            piece = file.read(min(length, PIECE_BYTES))
            if not piece:
                raise ValueError(f"{path} ends before its slice")
            length -= len(piece)
            yield piece


def _chunk_digests(path: Path, length: int, chunk_bytes: int) -> tuple[Digest, ...]:
    return shard_index.chunk_digests(_slice(path, 0, length), chunk_bytes)


def _concatenate(sources: Sequence[Path], target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        files.write_synced(temporary, (p for s in sources for p in _slice(s, 0, s.stat().st_size)))
        files.promote(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
