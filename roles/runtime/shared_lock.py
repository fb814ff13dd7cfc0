"""Who may run together and who alone: calls share an engine, a change of its policy does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """Lets in by order of arrival: whoever comes after one who must be alone waits for that one."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()  # a fair one
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Run beside all others that are ``together``."""
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
        """Run beside nobody: wait until those inside have left, and keep the others out."""
        async with self._door:
            await self._empty.wait()
            yield
