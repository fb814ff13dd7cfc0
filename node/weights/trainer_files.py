"""Files that only trainers need: optimiser states, and differences of rounds.

They travel as weights do, over a forest of the trainers alone.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from node.context import Ports, background_task
from node.network.streams.deadline import loop_time
from node.weights.download import RemoteWeights
from node.weights.downloads import Downloads, TransferProgress
from protocol.core.types import Digest, PeerId, Role
from protocol.replica.replica import Replica

PATIENCE_SECONDS = 20.0
"""Time without progress until a download is given up; a guess, as for the run's own files."""

_LOOK_SECONDS = 1.0
"""Interval of the looks at a download's progress; a guess."""


class TrainerFiles:
    """Fetcher of files that trainers publish for each other, several at a time."""

    def __init__(self, ports: Ports, replica: Replica, downloads: Downloads) -> None:
        self._ports = ports
        self._replica = replica
        self._downloads = downloads
        self._fetching: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()
        """Locks by index: a second fetch of a file waits for the first, and then links it."""
        self._failures = 0
        """Fetches that failed: after each, another trainer is the root without the publisher."""

    async def fetch(self, file: RemoteWeights, path: Path) -> Path | None:
        """Fetch a file of the trainer ``file.root`` to ``path``; None if no trainer serves it.

        While the publisher is gone, another live trainer is the root. The file has the length that
        was signed, which the caller must bound. Raises ``StorageFullError``; stored chunks stay.
        """
        fetching = self._fetching.setdefault(file.index_digest, asyncio.Lock())
        async with fetching:
            root = self._root(file.root)
            if root is None and not self._ports.blobs.has_file(file.index_digest):
                return None
            is_trainer = self._replica.manifest.is_trainer
            members = [one for one in self._downloads.members() if is_trainer(one.peer)]
            progress = TransferProgress(loop_time())
            download = self._downloads.make(
                replace(file, root=root or file.root),
                members,
                lambda here_bytes, _: progress.note(here_bytes, loop_time()),
            )
            async with background_task(download.run(path)) as task:
                while not task.done() and loop_time() < progress.brought_at + PATIENCE_SECONDS:
                    await asyncio.wait([task], timeout=_LOOK_SECONDS)
                try:
                    found = task.result() if task.done() else None
                except LookupError:  # released meanwhile
                    found = None
        if isinstance(found, Path):
            return found
        self._failures += 1
        return None

    def _root(self, publisher: PeerId) -> PeerId | None:
        """Return the root of the forest: the publisher, or another live trainer."""
        live = self._replica.roster.live(self._ports.clock.now(), Role.TRAINER)
        peers = [one.peer for one in live if one.peer != self._ports.transport.peer_id]
        if publisher in peers:
            return publisher
        return peers[self._failures % len(peers)] if peers else None
