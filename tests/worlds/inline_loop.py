"""Virtual time for code that reads and writes real files in threads."""

from collections.abc import Awaitable
from typing import Any

from simulations.runtime.loop import VirtualLoop


class InlineLoop(VirtualLoop):
    """Virtual loop that runs calls for threads inline: they take no virtual time."""

    def run_in_executor(self, _executor, function, *arguments) -> Awaitable[Any]:
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - any error goes to the caller
            future.set_exception(error)
        return future
