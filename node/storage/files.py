"""Files that are there whole or not at all, and what a full disk means."""

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
"""Read at once, between thread hops and memory: a server of HTTP took 0.5 s of CPU for a gigabyte
in pieces of 256 KiB and 0.25 s in pieces of 1 MiB (measured)."""

NEXT_BYTES = 64 * 1024
"""Read where a socket is full: a transport that holds it tells when there is room again, for some
2.7 MB on loopback (measured), which then go without a copy."""

_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems from which nothing is sent without being read."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems that give a file one name (FAT), or where the other name lies on another one."""


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run blocking file access in a thread; raises ``StorageFullError`` when the disk is full."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError(str(error)) from error
        raise


async def uninterrupted(operation: Coroutine[Any, Any, T]) -> T:
    """Run ``operation`` to its end even if the caller is cancelled, which is then told after it.

    A thread cannot be cancelled: without this, bookkeeping would be skipped for a file that exists.
    """
    task = asyncio.ensure_future(operation)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def write_synced(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` and to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def link_synced(source: Path, target: Path) -> None:
    """Give a file a second name, and sync its bytes; where there are no second names, copy it."""
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
    """A range of the first of ``paths`` that is there when it is used: a file may move meanwhile.

    It is cut as bytes are, with a slice. What uses it raises ``LookupError`` when no file is there,
    or the one that is ends before.
    """

    paths: Sequence[Path]
    offset: int
    length: int

    def __len__(self) -> int:
        """Return its length in bytes."""
        return self.length

    def __getitem__(self, cut: slice) -> "FilePart":
        """Return a part of this one."""
        start, stop, _ = cut.indices(self.length)
        return FilePart(self.paths, self.offset + start, stop - start)

    def read(self) -> bytes:
        """Return its bytes."""
        with self._open() as file:
            data = os.pread(file.fileno(), self.length, self.offset)
        if len(data) < self.length:
            raise LookupError("the file ended early")
        return data

    def send(self, descriptor: int) -> tuple[int, bytes]:
        """Send what a socket takes at once, without a copy; return its length, and what is next.

        The socket must not block. What is next are ``NEXT_BYTES`` at most.
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
    """Rename within a file system so that ``target`` survives a power loss."""
    make_directory(target.parent)
    source.replace(target)
    sync_directory(target.parent)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, so that it survives a power loss; idempotent."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def slice_of(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """Yield a slice of a file in pieces; raises ``ValueError`` when the file ends before it."""
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            piece = file.read(min(length, PIECE_BYTES))
            if not piece:
                raise ValueError(f"{path} ends before its slice")
            length -= len(piece)
            yield piece


async def stream_slice(path: Path, offset: int, length: int) -> AsyncGenerator[bytes, None]:
    """Yield a slice of a file in pieces that threads read; fewer when the file ends before it."""
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
    """Yield the files whose name is a digest in hexadecimal; others are not ours."""
    for path in paths:
        if len(path.name) == 2 * DIGEST_BYTES:
            yield Digest(bytes.fromhex(path.name)), path
