"""A simulated blob that arrives chunk by chunk."""

import asyncio
from collections.abc import Callable, Sequence

from typing_extensions import override

from protocol.core.types import Digest
from roles.ports.storage import (
    Holding,
    PartialBlob,
)
from simulations.runtime.content import digest_of, joined


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
