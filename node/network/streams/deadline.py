"""The time of the loop, and a deadline for every wait for another node."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from roles.ports.transport import TransportError

T = TypeVar("T")


async def within(seconds: float, operation: Awaitable[T]) -> T:
    """Await ``operation``; raises ``TransportError`` when it takes longer than ``seconds``.

    What ``asyncio.timeout`` does, at a third of its cost: a node waits so for every exchange.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancelled_before, is_late = task.cancelling(), False

    def interrupt() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = loop.call_later(seconds, interrupt)
    try:
        return await operation
    except TimeoutError as error:
        raise TransportError(f"nothing for {seconds} s") from error
    except asyncio.CancelledError as error:
        # Somebody else's cancellation goes on, even if it came beside ours.
        if not is_late or task.cancelling() - 1 > cancelled_before:
            raise
        raise TransportError(f"nothing for {seconds} s") from error
    finally:
        timer.cancel()
        if is_late:
            task.uncancel()


def loop_time() -> float:
    """Return the loop's time: an interval is measured, and a wall clock may step back."""
    return asyncio.get_running_loop().time()
