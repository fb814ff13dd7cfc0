"""Fair shared/exclusive lock around an engine: calls share it, a policy swap is exclusive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """Fair readers-writer lock: shared holders that arrive after an exclusive one wait for it."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()  # FIFO
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Hold the lock shared."""
        async with self._door:
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock exclusively: wait for the current holders and block later ones."""
        async with self._door:
            await self._empty.wait()
            yield
