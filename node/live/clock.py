"""System clock."""

import time

from typing_extensions import override

from roles.ports.clock import Clock


class SystemClock(Clock):
    """Unix time and CPU time of this thread."""

    @override
    def now(self) -> float:
        return time.time()

    @override
    def core_seconds(self) -> float:
        return time.thread_time()
