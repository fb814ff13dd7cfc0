"""Wall clock and CPU time. To sleep, use ``asyncio.sleep``: the event loop is a port too."""

from typing import Protocol


class Clock(Protocol):
    """Wall clock, and CPU time of this thread."""

    def now(self) -> float:
        """Return unix seconds."""

    def core_seconds(self) -> float:
        """Return the CPU time of this thread, in seconds."""
