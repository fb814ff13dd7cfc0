"""What machines keep, for tests that need nothing else of a machine: each has a disk of its own."""

from collections.abc import Sequence
from pathlib import Path

from node.storage.policy_files import PolicyDirectory
from protocol.types import Digest
from roles.ports.storage import Owner
from simulations.ports.storage import Disk, Session, SimBlobs, SimStore


class MemoryStore(SimStore):
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    @property
    def tables(self) -> dict[str, dict[bytes, bytes]]:
        return self.disk.tables


class MemoryBlobs(SimBlobs):
    """Blobs in memory, cut from real files."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        super().__init__(self.disk, Session())

    async def put_file(self, path: Path, offset: int, length: int, owner: Owner) -> Digest:
        return await self.put(path.read_bytes()[offset : offset + length], owner)


class MemoryFiles(PolicyDirectory):
    """Real files, assembled from blobs in memory."""

    async def assemble(self, digests: Sequence[Digest], path: Path) -> None:
        self._blobs.disk.require_room()
        path.write_bytes(b"".join([await self._blobs.get(key) or b"" for key in digests]))
