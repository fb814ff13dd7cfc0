"""Waiting for other processes."""

import asyncio
import inspect

PATIENCE_SECONDS = 60.0
"""For what takes a moment on an idle machine; nothing is measured by it."""


async def eventually(condition) -> None:
    """Wait until ``condition``, a function or a coroutine function, returns something true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            told = condition()
            if await told if inspect.isawaitable(told) else told:
                return
            await asyncio.sleep(0.02)
