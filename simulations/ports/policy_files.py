"""The files of one machine's policies, on its simulated disk (``PolicyFiles``)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from typing_extensions import override

from protocol.shardcast.index import Shard, ShardIndex, chunk_digests, shard_count
from protocol.types import Digest
from roles.ports.engines import Policy
from roles.ports.storage import PolicyFiles
from simulations.ports.storage import COMMIT_SECONDS, Disk, Session
from simulations.runtime.content import (
    Extent,
    digest_of,
    joined,
    patch_of,
    patched,
    policy_digest,
)


class SimPolicyFiles(PolicyFiles):
    """The files of one machine's policies, on its disk."""

    def __init__(
        self,
        disk: Disk,
        session: Session,
        directory: Path,
        genesis: Path,
        task: Path,
        *,
        patch_share: float = 0.0,
    ) -> None:
        super().__init__(directory, genesis, task)
        self._disk = disk
        self._session = session
        self._patch_share = patch_share

    @override
    def size(self, path: Path) -> int | None:
        content = self._disk.files.get(path)
        return None if content is None else len(content)

    @override
    async def delete(self, path: Path) -> None:
        if self._session.alive:
            self._disk.files.pop(path, None)

    @override
    async def index(self, path: Path, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
        await asyncio.sleep(COMMIT_SECONDS)
        content = self._disk.files.get(path)
        if not content:
            raise ValueError(f"{path} is empty or missing")
        shards = []
        for number in range(shard_count(len(content), shard_bytes)):
            shard = content[number * shard_bytes : (number + 1) * shard_bytes]
            shards.append(Shard(digest_of(shard), len(shard), _chunk_digests(shard, chunk_bytes)))
        return ShardIndex(len(content), shard_bytes, chunk_bytes, tuple(shards))

    @override
    async def encode(self, path: Path, base: Policy | None, target: Path) -> int | None:
        content = self._disk.files.get(path, b"")
        if base is None or not self._patch_share or not isinstance(content, Extent):
            return None
        patch = patch_of(content, base.digest, self._patch_share)
        async with self._session.writing():
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[target] = patch
        return len(patch)

    @override
    async def decode(
        self,
        encoding: AsyncIterator[bytes],
        base: Policy | None,
        target: Path,
        policy: Digest,
        file_bytes_max: int,
    ) -> None:
        patch = joined([piece async for piece in encoding])
        content = None if base is None else patched(patch, base.digest, file_bytes_max)
        if base is None or policy_digest(self._disk.files.get(base.path, b"")) != base.digest:
            raise ValueError("the base is not here")
        if content is None or policy_digest(content) != policy:
            raise ValueError("the encoding makes another policy than it was signed for")
        async with self._session.writing():
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[target] = content

    @override
    async def assemble(self, digests: Sequence[Digest], path: Path) -> None:
        async with self._session.writing():
            if not all(digest in self._disk.blobs for digest in digests):
                raise LookupError("not every blob is here")
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[path] = joined([self._disk.blobs[digest] for digest in digests])


def _chunk_digests(content: bytes, chunk_bytes: int) -> tuple[Digest, ...]:
    if not isinstance(content, Extent):
        return chunk_digests([content], chunk_bytes)
    starts = range(0, len(content), chunk_bytes)
    return tuple(digest_of(content[start : start + chunk_bytes]) for start in starts)
