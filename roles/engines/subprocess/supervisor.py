"""Supervisor of one engine, in a process or a group of ranks: replace it before the next call.

The new process first gets back the engine's state (``restore``), so callers see one failed call and
never an engine without its policy. Restarts of a process that keeps dying back off exponentially;
roles also back off (``roles.runtime.retry``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts, EngineConnection
from roles.engines.subprocess.group import EngineGroup, begin
from roles.engines.subprocess.process import EngineProcesses
from roles.ports.engines import EngineError, FirstToken

log = structlog.get_logger()

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Maximum backoff between starts while no call succeeds; a guess."""

FAILURES_TO_REPLACE = 2
"""Consecutive failures after which the process is replaced: only a new process recovers a device
after an illegal access. A single one may be a call that needed too much memory; a guess."""

Restore = Callable[[EngineConnection | EngineGroup], Awaitable[None]]


class EngineSupervisor:
    """Calls to an engine that ``make`` describes, in whichever processes have it now.

    ``devices`` has one device for each rank. The first processes start at once, while the node
    starts up.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        make: wire.Make,
        patience: CallTimeouts,
        restore: Restore,
        devices: Sequence[str] = (),
    ) -> None:
        self._processes = processes
        self._make = make
        self._devices = devices or (make.device,)
        self._patience = patience
        self._restore = restore
        self._starting = asyncio.Lock()
        self._conversation: EngineConnection | EngineGroup | None = None
        self._fruitless = 0
        """Starts since the last successful call."""
        self._failures = 0
        """Consecutive failed calls, over all processes."""
        self._first = asyncio.create_task(self._begin())

    async def start(self) -> None:
        """Return when a process is alive and its state restored; raises ``EngineError``."""
        await self._alive()

    async def call(
        self,
        name: str,
        *arguments: Any,
        elements: Sequence[Any] = (),
        items: int = 0,
        tokens: int = 0,
    ) -> list[Any]:
        """Call a method as ``EngineConnection.call`` does, in a live process."""
        conversation = await self._alive()
        failures = self._failures
        try:
            result: list[Any] = await conversation.call(name, arguments, items, tokens, elements)
        except EngineError as error:
            # Concurrent calls fail together: that is one failure.
            self._failures = max(self._failures, failures + 1)
            if self._failures >= FAILURES_TO_REPLACE:
                await conversation.close(f"replaced after {self._failures} failures: {error}")
            raise
        except Exception:
            self._failures = 0  # an error that the port documents is a valid response
            raise
        self._failures = self._fruitless = 0
        return result

    @property
    def pid(self) -> int | None:
        """The current process's id, if there is one; of several ranks, that of rank 0."""
        return next(iter(self.pids), None)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the current ranks; empty without any."""
        known = self._conversation
        return known.pids if known is not None and not known.reason else ()

    @property
    def tokens(self) -> int:
        """Tokens computed by the current process, from its last report."""
        return 0 if self._conversation is None else self._conversation.tokens

    @property
    def first_token(self) -> FirstToken | None:
        """The current process's report for the last policy it loaded."""
        return None if self._conversation is None else self._conversation.first_token

    async def close(self) -> None:
        """End the process; idempotent."""
        self._first.cancel()
        await asyncio.wait([self._first])
        if self._conversation is not None:
            await self._conversation.close()

    async def _begin(self) -> None:
        try:
            await self._alive()
        except EngineError as error:  # the first call tries again and raises to its role
            log.warning("engine process start failed", engine=self._make.kind, reason=str(error))

    async def _alive(self) -> EngineConnection | EngineGroup:
        async with self._starting:
            known = self._conversation
            if known is not None and not known.reason:
                return known
            if known is not None:
                log.warning("engine process ended", engine=self._make.kind, reason=known.reason)
            await asyncio.sleep(pause_seconds(self._fruitless))
            self._fruitless += 1
            fresh = await begin(self._processes, self._make, self._devices, self._patience)
            try:
                await self._restore(fresh)
            except BaseException:
                await fresh.close()
                raise
            self._conversation = fresh
            for pid in fresh.pids:
                log.info("engine process started", engine=self._make.kind, pid=pid)
            return fresh


def pause_seconds(fruitless: int) -> float:
    """Return the backoff before a start after ``fruitless`` starts without a successful call."""
    if not fruitless:
        return 0.0
    doublings = min(fruitless - 1, 16)  # bounded against overflow
    return min(PAUSE_SECONDS_MIN * (1 << doublings), PAUSE_SECONDS_MAX)
