"""Disk content after a power loss: synced bytes under synced names.

``PowerLoss`` watches one directory. At every ``os.fsync`` it notes what became durable: the bytes
of a file, or the names in a directory. ``survivors`` builds the worst tree that a restart may find,
without unsynced bytes and with the names of each directory's last sync. It does not see libraries
that call ``fsync`` themselves, such as SQLite.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class PowerLoss:
    """The durable state of the tree below ``root``, by inode."""

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    on_sync: list[dict[str, bytes]] = field(default_factory=list)
    """Durable files after each sync, by path."""
    _held: list[int] = field(default_factory=list)

    def note(self, path: Path) -> None:
        """Mark a file or directory as durable in its current state."""
        number = path.stat().st_ino
        if path.is_dir():
            self.names[number] = {item.name: item.stat().st_ino for item in path.iterdir()}
            for item in path.iterdir():
                if item.is_dir():  # its own names are not durable yet
                    self.names.setdefault(item.stat().st_ino, {})
        else:
            self.contents[number] = path.read_bytes()
        self._held.append(os.open(path, os.O_RDONLY))  # no other file gets its inode

    def note_all(self) -> None:
        for path in (self.root, *self.root.rglob("*")):
            self.note(path)

    def files(self) -> dict[str, bytes]:
        """Return the durable contents, by path below the root."""
        return dict(self._below(self.root.stat().st_ino, ""))

    def _below(self, number: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, child in self.names.get(number, {}).items():
            if child in self.names:
                yield from self._below(child, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", self.contents.get(child, b"")

    def survivors(self) -> Path:
        """Replace the tree by its durable part."""
        files = self.files()
        shutil.rmtree(self.root)
        self.root.mkdir()
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return self.root

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


@contextmanager
def power_loss(root: Path) -> Iterator[PowerLoss]:
    """Watch ``root`` during the block."""
    watched, fsync = PowerLoss(root), os.fsync
    watched.note_all()

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == root or root in path.parents:
            assert stat.S_ISDIR(os.fstat(descriptor).st_mode) == path.is_dir()
            watched.note(path)
            watched.on_sync.append(watched.files())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        try:
            yield watched
        finally:
            watched.close()
