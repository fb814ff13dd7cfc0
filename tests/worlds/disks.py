"""In-memory disks of machines, for tests that need no other part of a machine."""

from pathlib import Path

from node.storage.policy_files import PolicyDirectory
from protocol.core.types import Digest
from simulations.ports.blobs import SimBlobs
from simulations.ports.storage import Disk, Session, SimStore


class MemoryStore(SimStore):
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    @property
    def tables(self) -> dict[str, dict[bytes, bytes]]:
        return self.disk.tables


class MemoryBlobs(SimBlobs):
    """In-memory blobs of real files."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    def _content(self, path: Path) -> bytes:
        return path.read_bytes() if path.exists() else b""


class MemoryFiles(PolicyDirectory):
    """Real files made of in-memory blobs."""

    async def link(self, index: Digest, path: Path) -> None:
        disk = self._blobs.disk
        disk.require_room()
        content = disk.file_of(index)
        if content is None:
            raise LookupError("not every shard is here")
        path.unlink(missing_ok=True)
        path.write_bytes(content)
