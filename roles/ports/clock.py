"""Time; sleeping is ``asyncio.sleep``, because the event loop is a port too."""

from typing import Protocol


class Clock(Protocol):
    """The wall clock, and what this thread has computed."""

    def now(self) -> float:
        """Return unix seconds."""

    def core_seconds(self) -> float:
        """Return how long a core has worked for this thread, whatever else it had to do."""
