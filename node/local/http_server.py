"""uvicorn embedded in the daemon: given socket, no signal handlers, bounded shutdown."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from typing_extensions import override

START_SECONDS = 10.0
STOP_SECONDS = 3.0


class EmbeddedServer(uvicorn.Server):
    """HTTP server in the running event loop until ``end``."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, listener: socket.socket, name: str) -> None:
        """Start a task of this name and wait until it serves."""
        self._task = asyncio.create_task(self.serve([listener]), name=name)
        async with asyncio.timeout(START_SECONDS):
            await self._listening.wait()

    @property
    def serves(self) -> bool:
        """True between ``begin`` and ``end``."""
        return self._task is not None

    async def end(self, *, at_once: bool = False) -> None:
        """Close within ``STOP_SECONDS``, after pending requests or at once; idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self.should_exit = True
        self.force_exit = at_once
        _, pending = await asyncio.wait([task], timeout=STOP_SECONDS)
        if pending:
            task.cancel()
            await asyncio.wait([task], timeout=STOP_SECONDS)

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the daemon handles signals

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()
