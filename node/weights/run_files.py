"""The run's own files (``genesis.files``), which every node needs before it can work on the task.

They travel as weights do. A node that has them from the run's creator stores them as blobs; all
others fetch them over the forest and then serve them too.
"""

import asyncio
from pathlib import Path

import structlog

from node.context import Ports, background_task
from node.network.streams.deadline import loop_time
from node.weights.download import RemoteWeights, WeightsDownload
from node.weights.download_progress import Label
from node.weights.downloads import Downloads, TransferProgress
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from protocol.replica.replica import Replica
from protocol.run.manifest import RunFile, RunFileName
from roles.ports.storage import Owner, Purpose, StorageFullError
from roles.runtime.context import Conditions

log = structlog.get_logger()

PATIENCE_SECONDS = 20.0
"""Time without progress until another root of the forest is tried; a guess."""

_CONDITION = "task"


class RunFiles:
    """Fetcher of the run's files."""

    def __init__(
        self, ports: Ports, replica: Replica, downloads: Downloads, conditions: Conditions
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._downloads = downloads
        self._conditions = conditions
        self._passed_over: dict[PeerId, None] = {}

    @property
    def complete(self) -> bool:
        """True if every file exists; ``fetch`` checks its content."""
        names, files = self._replica.manifest.genesis.files, self._ports.files
        return all(files.size(files.run_file(name)) is not None for name in names)

    async def fetch(self) -> None:
        """Fetch every file and make it available to others; waits for sources and disk space."""
        for name, file in self._replica.manifest.genesis.files.items():
            while not await self._fetch(name, file):  # noqa: ASYNC110 - it fetches, too
                await asyncio.sleep(self._replica.manifest.epochs.seconds)
        self._conditions.clear(_CONDITION)

    async def _fetch(self, name: RunFileName, file: RunFile) -> bool:
        try:
            return await self._is_here(name, file) or await self._download(name, file)
        except (StorageFullError, LookupError) as error:
            self._conditions.set(_CONDITION, f"the run's {name} is not stored: {error}")
            return False

    async def _is_here(self, name: RunFileName, file: RunFile) -> bool:
        """Return whether a file is here; if so, others can fetch it from now on."""
        path = self._ports.files.run_file(name)
        if self._ports.files.size(path) is None:
            return False
        if self._ports.blobs.has_file(Digest(bytes.fromhex(file.index))):
            return True
        rules, blobs = self._replica.manifest.shardcast, self._ports.blobs
        self._conditions.wait(_CONDITION, f"reading the run's {name}")
        stored = await blobs.put_file(path, rules.shard_bytes, rules.chunk_bytes, Purpose.RUN_FILE)
        if stored.digest.hex() == file.index:
            return True
        log.warning("run file differs from the signed one", path=str(path))
        await blobs.release(Owner(Purpose.RUN_FILE, stored.digest))
        await self._ports.files.delete(path)
        return False

    async def _download(self, name: RunFileName, file: RunFile) -> bool:
        root = self._root()
        if root is None:
            self._conditions.wait(_CONDITION, f"waiting for a peer that has the run's {name}")
            return False
        digest = Digest(bytes.fromhex(file.index))
        sizes = file.index_bytes, file.total_bytes
        weights = RemoteWeights(digest, digest, *sizes, root, Purpose.RUN_FILE, Label(name))
        progress = TransferProgress(loop_time())

        def show(here_bytes: int, total_bytes: int) -> None:
            progress.note(here_bytes, loop_time())
            share = here_bytes / max(1, total_bytes)
            told = f"{int(100 * share)} % of {total_bytes / 1e6:.1f} MB"
            self._conditions.wait(_CONDITION, f"fetching the run's {name}, {told}", share)

        self._conditions.wait(_CONDITION, f"asking for the run's {name}")
        download = self._downloads.make(weights, self._downloads.members(), show)
        path = self._ports.files.run_file(name)
        arrived = await self._carry_out(download, path, root, progress)
        if isinstance(arrived, Fault):
            reason = f"the run's {name} is not what its creator signed: {arrived}"
            self._conditions.set(_CONDITION, reason)
        return isinstance(arrived, Path)

    async def _carry_out(
        self, download: WeightsDownload, path: Path, root: PeerId, progress: TransferProgress
    ) -> Path | Fault | None:
        """Download to ``path``, following the roster; None when the root must change."""
        epoch_seconds = self._replica.manifest.epochs.seconds
        patience_seconds = max(PATIENCE_SECONDS, 2 * epoch_seconds)
        async with background_task(download.run(path)) as task:
            while not task.done():
                await asyncio.wait([task], timeout=epoch_seconds)
                if not task.done() and loop_time() - progress.brought_at > patience_seconds:
                    self._passed_over[root] = None
                if not task.done() and root != self._root():
                    return None
                download.change_members(self._downloads.members())
            return task.result()

    def _root(self) -> PeerId | None:
        """Return the root of the forest: the first live genesis node, else any live node.

        Genesis nodes have the files from the creator, or asked first. Roots without progress are
        skipped until all others were tried.
        """
        genesis = self._replica.manifest.genesis
        now, own = self._ports.clock.now(), self._ports.transport.peer_id
        live = {member.peer: None for member in self._replica.roster.live(now)}
        live.pop(own, None)
        named = [PeerId(peer) for peer in (*genesis.trainers, *genesis.validators)]
        line = list(dict.fromkeys((*(peer for peer in named if peer in live), *live)))
        if all(peer in self._passed_over for peer in line):
            self._passed_over.clear()
        return next((peer for peer in line if peer not in self._passed_over), None)
