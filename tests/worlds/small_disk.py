"""Real file system of a few hundred kilobytes, for full-disk tests."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """Mounted file system, with a file that fills it up to the room a test leaves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        return os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize

    def fill(self, leaving_bytes: int = 0) -> None:
        """Fill the disk but for ``leaving_bytes``, rounded down to pages."""
        self.empty()
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, self.free_bytes - leaving_bytes))
        assert self.free_bytes <= leaving_bytes

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(
            path.name for path in self.path.rglob("*") if path.is_file() and path != self._filler
        )


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs at ``directory``; skip the test without the permission."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a full disk needs the command mount, which is not here")
    if mounted.returncode:
        pytest.skip(f"a full disk needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
