"""Start of a role's engine, and retries after its failures, with exponential backoff.

A failure may be temporary (memory that another process frees) or permanent (a wrong driver), and a
node cannot tell which. So the role reports the reason, pauses and retries; the node keeps running.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from protocol.core.types import Role
from roles.ports.engines import Engine, EngineError
from roles.runtime.context import RoleContext

log = structlog.get_logger()

PAUSE_EPOCHS_MIN = 0.5
PAUSE_EPOCHS_MAX = 8.0
"""First and longest pause, in epochs. Guesses: temporary failures pass within epochs, and a failed
retry costs no more than a successful one."""


def pause_epochs(failures: int) -> float:
    """Return the pause after ``failures`` (at least 1) in a row, in epochs."""
    doublings = min(failures - 1, 16)  # avoids overflow
    return min(PAUSE_EPOCHS_MIN * (1 << doublings), PAUSE_EPOCHS_MAX)


class Failures:
    """Consecutive failures of one role."""

    def __init__(self, context: RoleContext, role: str) -> None:
        self._context = context
        self._role = role
        self.count = 0

    def note(self, error: EngineError, remedy: str = "trying again") -> None:
        """Count a failure, and report its reason and the remedy."""
        self.count += 1
        self._context.conditions.set(self._role, f"{self._role} failed: {error}; {remedy}")
        # Only the first failure logs its traceback: repetitions would fill the log.
        where = {"stack": error.trace} if self.count == 1 and error.trace else {}
        log.warning("role paused", role=self._role, failures=self.count, error=str(error), **where)

    async def pause(self, error: EngineError) -> None:
        """Count a failure and wait before the next retry."""
        self.note(error)
        await asyncio.sleep(pause_epochs(self.count) * self._context.epoch_seconds)

    def end(self) -> None:
        """Reset the count: the role works again."""
        if self.count:
            log.info("role resumed", role=self._role, failures=self.count)
        self.count = 0
        self._context.conditions.clear(self._role)


async def fill(
    context: RoleContext, role: Role, engine: Engine, flow: Coroutine[Any, Any, None]
) -> None:
    """Run the flow of a role, and start its engine meanwhile.

    The role is prepared when its engine has started. An inference role also needs a loaded version;
    its flow reports that.
    """
    context.conditions.prepare(role, "starting the engine")
    async with asyncio.TaskGroup() as group:
        group.create_task(_start(context, role, engine))
        group.create_task(flow)


async def _start(context: RoleContext, role: Role, engine: Engine) -> None:
    failures = Failures(context, f"{role} engine")
    while True:
        try:
            await engine.start()
        except EngineError as error:
            await failures.pause(error)
        else:
            break
    failures.end()
    if role is not Role.INFERENCE:
        context.conditions.prepared(role)
