"""Resource usage of the node and its machine, measured on request."""

import shutil
from collections.abc import Mapping
from contextlib import suppress

import psutil

from node.api.status import MachineStatus
from node.local.datadir import DataDir
from node.local.hardware import gpus
from node.local.software import VERSION
from node.network.streams.deadline import loop_time

LOOK_SECONDS = 5.0
"""Cache lifetime: querying a GPU driver takes milliseconds."""


class ResourceUsage:
    """Resource usage of one node."""

    def __init__(self, datadir: DataDir) -> None:
        self._datadir = datadir
        self._looked_at = -LOOK_SECONDS
        self._status = MachineStatus(VERSION)

    def status(self, p2pd_pid: int | None, state_seconds: Mapping[str, float]) -> MachineStatus:
        """Return the usage, at most ``LOOK_SECONDS`` old."""
        now = loop_time()
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, self._status = now, self._look(p2pd_pid, state_seconds)
        return self._status

    def _look(self, p2pd_pid: int | None, state_seconds: Mapping[str, float]) -> MachineStatus:
        disk = shutil.disk_usage(self._datadir.root)
        cards = list(gpus())
        memory_bytes = 0
        if p2pd_pid is not None:
            with suppress(psutil.Error):  # it has just exited
                memory_bytes = psutil.Process(p2pd_pid).memory_info().rss
        return MachineStatus(
            version=VERSION,
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            p2pd_memory_bytes=memory_bytes,
            gpus=len(cards),
            gpu_memory_bytes=sum(card.memory_bytes for card in cards),
            gpu_memory_free_bytes=sum(card.free_bytes for card in cards),
            state_seconds={state: round(s, 1) for state, s in state_seconds.items()},
        )
