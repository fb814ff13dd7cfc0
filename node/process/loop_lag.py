"""Event loop lag: measures late wake-ups, which delay gossip, heartbeats and all transfers.

A periodic beat measures its own delay, and for how long the loop's thread waited for a core
(machine load). A separate thread samples the loop's stack while a beat is late.
"""

import asyncio
import os
import sys
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from types import FrameType

import structlog

from node.api.status import LOOP_DELAY_BOUNDS, LoopStatus

log = structlog.get_logger()

BEAT_SECONDS = 0.05
"""20 beats per second take 0.5 % of a core (measured on a virtual machine)."""

STALL_SECONDS = 0.1
"""Delay that is logged: a tenth of a gossip heartbeat."""

LOOK_SECONDS = STALL_SECONDS / 2

WARNINGS_PAUSE_SECONDS = 10.0

FRAMES_TOLD = 4


class LoopLagMonitor:
    """Monitors the running loop from ``start`` to ``stop``; call both on it."""

    def __init__(self) -> None:
        self._thread_id = 0
        self._schedstat: int | None = None
        self._delays = [0] * (len(LOOP_DELAY_BOUNDS) + 1)
        self._delay_seconds = self._delay_seconds_max = self._own_delay_seconds_max = 0.0
        self._due = 0.0
        self._waited = self._computed = 0.0
        """Run-queue wait and CPU time of the loop's thread at the last beat, in seconds."""
        self._where = ""
        self._warned_at = -WARNINGS_PAUSE_SECONDS
        self._untold = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._looking = threading.Thread(target=self._look, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Start monitoring."""
        self._thread_id = threading.get_ident()
        with suppress(OSError):  # Linux only
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._next_beat()
        self._looking.start()

    def stop(self) -> None:
        """Stop monitoring; idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._schedstat is not None:
            os.close(self._schedstat)

    def status(self) -> LoopStatus:
        """Return the delays since the start."""
        return LoopStatus(
            delays=tuple(self._delays),
            delay_seconds=self._delay_seconds,
            delay_seconds_max=self._delay_seconds_max,
            own_delay_seconds_max=self._own_delay_seconds_max,
        )

    def _next_beat(self) -> None:
        self._waited, self._computed = self._waited_seconds(), time.thread_time()
        self._due = time.monotonic() + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        waited = min(late, self._waited_seconds() - self._waited)
        self._delays[bisect_left(LOOP_DELAY_BOUNDS, late)] += 1
        self._delay_seconds += late
        self._delay_seconds_max = max(self._delay_seconds_max, late)
        self._own_delay_seconds_max = max(self._own_delay_seconds_max, late - waited)
        if late >= STALL_SECONDS:
            self._warn(late, waited)
        self._where = ""
        self._next_beat()

    def _warn(self, late: float, waited: float) -> None:
        now = time.monotonic()
        if now < self._warned_at + WARNINGS_PAUSE_SECONDS:
            self._untold += 1
            return
        self._warned_at = now
        log.warning(
            "event loop stalled",
            seconds=round(late, 3),
            computed_seconds=round(time.thread_time() - self._computed, 3),
            waited_for_core_seconds=round(waited, 3),
            where=self._where,
            untold_before=self._untold,
        )
        self._untold = 0

    def _waited_seconds(self) -> float:
        """Return for how long this thread was runnable without a core, since it started."""
        if self._schedstat is None:
            return 0.0
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9

    def _look(self) -> None:
        """Sample the loop's stack while a beat is late; runs in its own thread."""
        while not self._stopped.wait(LOOK_SECONDS):
            if not self._where and time.monotonic() > self._due + LOOK_SECONDS:
                self._where = _told(sys._current_frames().get(self._thread_id))  # noqa: SLF001 - documented


def _told(frame: FrameType | None) -> str:
    """Return the innermost functions of a stack, the running one first."""
    names: list[str] = []
    while frame is not None and len(names) < FRAMES_TOLD:
        code = frame.f_code
        names.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(names)
