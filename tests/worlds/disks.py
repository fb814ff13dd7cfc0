"""What machines keep, for tests that need nothing else of a machine: each has a disk of its own."""

from collections.abc import Sequence
from pathlib import Path

from node.storage.policy_files import PolicyDirectory
from protocol.types import Digest
from simulations.ports.storage import Disk, Life, SimBlobs, SimStore


class MemoryStore(SimStore):
    def __init__(self) -> None:
        self.disk = Disk()
        super().__init__(self.disk, Life())

    @property
    def tables(self) -> dict[str, dict[bytes, bytes]]:
        return self.disk.tables


class MemoryBlobs(SimBlobs):
    def __init__(self) -> None:
        self.disk = Disk()
        super().__init__(self.disk, Life())


class MemoryFiles(PolicyDirectory):
    """Files in a directory, assembled from blobs in memory."""

    async def assemble(self, digests: Sequence[Digest], path: Path) -> None:
        path.write_bytes(b"".join([await self._blobs.get(key) or b"" for key in digests]))
