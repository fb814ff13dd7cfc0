"""Atomic and durable file operations; a full disk raises ``StorageFullError``."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from node.local.datadir import sync_directory
from protocol.core.types import DIGEST_BYTES, Digest
from roles.ports.storage import StorageFullError

T = TypeVar("T")

PIECE_BYTES = 512 * 1024
"""Bytes per read, a trade of thread switches for memory. An HTTP server took 0.5 s of CPU per GB
with 256 KiB and 0.25 s with 1 MiB (measured)."""

NEXT_BYTES = 64 * 1024
"""Bytes read when the socket is full. The transport that holds them reports when 2.7 MB more fit
(loopback, measured); ``sendfile`` then sends those without a copy."""

_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without ``sendfile``."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without hard links (FAT), or of links across file systems."""


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run blocking file access in a thread; raises ``StorageFullError`` when the disk is full."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError(str(error)) from error
        raise


async def uninterrupted(operation: Coroutine[Any, Any, T]) -> T:
    """Run ``operation`` to its end, and only then raise a cancellation of the caller.

    A thread cannot be cancelled: bookkeeping would otherwise miss a file that exists.
    """
    task = asyncio.ensure_future(operation)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def write_synced(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` and sync it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def link_synced(source: Path, target: Path) -> None:
    """Hard-link a file and sync its bytes; copy it where links are not supported."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
    with target.open("r+b") as file:
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class FilePart:
    """Range of the first existing file of ``paths``: a file may be renamed before use.

    A slice of it is another range. Its methods raise ``LookupError`` when no file exists or the
    file is too short.
    """

    paths: Sequence[Path]
    offset: int
    length: int

    def __len__(self) -> int:
        """Return the length in bytes."""
        return self.length

    def __getitem__(self, cut: slice) -> "FilePart":
        """Return a range within this one."""
        start, stop, _ = cut.indices(self.length)
        return FilePart(self.paths, self.offset + start, stop - start)

    def read(self) -> bytes:
        """Return the bytes."""
        with self._open() as file:
            data = os.pread(file.fileno(), self.length, self.offset)
        if len(data) < self.length:
            raise LookupError("the file ended early")
        return data

    def send(self, descriptor: int) -> tuple[int, bytes]:
        """Send without a copy what a socket accepts; return that length, and the next bytes.

        The socket must not block. The next bytes are at most ``NEXT_BYTES``.
        """
        with self._open() as file:
            try:
                sent = os.sendfile(descriptor, file.fileno(), self.offset, self.length)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, *_NO_SENDFILE):
                    raise
                sent = 0
        rest = self[sent : sent + NEXT_BYTES]
        return sent, rest.read() if rest else b""

    def _open(self) -> BinaryIO:
        for path in self.paths:
            with suppress(FileNotFoundError):
                return path.open("rb", buffering=0)
        raise LookupError("the file was deleted")


def promote(source: Path, target: Path) -> None:
    """Rename within a file system, durably: ``target`` survives a power loss."""
    make_directory(target.parent)
    source.replace(target)
    sync_directory(target.parent)


def make_directory(path: Path) -> None:
    """Create a directory and its parents durably; idempotent."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def slice_of(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """Yield a range of a file in pieces; raises ``ValueError`` when the file is too short."""
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            piece = file.read(min(length, PIECE_BYTES))
            if not piece:
                raise ValueError(f"{path} ends before its slice")
            length -= len(piece)
            yield piece


async def stream_slice(path: Path, offset: int, length: int) -> AsyncGenerator[bytes, None]:
    """Yield a range of a file in pieces read by threads; ends early if the file is too short."""
    file = await in_thread(path.open, "rb")
    try:
        while length and (
            piece := await in_thread(os.pread, file.fileno(), min(length, PIECE_BYTES), offset)
        ):
            offset += len(piece)
            length -= len(piece)
            yield piece
    finally:
        file.close()


def named_by_digest(paths: Iterable[Path]) -> Iterator[tuple[Digest, Path]]:
    """Yield the files whose name is a digest in hexadecimal; other files are skipped."""
    for path in paths:
        if len(path.name) == 2 * DIGEST_BYTES:
            yield Digest(bytes.fromhex(path.name)), path
