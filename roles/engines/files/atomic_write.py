"""How engines write files: whole and durable or not at all, and what a full disk looks like."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roles.ports.storage import StorageFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes ``path`` at the end, also after a power loss.

    After an error ``path`` is as it was. Raises ``StorageFullError`` when the disk is full.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, Exception) and _is_full(error):
            raise StorageFullError(f"no room for {path.name}: {error}") from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came from, is that of a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
