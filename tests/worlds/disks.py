"""What machines keep, for tests that need nothing else of a machine: each has a disk of its own."""

from pathlib import Path

from node.storage.policy_files import PolicyDirectory
from protocol.core.types import Digest
from simulations.ports.storage import Disk, Session, SimBlobs, SimStore


class MemoryStore(SimStore):
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    @property
    def tables(self) -> dict[str, dict[bytes, bytes]]:
        return self.disk.tables


class MemoryBlobs(SimBlobs):
    """Blobs in memory, of real files."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    def _content(self, path: Path) -> bytes:
        return path.read_bytes() if path.exists() else b""


class MemoryFiles(PolicyDirectory):
    """Real files, made of blobs in memory."""

    async def link(self, index: Digest, path: Path) -> None:
        disk = self._blobs.disk
        disk.require_room()
        content = disk.file_of(index)
        if content is None:
            raise LookupError("not every shard is here")
        path.unlink(missing_ok=True)
        path.write_bytes(content)
