"""The time of the loop, and a deadline for every wait for another node."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from roles.ports.transport import TransportError

T = TypeVar("T")


async def within(seconds: float, operation: Awaitable[T]) -> T:
    """Await ``operation``; raises ``TransportError`` when it takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await operation
    except TimeoutError as error:
        raise TransportError(f"nothing for {seconds} s") from error


def loop_time() -> float:
    """Return the loop's time: an interval is measured, and a wall clock may step back."""
    return asyncio.get_running_loop().time()
