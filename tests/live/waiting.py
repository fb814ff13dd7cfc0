"""Waiting for other processes."""

import asyncio
import inspect

PATIENCE_SECONDS = 180.0
"""Timeout of steps that take a moment on an idle machine; no test measures it."""


async def eventually(condition) -> None:
    """Wait until ``condition``, a function or a coroutine function, returns a true value."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            told = condition()
            if await told if inspect.isawaitable(told) else told:
                return
            await asyncio.sleep(0.02)
