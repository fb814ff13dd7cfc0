"""A blob that is arriving: a file at its full length, and which chunks of it are verified."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from typing_extensions import override

from node.storage import files
from protocol import crypto
from protocol.types import Digest
from roles.ports.storage import Holding, PartialBlob


@dataclass(frozen=True, slots=True)
class Plan:
    """What an arriving blob will be: digest, length in bytes, and the digests of its chunks."""

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

    def fits(self, index: int, data: bytes) -> bool:
        """Tell whether ``data`` is chunk ``index``."""
        right_length = len(data) == self.chunk_length(index)
        return right_length and crypto.digest(data) == self.chunks[index]


def prepare(path: Path, plan: Plan) -> bytearray:
    """Make or reopen the file of an arrival; return one byte per chunk, 1 for what is verified."""
    here = bytearray(len(plan.chunks))
    if path.exists() and path.stat().st_size == plan.length:
        with path.open("rb") as file:
            for index in range(len(here)):
                here[index] = plan.fits(index, file.read(plan.chunk_length(index)))
        return here
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, plan.length)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return here


class Arrival(PartialBlob):
    """A blob that is arriving in a file; also lets readers wait for a chunk.

    ``ended`` is awaited when every chunk is here, with whether they make the promised blob.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        here: bytearray,
        ended: Callable[["Arrival", bool], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self._path = path
        self._here = here
        self._ended = ended
        self._abandoned = False
        self._changed = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None

    @override
    def missing(self) -> list[int]:
        return [index for index, here in enumerate(self._here) if not here]

    def holding(self) -> Holding:
        """Return which chunks are readable."""
        mask = sum(1 << index for index, here in enumerate(self._here) if here)
        return Holding(self.plan.chunk_bytes, mask)

    @override
    async def write_chunk(self, index: int, data: bytes) -> bool:
        return await files.uninterrupted(self._write_chunk(index, data))

    async def wait_for(self, index: int) -> None:
        """Return when chunk ``index`` is readable; raises ``LookupError`` if it never will be."""
        while not self._here[index]:
            if self._abandoned:
                raise LookupError("the arrival was abandoned")
            await self._changed.wait()

    def abandon(self) -> None:
        """Tell whoever waits for a chunk that it will not come; idempotent."""
        self._abandoned = True
        self._wake()

    def fill(self) -> None:
        """Note that the whole blob came another way."""
        self._here[:] = b"\1" * len(self._here)
        self._wake()

    async def finish(self) -> None:
        """Check the whole and end; raises as ``write_chunk``."""
        try:
            digest = await files.in_thread(_digest_synced, self._path, self.plan.length)
            fits = digest == self.plan.digest
            await self._ended(self, fits)
        except FileNotFoundError as error:
            raise LookupError("the arrival was abandoned") from error
        if not fits:
            raise ValueError("the chunks fit and do not make the blob")
        if self._abandoned:
            raise LookupError("the arrival was abandoned")

    async def _write_chunk(self, index: int, data: bytes) -> bool:
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
            # A second copy of the last chunk waits too: its sender was right, and whoever hears
            # that every chunk is here may read the whole.
            await asyncio.shield(self._finishing)
        return True

    async def _finish_with(self, last: int) -> None:
        try:
            await self.finish()
        except BaseException:
            self._here[last] = 0  # the disk filled up at the end: this chunk comes again
            self._finishing = None
            raise

    def _write_if_fits(self, index: int, data: bytes) -> bool:
        if not self.plan.fits(index, data):
            return False
        if not self._here[index]:
            with self._path.open("r+b") as file:
                file.seek(index * self.plan.chunk_bytes)
                file.write(data)
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _digest_synced(path: Path, length: int) -> Digest:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    # A mapped file would count as this process's memory, and several shards end at once.
    hasher = blake3()
    for piece in files.slice_of(path, 0, length):
        hasher.update(piece)
    return Digest(hasher.digest())
