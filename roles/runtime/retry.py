"""What breaks inside an engine or a task: it pauses its role with a reason, and the node lives on.

What is broken may heal (memory that another process gives back) or not (a wrong driver), and nobody
here can tell. So it is tried again, each time after a longer pause up to a bound, and said why.
"""

import asyncio

import structlog

from roles.ports.engines import EngineError
from roles.runtime.context import RoleContext

log = structlog.get_logger()

PAUSE_EPOCHS_MIN = 0.5
PAUSE_EPOCHS_MAX = 8.0
"""Before the first retry, and at most. Guesses: what heals does so within epochs, and a try that
fails costs no more than one that succeeds."""


def pause_epochs(failures: int) -> float:
    """Return how long to wait after so many failures in a row, one at least."""
    doublings = min(failures - 1, 16)  # a bound, so that nothing overflows
    return min(PAUSE_EPOCHS_MIN * (1 << doublings), PAUSE_EPOCHS_MAX)


class Failures:
    """The failures of one role in a row."""

    def __init__(self, context: RoleContext, role: str) -> None:
        self._context = context
        self._role = role
        self.count = 0

    def note(self, error: EngineError, remedy: str = "trying again") -> None:
        """Count a failure; tell people why the role does not do its work, and what it does."""
        self.count += 1
        self._context.conditions.set(self._role, f"{self._role} failed: {error}; {remedy}")
        # The first one says where it broke; the same again would only fill the log.
        where = {"stack": error.trace} if self.count == 1 and error.trace else {}
        log.warning("paused", role=self._role, failures=self.count, error=str(error), **where)

    async def pause(self, error: EngineError) -> None:
        """Note a failure and wait before the next try."""
        self.note(error)
        await asyncio.sleep(pause_epochs(self.count) * self._context.epoch_seconds)

    def end(self) -> None:
        """Note that the role does its work."""
        if self.count:
            log.info("goes on", role=self._role, failures=self.count)
        self.count = 0
        self._context.conditions.clear(self._role)
