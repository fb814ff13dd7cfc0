"""Both implementations of the ``Blobs`` port, each with its restart."""

from pathlib import Path

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from protocol.core.crypto import digest
from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import Shard, ShardIndex, chunk_digests
from roles.ports.storage import Owner, Purpose
from simulations.ports.blobs import SimBlobs
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import Disk, Session


def one_shard(data: bytes, chunk_bytes: int, of: Digest | None = None) -> ShardIndex:
    """Return the index of a file of one shard: chunks of ``data``, shard digest ``of``."""
    chunks = chunk_digests([data], chunk_bytes)
    shard = Shard(digest(data) if of is None else of, len(data), chunks)
    return ShardIndex(len(data), len(data), chunk_bytes, (shard,))


def index_of(data: bytes, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
    shards = [data[start : start + shard_bytes] for start in range(0, len(data), shard_bytes)]
    entries = [Shard(digest(one), len(one), chunk_digests([one], chunk_bytes)) for one in shards]
    return ShardIndex(len(data), shard_bytes, chunk_bytes, tuple(entries))


def name_of(index: ShardIndex) -> Digest:
    return digest(shard_index.encode(index))


async def open_one(blobs, index: ShardIndex, purpose: Purpose = Purpose.WEIGHTS):
    (partial,) = await blobs.open_file(index, purpose)
    return partial


def owner(name: bytes, purpose: Purpose = Purpose.ROLLOUT_BODY) -> Owner:
    return Owner(purpose, digest(name))


class FileMachine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def restart(self) -> None:
        self.blobs = FileBlobs(self._directory / "blobs")
        self.files = PolicyDirectory(
            self._directory / "weights",
            self._directory / "genesis",
            self._directory / "task",
            self.blobs,
        )

    def write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()


class SimMachine:
    """Simulated disk; ports of an earlier session can no longer change it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk()
        self._session = Session()

    def restart(self) -> None:
        self._session.alive = False
        self._session = Session()
        self.blobs = SimBlobs(self._disk, self._session)
        self.files = SimPolicyFiles(
            self._disk,
            self._session,
            self._directory / "weights",
            self._directory / "genesis",
            self._directory / "task",
        )

    def write(self, path: Path, content: bytes) -> None:
        self._disk.files[path] = content

    def read(self, path: Path) -> bytes:
        return self._disk.files[path]


MACHINES = {"files": FileMachine, "simulated": SimMachine}
