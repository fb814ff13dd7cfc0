"""What keeps half a node from going on as if it were a whole one."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def for_ever(name: str, service: Coroutine[Any, Any, None]) -> None:
    """Run a service that must not end by itself, nor by a cancellation that was not meant for it.

    A group takes either in silence, and the node would go on as half a node.
    """
    try:
        await service
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the service {name} has ended by itself")
