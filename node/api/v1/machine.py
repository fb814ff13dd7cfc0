"""Reader of this node's process and machine."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from node.api.status import LOOP_DELAY_BOUNDS, LoopStatus
from node.api.v1.answers import MachineGpu, MachinePage, Usage
from node.local.datadir import DataDir, bytes_under
from node.local.hardware import gpus
from node.local.log_tail import LogTail
from node.network.streams.deadline import loop_time

LOOK_SECONDS = 10.0
"""Minimum interval of disk scans; a data directory has thousands of files."""


@dataclass(slots=True)
class MachineReader:
    """Reads one machine; ``blob_quota_bytes`` is the operator's limit, None without one."""

    datadir: DataDir
    log: LogTail
    loop: Callable[[], LoopStatus]
    software: str
    started_at: float
    blob_quota_bytes: int | None = None
    _disk: tuple[Usage, ...] = ()
    _gpus: tuple[MachineGpu, ...] = ()
    _looked_at: float = field(default=float("-inf"))
    _process: psutil.Process = field(default_factory=psutil.Process)

    @property
    def rss_bytes(self) -> int:
        """Resident memory of this process."""
        return int(self._process.memory_info().rss)

    async def page(
        self, queues: tuple[Usage, ...], traffic: dict[str, int], now: float
    ) -> MachinePage:
        """Return the page; its disk usage may be ``LOOK_SECONDS`` old."""
        loop, monotonic = self.loop(), loop_time()
        if monotonic >= self._looked_at + LOOK_SECONDS:
            self._looked_at = monotonic
            self._disk, self._gpus = await asyncio.to_thread(self._look)
        memory = psutil.virtual_memory()
        return MachinePage(
            pid=os.getpid(),
            software=self.software,
            started_at=self.started_at,
            now=now,
            memory=(
                Usage("this node", self.rss_bytes, memory.total),
                Usage("machine", memory.total - memory.available, memory.total),
            ),
            disk=self._disk,
            data_dir=str(self.datadir.root),
            gpus=self._gpus,
            cores=psutil.cpu_count() or 0,
            load=tuple(round(one, 2) for one in psutil.getloadavg()),
            queues=queues,
            loop_delays=loop.delays,
            loop_bounds=LOOP_DELAY_BOUNDS,
            loop_delay_seconds_max=loop.delay_seconds_max,
            traffic=traffic,
            log=self.log.lines,
        )

    def _look(self) -> tuple[tuple[Usage, ...], tuple[MachineGpu, ...]]:
        """Read disk usage and GPUs; blocks."""
        datadir = self.datadir
        disk = psutil.disk_usage(str(datadir.root))
        cards = tuple(
            MachineGpu(card.name, card.memory_bytes - card.free_bytes, card.memory_bytes)
            for card in gpus()
        )
        return (
            Usage("blobs", bytes_under(datadir.blobs), self.blob_quota_bytes),
            Usage("weights", bytes_under(datadir.weights)),
            Usage("state", _bytes_of(datadir.state)),
            Usage("file system", disk.used, disk.total),
        ), cards


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
