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
from node.weights.download import RemoteWeights
from node.weights.download_progress import Label
from node.weights.trainer_files import TrainerFiles
from protocol.core.types import Digest
from protocol.messages import CheckpointManifest, Signed
from protocol.replica.replica import Replica
from roles.ports.storage import Purpose, StorageFullError

log = structlog.get_logger()

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
        files: TrainerFiles,
        line_is_free: Callable[[], bool],
        newest_usable: Callable[[], int],
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._files = files
        self._line_is_free = line_is_free
        self._newest_usable = newest_usable
        self._fetching = asyncio.Lock()
        """Held by one state at a time: none delays another."""

    async def run(self) -> None:
        """Keep the newest state here until cancelled, if another trainer published it.

        Trainers of rounds need none in advance: they make each state themselves.
        """
        own, manifest = self._ports.transport.peer_id, self._replica.manifest
        while manifest.is_trainer(own) and manifest.grpo.outer is None:
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
        weights = RemoteWeights(
            checkpoint.digest,
            Digest(message.state),
            message.state_index_bytes,
            message.state_bytes,
            checkpoint.signer,
            Purpose.OPTIMISER_STATE,
            Label(f"state of version {message.version}"),
        )
        async with self._fetching:
            return await self._files.fetch(weights, path)

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
