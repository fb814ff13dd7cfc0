"""A supervisor keeps one engine process there: a dead one is replaced before the next call.

What the engine had is given to the new process first (``restore``), so callers see one failed call
and never an engine that has forgotten. A process that keeps dying is replaced after longer and
longer pauses; roles pause besides (``roles.runtime.retry``).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts, EngineConnection
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.rpc_methods import METHODS
from roles.ports.engines import EngineError, FirstToken

log = structlog.get_logger()

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Between two starts when the last one brought no call that ended well; guesses."""

FAILURES_TO_REPLACE = 2
"""In a row, and then the process is replaced: a device that an illegal access has left unusable
comes back for a new process only. Once may be a call that asked for too much memory; a guess."""

Restore = Callable[[EngineConnection], Awaitable[None]]


class EngineSupervisor:
    """Calls to an engine that ``make`` describes, whichever process has it now.

    Its first process is started at once, beside whatever else the node begins with.
    """

    def __init__(
        self, processes: EngineProcesses, make: wire.Make, patience: CallTimeouts, restore: Restore
    ) -> None:
        self._processes = processes
        self._make = make
        self._patience = patience
        self._restore = restore
        self._starting = asyncio.Lock()
        self._conversation: EngineConnection | None = None
        self._fruitless = 0
        """Starts since the last call that ended well."""
        self._failures = 0
        """Calls in a row that broke, in whichever process."""
        self._first = asyncio.create_task(self._begin())

    async def start(self) -> None:
        """Return when a process lives and has what it should have; raises ``EngineError``."""
        await self._alive()

    async def call(self, name: str, *arguments: Any, items: int = 0, tokens: int = 0) -> list[Any]:
        """Call a method as ``EngineConnection.call`` does, in a process that lives."""
        conversation = await self._alive()
        failures = self._failures
        try:
            result: list[Any] = await conversation.call(name, arguments, items, tokens)
        except EngineError as error:
            # Calls that run together break together, which is one failure.
            self._failures = max(self._failures, failures + 1)
            if self._failures >= FAILURES_TO_REPLACE:
                await conversation.close(f"replaced after {self._failures} failures: {error}")
            raise
        except Exception:
            self._failures = 0  # what a port documents is an answer
            raise
        self._failures = self._fruitless = 0
        return result

    @property
    def pid(self) -> int | None:
        """The process that has the engine now, if any."""
        known = self._conversation
        return known.pid if known is not None and not known.reason else None

    @property
    def tokens(self) -> int:
        """What the present process had computed when it said so last."""
        return 0 if self._conversation is None else self._conversation.tokens

    @property
    def first_token(self) -> FirstToken | None:
        """What the present process has said of the policy that it loaded last."""
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
        except EngineError as error:  # the first call tries again, and tells its role
            log.warning("no engine process", engine=self._make.kind, reason=str(error))

    async def _alive(self) -> EngineConnection:
        async with self._starting:
            known = self._conversation
            if known is not None and not known.reason:
                return known
            if known is not None:
                log.warning("engine process ended", engine=self._make.kind, reason=known.reason)
            await asyncio.sleep(pause_seconds(self._fruitless))
            self._fruitless += 1
            process = await self._processes.fork(self._patience.start_seconds)
            methods = METHODS[self._make.kind]
            fresh = await EngineConnection.begin(process, self._make, methods, self._patience)
            try:
                await self._restore(fresh)
            except BaseException:
                await fresh.close()
                raise
            self._conversation = fresh
            log.info("engine process", engine=self._make.kind, pid=fresh.pid)
            return fresh


def pause_seconds(fruitless: int) -> float:
    """Return how long to wait before a start after so many in vain."""
    if not fruitless:
        return 0.0
    doublings = min(fruitless - 1, 16)  # a bound, so that nothing overflows
    return min(PAUSE_SECONDS_MIN * (1 << doublings), PAUSE_SECONDS_MAX)
