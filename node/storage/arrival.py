"""Arriving blob in a range of a file, with a mask of its verified chunks."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from blake3 import blake3
from typing_extensions import override

from node.storage import files
from protocol.core import crypto
from protocol.core.types import Digest
from roles.ports.storage import Holding, PartialBlob


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Digest, length in bytes and chunk digests of an arriving blob."""

    digest: Digest
    length: int
    chunk_bytes: int
    chunks: tuple[Digest, ...]

    def __post_init__(self) -> None:
        if self.length < 1 or len(self.chunks) != -(-self.length // self.chunk_bytes):
            raise ValueError("the chunks do not add up to the blob")

    def chunk_length(self, index: int) -> int:
        """Return the length in bytes of one chunk."""
        return min(self.chunk_bytes, self.length - index * self.chunk_bytes)

    def fits(self, index: int, data: bytes | bytearray) -> bool:
        """Return whether ``data`` is chunk ``index``."""
        right_length = len(data) == self.chunk_length(index)
        return right_length and crypto.digest(data) == self.chunks[index]


class IncomingFile(PartialBlob):
    """Arriving blob at an offset of a file; readers can wait for a chunk.

    ``on_end`` is awaited when every chunk is here; its flag tells whether the digest matches.
    """

    def __init__(
        self,
        plan: FilePlan,
        path: Path,
        offset: int,
        here: bytearray,
        on_end: Callable[["IncomingFile", bool], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.complete = False
        """True once the blob is here."""
        self._path = path
        self._offset = offset
        self._here = here
        self._on_end = on_end
        self._digest = RunningDigest(plan, path, offset, here)
        self._abandoned = False
        self._changed = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None

    @override
    def missing(self) -> list[int]:
        return [index for index, here in enumerate(self._here) if not here]

    def holding(self) -> Holding:
        """Return the mask of readable chunks."""
        mask = sum(1 << index for index, here in enumerate(self._here) if here)
        return Holding(self.plan.chunk_bytes, mask)

    @override
    async def write_chunk(self, index: int, data: bytes | bytearray) -> bool:
        return await files.uninterrupted(self._write_chunk(index, data))

    async def wait_for(self, index: int) -> None:
        """Wait until chunk ``index`` is readable; raises ``LookupError`` if it never will be."""
        while not self._here[index]:
            if self._abandoned:
                raise LookupError("the arrival was abandoned")
            await self._changed.wait()

    def abandon(self) -> None:
        """Fail all waiting readers; idempotent."""
        self._abandoned = True
        self._wake()

    def fill(self) -> None:
        """Mark the whole blob as here."""
        self._here[:] = b"\1" * len(self._here)
        self.complete = True
        self._wake()

    async def finish(self) -> None:
        """Check the digest and end; raises as ``write_chunk``."""
        try:
            fits = await files.in_thread(self._digest_synced) == self.plan.digest
            await self._on_end(self, fits)
        except FileNotFoundError as error:
            raise LookupError("the arrival was abandoned") from error
        if not fits:
            raise ValueError("the chunks fit and do not make the blob")
        if self._abandoned:
            raise LookupError("the arrival was abandoned")

    async def _write_chunk(self, index: int, data: bytes | bytearray) -> bool:
        try:
            fits = await files.in_thread(self._write_if_fits, index, data)
        except FileNotFoundError as error:
            raise LookupError("the arrival was abandoned") from error
        if not fits:
            return False
        if not self._here[index]:
            self._here[index] = 1
            self._wake()
            if all(self._here):
                self._finishing = asyncio.create_task(self._finish_with(index))
        if self._finishing is not None:
            # The sender of a second copy of the last chunk waits too. It sent good bytes, and on
            # its return the whole blob must be readable.
            await asyncio.shield(self._finishing)
        return True

    async def _finish_with(self, last: int) -> None:
        try:
            await self.finish()
        except BaseException:
            self._here[last] = 0  # the disk became full: this chunk must come again
            self._finishing = None
            raise

    def _write_if_fits(self, index: int, data: bytes | bytearray) -> bool:
        if not self.plan.fits(index, data):
            return False
        if not self._here[index]:
            with self._path.open("r+b") as file:
                file.seek(self._offset + index * self.plan.chunk_bytes)
                file.write(data)
        self._digest.add(index, data)
        return True

    def _digest_synced(self) -> Digest:
        with self._path.open("r+b") as file:
            os.fsync(file.fileno())
        return self._digest.finish()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RunningDigest:
    """Incremental digest of a blob whose chunks arrive in any order.

    Threads add chunks. The next chunk in order is hashed while it is in the CPU cache; chunks that
    came before it are then read from the file.
    """

    def __init__(self, plan: FilePlan, path: Path, offset: int, here: bytearray) -> None:
        self._plan = plan
        self._path = path
        self._offset = offset
        self._written = bytearray(here)
        self._hasher = blake3()
        self._next = 0
        self._hashing = Lock()

    def add(self, index: int, data: bytes | bytearray) -> None:
        """Note a chunk that is in the file."""
        self._written[index] = 1
        if self._hashing.acquire(blocking=False):  # else another thread hashes it, or ``finish``
            try:
                if index == self._next:
                    self._hasher.update(data)
                    self._next += 1
                self._catch_up()
            finally:
                self._hashing.release()

    def finish(self) -> Digest:
        """Return the digest of the whole blob; every chunk must have been written."""
        with self._hashing:
            self._catch_up()
            return Digest(self._hasher.digest())

    def _catch_up(self) -> None:
        first, chunk_bytes = self._next, self._plan.chunk_bytes
        gap = self._written.find(0, first)
        self._next = len(self._written) if gap < 0 else gap
        if self._next == first:
            return
        # A mapped file would count as memory of this process, and several shards end at once.
        start, stop = first * chunk_bytes, min(self._next * chunk_bytes, self._plan.length)
        try:
            for piece in files.slice_of(self._path, self._offset + start, stop - start):
                self._hasher.update(piece)
        except BaseException:
            self._hasher, self._next = blake3(), 0  # the hashed length is unknown
            raise
