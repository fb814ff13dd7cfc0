"""Deletes what nobody needs any more: rollout bodies, and the blobs of old policies."""

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum

import structlog

from node.weights.download import forget
from protocol.ledger.commits import CommitState, Entry
from protocol.replica import Replica
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import ShardIndex
from protocol.types import Digest
from roles.ports.storage import Blobs, Delete, Put, StorageFullError, Store

log = structlog.get_logger()

STATES_KEPT = 2
"""The optimiser state of the newest version, and of the one before it, which becomes the newest
when a later term supersedes; each takes several times what a policy takes."""


class BodyRetention:
    """Remembers which commit needs which body; a body goes when all its commits are done with."""

    def __init__(self, replica: Replica, blobs: Blobs) -> None:
        self._replica = replica
        self._blobs = blobs
        self._bodies: dict[Digest, Digest] = {}
        self._done_with: dict[Digest, None] = {}

    def note(self) -> None:
        """See which commits are here; who leaves the replica without having been seen leaks."""
        for commit, entry in self._replica.ledger.entries.items():
            if commit not in self._done_with:
                self._bodies.setdefault(commit, Digest(entry.commit.message.body))

    async def sweep(self) -> None:
        """Delete what is due."""
        self.note()
        entries = self._replica.ledger.entries
        for commit in [key for key in self._done_with if key not in entries]:
            del self._done_with[commit]
        due = [
            commit
            for commit in self._bodies
            if commit not in entries or self._is_done_with(entries[commit])
        ]
        bodies = [self._bodies.pop(commit) for commit in due]
        self._done_with.update(dict.fromkeys(commit for commit in due if commit in entries))
        # A commit may name the body of another one, which is not done with.
        needed = dict.fromkeys(self._bodies.values())
        for body in dict.fromkeys(bodies):
            if body not in needed:
                await self._blobs.delete(body)

    def _is_done_with(self, entry: Entry) -> bool:
        manifest, ledger = self._replica.manifest, self._replica.ledger
        if entry.state is CommitState.COMMITTED:
            return False
        learned_long_ago = (
            entry.trained_in is not None
            and entry.trained_in < ledger.version - manifest.grpo.async_level
        )
        stale = entry.commit.message.version < ledger.version - manifest.shardcast.versions_kept
        return learned_long_ago or stale


class Kind(Enum):
    """What a blob of a version is; the value begins its key in the store."""

    INDEX = b"i"
    STATE = b"s"


@dataclass(frozen=True, slots=True)
class Part:
    """A blob that belongs to a version: the index of its shards, or its optimiser state."""

    kind: Kind
    version: int
    digest: Digest

    @property
    def key(self) -> bytes:
        """The key in the store; ``read`` is its inverse."""
        return self.kind.value + self.version.to_bytes(8, "big") + self.digest

    @classmethod
    def read(cls, key: bytes) -> "Part":
        """Return the part with this key."""
        return cls(Kind(key[:1]), int.from_bytes(key[1:9], "big"), Digest(key[9:]))


class WeightsRetention:
    """Remembers, also after a restart, which blobs make which version."""

    _TABLE = "weights"

    def __init__(self, replica: Replica, store: Store, blobs: Blobs) -> None:
        self._replica = replica
        self._store = store
        self._blobs = blobs
        self._parts: dict[Part, None] = {}

    def restore(self) -> None:
        """Find what an earlier life of this node noted."""
        self._parts = {Part.read(key): None for key, _ in self._store.scan(self._TABLE)}

    async def note(self, kind: Kind, version: int, digest: Digest) -> None:
        """Remember a part of ``version``; raises ``StorageFullError``."""
        part = Part(kind, version, digest)
        if part not in self._parts:
            await self._store.commit([Put(self._TABLE, part.key, b"")])
            self._parts[part] = None

    async def drop(self, version: int, index: Digest) -> None:
        """Delete a version's shards now."""
        await self._forget(Part(Kind.INDEX, version, index))

    async def sweep(self, weights_kept: Container[int]) -> None:
        """Delete old states, and the shards of all versions but ``weights_kept``.

        Also what a later term has replaced; what is not published yet stays.
        """
        for part in list(self._parts):
            checkpoint = self._replica.ledger.checkpoint(part.version)
            if checkpoint is None:
                continue
            if part.kind is Kind.INDEX:
                fresh, current = part.version in weights_kept, checkpoint.message.index
            else:
                fresh = part.version > self._replica.ledger.version - STATES_KEPT
                current = checkpoint.message.state
            if not fresh or part.digest != current:
                await self._forget(part)

    async def _forget(self, part: Part) -> None:
        """Delete a part; its note goes last, so that a crash leaves nothing behind."""
        others = [other for other in self._parts if other != part and other.kind is part.kind]
        if part.kind is Kind.INDEX:
            await self._forget_shards(part, others)
        elif part.digest not in [other.digest for other in others]:
            await self._blobs.delete(part.digest)
        try:
            await self._store.commit([Delete(self._TABLE, part.key)])
        except StorageFullError as error:  # SQLite writes before it frees; the next sweep tries
            log.warning("a note is not deleted", error=str(error))
            return
        self._parts.pop(part, None)

    async def _forget_shards(self, part: Part, others: list[Part]) -> None:
        index = await self._index(part.digest)
        if index is not None:
            kept = [await self._index(other.digest) for other in others]
            await forget(self._blobs, index, [item for item in kept if item is not None])

    async def _index(self, digest: Digest) -> ShardIndex | None:
        data = await self._blobs.get(digest)
        index = None if data is None else shard_index.decode(data)
        return index if isinstance(index, ShardIndex) else None
