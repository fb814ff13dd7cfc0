"""Rollout bodies: fetched for a commit, stored under its ownership, released with it.

A commit names a body by digest, and any peer can name any digest. A release therefore deletes only
what this node stored for that commit, never a blob with another owner.
"""

import asyncio
from collections.abc import Sequence

import structlog

from node.network.blobs.exchange import BlobExchange
from protocol.core.types import Digest, PeerId
from protocol.ledger.commits import CommitState, Entry
from protocol.messages import RolloutCommit, Signed
from protocol.replica.replica import Replica
from roles.ports.storage import Blobs, Owner, Purpose, StorageFullError

log = structlog.get_logger()

FETCH_SECONDS = 10.0
"""Timeout of a fetch: the largest bodies are some tens of megabytes; the caller retries."""


class RolloutBodies:
    """Store of the bodies of ledger commits, as far as this node has needed them."""

    def __init__(self, replica: Replica, blobs: Blobs, exchange: BlobExchange) -> None:
        self._replica = replica
        self._blobs = blobs
        self._exchange = exchange
        self._seen: dict[Owner, None] = {}
        """Owners whose commit was in the ledger; an owner never in it may await its signature."""

    async def fetch(self, commit: Signed[RolloutCommit], sources: Sequence[PeerId]) -> bytes | None:
        """Return a commit's body from the store or the first source that has it, else None."""
        body, bytes_max = Digest(commit.message.body), commit.message.body_bytes
        here_bytes = self._blobs.size(body)
        if here_bytes is not None and here_bytes > bytes_max:
            return None
        data = await self._exchange.fetch(body, bytes_max, sources, FETCH_SECONDS)
        if data is None:
            return None
        if commit.digest in self._replica.ledger.commits.entries:  # so that this node can serve it
            try:
                await self._blobs.put(data, Owner(Purpose.ROLLOUT_BODY, commit.digest))
            except StorageFullError as error:
                log.warning("fetched body not stored", error=str(error))
        return data

    async def restore(self) -> None:
        """Release bodies that a crash left of commits never signed or forgotten."""
        entries = self._replica.ledger.commits.entries
        for owner in self._blobs.owners(Purpose.ROLLOUT_BODY):
            if owner.subject in entries:
                self._seen[owner] = None
            else:
                await self._blobs.release(owner)

    async def run(self) -> None:
        """Sweep once per epoch until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(self._replica.manifest.epochs.seconds)

    async def sweep(self) -> None:
        """Release the bodies of commits that no trainer can use any more."""
        entries = self._replica.ledger.commits.entries
        for owner in self._blobs.owners(Purpose.ROLLOUT_BODY):
            entry = entries.get(owner.subject)
            if entry is not None and not self._is_done_with(entry):
                self._seen[owner] = None
            elif entry is not None or owner in self._seen:
                self._seen.pop(owner, None)
                await self._blobs.release(owner)

    def _is_done_with(self, entry: Entry) -> bool:
        manifest, ledger = self._replica.manifest, self._replica.ledger
        if entry.state is CommitState.COMMITTED or self._replica.reviews.awaits(entry):
            return False
        learned_long_ago = (
            entry.trained_in is not None
            and entry.trained_in < ledger.chain.version - manifest.grpo.async_level
        )
        stale = entry.version < ledger.chain.version - manifest.shardcast.versions_kept
        return learned_long_ago or stale
