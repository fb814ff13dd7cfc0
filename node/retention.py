"""Deletes rollout bodies that nobody needs any more."""

from protocol.ledger import CommitState, Entry
from protocol.replica import Replica
from protocol.types import Digest
from roles.ports import Blobs


class BodyRetention:
    """Remembers which commit needs which body; a body goes when its commit is done with."""

    def __init__(self, replica: Replica, blobs: Blobs) -> None:
        self._replica = replica
        self._blobs = blobs
        self._bodies: dict[Digest, Digest] = {}
        self._deleted: dict[Digest, None] = {}

    async def sweep(self) -> None:
        """Delete what is due."""
        entries = self._replica.ledger.entries
        for commit, entry in entries.items():
            if commit not in self._deleted:
                self._bodies.setdefault(commit, Digest(entry.commit.message.body))
        for commit, body in list(self._bodies.items()):
            if commit not in entries or self._done(entries[commit]):
                del self._bodies[commit]
                self._deleted[commit] = None
                await self._blobs.delete(body)
        for commit in [key for key in self._deleted if key not in entries]:
            del self._deleted[commit]

    def _done(self, entry: Entry) -> bool:
        manifest, ledger = self._replica.manifest, self._replica.ledger
        if entry.state is CommitState.COMMITTED:
            return False
        learned_long_ago = (
            entry.trained_in is not None
            and entry.trained_in < ledger.version - manifest.grpo.async_level
        )
        stale = entry.commit.message.version < ledger.version - manifest.shardcast.versions_kept
        return learned_long_ago or stale
