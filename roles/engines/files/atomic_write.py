"""Atomic, durable file writes, and detection of a full disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roles.ports.storage import StorageFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``path`` at the end, durable over a power loss.

    On an error ``path`` is unchanged. Raises ``StorageFullError`` when the disk is full.
    """
    partial = partial_path(path)
    try:
        with full_disk_told(path):
            yield partial
            publish(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_path(path: Path) -> Path:
    """Return the path at which ``path`` is written."""
    return path.with_name(path.name + ".partial")


def publish(path: Path) -> None:
    """Rename the file that was written at ``partial_path`` durably; raises ``OSError``."""
    partial = partial_path(path)
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


@contextmanager
def full_disk_told(path: Path) -> Iterator[None]:
    """Raise ``StorageFullError`` for any error that a full disk caused while writing ``path``."""
    try:
        yield
    except Exception as error:
        if _is_full(error):
            raise StorageFullError(f"no room for {path.name}: {error}") from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_full(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
