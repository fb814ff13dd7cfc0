"""Reader of this node's process and machine."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from node.api.status import LOOP_DELAY_BOUNDS, LoopStatus, MachineStatus
from node.api.v1.answers import MachineGpu, MachinePage, NodeSummary, Usage
from node.local.datadir import DataDir, bytes_under
from node.local.hardware import Gpu, gpus
from node.local.log_tail import LogTail
from node.local.software import SOFTWARE, VERSION
from node.network.streams.deadline import loop_time

USAGE_SECONDS = 5.0
"""Minimum interval of queries: one of a GPU driver takes milliseconds."""

SCAN_SECONDS = 10.0
"""Minimum interval of disk scans: a data directory has thousands of files."""


_QUEUES: Mapping[str, str] = {
    "outbox_frames": "send queue of the slowest peer, frames",
    "outbox_bytes": "send queue of the slowest peer",
    "pending": "messages being validated",
    "cache_bytes": "gossip cache",
    "seen": "seen message ids",
    "promises": "requested messages (IWANT)",
    "backoffs": "mesh backoffs",
    "in_flight": "undecided commits of one worker",
    "untrusted_commits": "undecided commits of untrusted workers",
    "waiting": "pending messages (missing dependency)",
    "versions_waiting": "pending versions",
    "roster": "roster members",
    "page_orphans": "pages that wait for their parent",
    "final_pages": "final pages that wait for their work",
    "streams_sync": "anti-entropy streams",
    "streams_pages": "page synchronisation streams",
    "streams_ledger": "ledger synchronisation streams",
    "streams_blobs": "blob upload streams",
}


@dataclass(slots=True)
class MachineReader:
    """Reads one machine; ``blob_quota_bytes`` is the operator's limit, None without one."""

    datadir: DataDir
    log: LogTail
    loop: Callable[[], LoopStatus]
    blob_quota_bytes: int | None = None
    _scanned_at: float = float("-inf")
    _disk: tuple[Usage, ...] = ()
    _read_at: float = float("-inf")
    _gpus: tuple[Gpu, ...] = ()
    _file_system: Usage = field(default_factory=lambda: Usage("file system", 0))
    _process: psutil.Process = field(default_factory=psutil.Process)

    @property
    def rss_bytes(self) -> int:
        """Resident memory of this process."""
        return int(self._process.memory_info().rss)

    def status(self, p2pd_pid: int | None, state_seconds: Mapping[str, float]) -> MachineStatus:
        """Return the usage in a few numbers; disk and GPUs may be ``USAGE_SECONDS`` old."""
        self._read()
        disk, p2pd_memory_bytes = self._file_system, 0
        if p2pd_pid is not None:
            with suppress(psutil.Error):  # it has just exited
                p2pd_memory_bytes = psutil.Process(p2pd_pid).memory_info().rss
        return MachineStatus(
            version=VERSION,
            disk_free_bytes=int((disk.most or 0) - disk.value),
            disk_total_bytes=int(disk.most or 0),
            p2pd_memory_bytes=p2pd_memory_bytes,
            gpus=len(self._gpus),
            gpu_memory_bytes=sum(card.memory_bytes for card in self._gpus),
            gpu_memory_free_bytes=sum(card.free_bytes for card in self._gpus),
            state_seconds={state: round(s, 1) for state, s in state_seconds.items()},
        )

    async def page(
        self, node: NodeSummary, queues: tuple[Usage, ...], traffic: dict[str, int]
    ) -> MachinePage:
        """Return the page; its disk usage may be ``SCAN_SECONDS`` old."""
        self._read()
        loop, memory, now = self.loop(), psutil.virtual_memory(), loop_time()
        if now >= self._scanned_at + SCAN_SECONDS:
            self._scanned_at = now
            self._disk = await asyncio.to_thread(self._scan)
        return MachinePage(
            pid=os.getpid(),
            software=SOFTWARE,
            started_at=node.started_at,
            now=node.now,
            memory=(
                Usage("this node", self.rss_bytes, memory.total),
                Usage("machine", memory.total - memory.available, memory.total),
            ),
            disk=(*self._disk, self._file_system),
            data_dir=str(self.datadir.root),
            gpus=tuple(
                MachineGpu(card.name, card.memory_bytes - card.free_bytes, card.memory_bytes)
                for card in self._gpus
            ),
            cores=psutil.cpu_count() or 0,
            load=tuple(round(one, 2) for one in psutil.getloadavg()),
            queues=queues,
            loop_delays=loop.delays,
            loop_bounds=LOOP_DELAY_BOUNDS,
            loop_delay_seconds_max=loop.delay_seconds_max,
            traffic=traffic,
            log=self.log.lines,
        )

    def _read(self) -> None:
        """Read file system and GPUs, unless they were read ``USAGE_SECONDS`` ago."""
        now = loop_time()
        if now >= self._read_at + USAGE_SECONDS:
            disk = psutil.disk_usage(str(self.datadir.root))
            self._file_system = Usage("file system", disk.total - disk.free, disk.total)
            self._read_at, self._gpus = now, tuple(gpus())

    def _scan(self) -> tuple[Usage, ...]:
        """Read the usage of the data directory; blocks."""
        return (
            Usage("blobs", bytes_under(self.datadir.blobs), self.blob_quota_bytes),
            Usage("weights", bytes_under(self.datadir.weights)),
            Usage("state", _bytes_of(self.datadir.state)),
        )


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def queues(sizes: Mapping[str, int], limits: Mapping[str, int]) -> tuple[Usage, ...]:
    """Return the sizes and limits of tables with readable names."""
    return tuple(
        Usage(words, sizes[name], limits[name], "bytes" if name.endswith("bytes") else "count")
        for name, words in _QUEUES.items()
        if name in sizes
    )
