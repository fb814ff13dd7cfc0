"""The wall clock of this machine."""

import time


class SystemClock:
    """``roles.ports.Clock`` on the system's unix time."""

    def now(self) -> float:
        """Return unix seconds."""
        return time.time()
