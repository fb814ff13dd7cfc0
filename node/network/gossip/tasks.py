"""Task group of gossip: cancels all tasks together, reports each failure at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Set of tasks; a failure goes to the loop's exception handler at once."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` until it ends or ``cancel`` is called."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            surface(error)


def surface(error: BaseException) -> None:
    """Pass an internal error to the loop's exception handler and continue."""
    context = {"message": "internal error in gossip", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
