"""Files that are there whole or not at all, and what a full disk means."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from protocol.types import Digest
from roles.ports.storage import StorageFullError

T = TypeVar("T")

_FULL = (errno.ENOSPC, errno.EDQUOT)


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


def promote(source: Path, target: Path) -> None:
    """Rename within a file system so that ``target`` survives a power loss."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
