"""Files that are there whole or not at all, and what a full disk means."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from node.local.datadir import sync_directory
from protocol.types import DIGEST_BYTES, Digest
from roles.ports.storage import StorageFullError

T = TypeVar("T")

PIECE_BYTES = 256 * 1024
"""Read and written at once: a guess between thread hops and memory."""

COPY_BYTES = 1 << 30
"""In one call of the kernel at most."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_COPYING = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of a file system that cannot copy by itself."""


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


def write_synced(path: Path, pieces: Iterable[bytes]) -> Digest:
    """Write ``pieces`` to ``path`` and to the disk; return the digest of all."""
    hasher = blake3()
    with path.open("wb") as file:
        for piece in pieces:
            hasher.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return Digest(hasher.digest())


def append(source: Path, target: BufferedWriter) -> None:
    """Write a file behind what ``target`` holds; the kernel copies, or shares blocks if it can."""
    with source.open("rb") as file:
        try:
            while os.copy_file_range(file.fileno(), target.fileno(), COPY_BYTES):
                pass
        except OSError as error:
            if error.errno not in _NO_COPYING:
                raise
            target.seek(0, os.SEEK_END)
            shutil.copyfileobj(file, target, PIECE_BYTES)
            target.flush()


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
