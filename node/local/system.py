"""Adapters of the operating system: clocks, and a thread for long computations."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from typing_extensions import override

from roles.ports.background import Background
from roles.ports.clock import Clock

T = TypeVar("T")


class SystemClock(Clock):
    """Unix time and CPU time of this thread."""

    @override
    def now(self) -> float:
        return time.time()

    @override
    def core_seconds(self) -> float:
        return time.thread_time()


class ThreadBackground(Background):
    """Single thread, so that long computations do not delay the threads for file access."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="background")

    @override
    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._executor.submit(function))

    def close(self) -> None:
        """Drop queued calls and let the running one finish; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)
