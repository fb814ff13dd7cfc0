"""Optimiser states, from which the next trainer continues.

A state is several times as large as the weights, and only trainers need it. So it travels apart:
for every ``state_every``-th version, over a forest of the trainers alone, and only while no weights
are being downloaded.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from node.context import Ports, background_task
from node.network.streams.deadline import loop_time
from node.weights.download import RemoteWeights
from node.weights.download_progress import Label
from node.weights.downloads import Downloads, TransferProgress
from protocol.core.types import Digest, PeerId, Role
from protocol.messages import CheckpointManifest, Signed
from protocol.replica.replica import Replica
from roles.ports.storage import Purpose, StorageFullError

log = structlog.get_logger()

PATIENCE_SECONDS = 20.0
"""Time without progress until a download is given up; a guess, as for the run's own files."""

YIELD_SECONDS = 1.0
"""Delay until a prefetch yields to weights; a guess."""

STATE_PER_WEIGHTS = 8
"""Largest ratio of state to weights: three float32 per weight of at least two bytes make 6."""


def published_states(replica: Replica, newest: int, count: int) -> list[Signed[CheckpointManifest]]:
    """Return up to ``count`` versions with a state, from ``newest`` down."""
    oldest = max(-1, newest - count * replica.manifest.shardcast.state_every)
    found = map(replica.ledger.chain.get, range(newest, oldest, -1))
    return [one for one in found if one is not None and one.message.state][:count]


class TrainerStates:
    """Fetcher of states: in advance on possible next trainers, and on demand."""

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        downloads: Downloads,
        line_is_free: Callable[[], bool],
        newest_usable: Callable[[], int],
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._downloads = downloads
        self._line_is_free = line_is_free
        self._newest_usable = newest_usable
        self._fetching = asyncio.Lock()

    async def run(self) -> None:
        """Keep the newest state here until cancelled, if another trainer published it."""
        own, manifest = self._ports.transport.peer_id, self._replica.manifest
        while manifest.is_trainer(own):
            checkpoint = self.newest(self._newest_usable())
            if checkpoint is not None and checkpoint.signer != own:
                await self._fetch_in_advance(checkpoint)
            await asyncio.sleep(manifest.epochs.seconds)

    def newest(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the newest version up to ``version`` whose state is published."""
        return next(iter(published_states(self._replica, version, 1)), None)

    async def fetch(self, checkpoint: Signed[CheckpointManifest]) -> Path | None:
        """Return a version's state, None when it is unavailable; raises ``StorageFullError``.

        Its length is the one that the trainer signed; the caller must bound it.
        """
        message, path = checkpoint.message, self._ports.files.state(checkpoint.message.version)
        root = self._root(checkpoint.signer)
        if root is None and not self._ports.blobs.has_file(Digest(message.state)):
            return None
        weights = RemoteWeights(
            checkpoint.digest,
            Digest(message.state),
            message.state_index_bytes,
            message.state_bytes,
            root or checkpoint.signer,
            Purpose.OPTIMISER_STATE,
            Label(f"state of version {message.version}"),
        )
        is_trainer = self._replica.manifest.is_trainer
        members = [one for one in self._downloads.members() if is_trainer(one.peer)]
        async with self._fetching:
            progress = TransferProgress(loop_time())
            download = self._downloads.make(
                weights, members, lambda here_bytes, _: progress.note(here_bytes, loop_time())
            )
            async with background_task(download.run(path)) as task:
                while not task.done() and loop_time() < progress.brought_at + PATIENCE_SECONDS:
                    await asyncio.wait([task], timeout=YIELD_SECONDS)
                try:
                    found = task.result() if task.done() else None
                except LookupError:  # released meanwhile
                    return None
        return found if isinstance(found, Path) else None

    async def _fetch_in_advance(self, checkpoint: Signed[CheckpointManifest]) -> None:
        message = checkpoint.message
        if (
            self._ports.blobs.has_file(Digest(message.state))
            or message.state_bytes > STATE_PER_WEIGHTS * message.total_bytes
        ):
            return
        async with background_task(self.fetch(checkpoint)) as task:
            while not task.done() and self._line_is_free():
                await asyncio.wait([task], timeout=YIELD_SECONDS)
            try:
                if task.done() and task.result() is not None:
                    log.info("state arrived", version=message.version, bytes=message.state_bytes)
            except StorageFullError as error:
                log.warning("state not stored", version=message.version, error=str(error))

    def _root(self, publisher: PeerId) -> PeerId | None:
        """Return the root of the forest: the publisher, or another live trainer."""
        live = self._replica.roster.live(self._ports.clock.now(), Role.TRAINER)
        peers = [one.peer for one in live if one.peer != self._ports.transport.peer_id]
        return publisher if publisher in peers else next(iter(peers), None)
