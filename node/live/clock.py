"""The wall clock of this machine."""

import time

from typing_extensions import override

from roles.ports.clock import Clock


class SystemClock(Clock):
    """The system's unix time."""

    @override
    def now(self) -> float:
        return time.time()

    @override
    def core_seconds(self) -> float:
        return time.thread_time()
