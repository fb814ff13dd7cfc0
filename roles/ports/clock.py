"""Time; sleeping is ``asyncio.sleep``, because the event loop is a port too."""

from typing import Protocol


class Clock(Protocol):
    """The wall clock."""

    def now(self) -> float:
        """Return unix seconds."""
