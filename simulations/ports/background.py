"""What runs in the background of a node: here and now, because virtual time knows no threads."""

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import override

from roles.ports.background import Background

T = TypeVar("T")


class SimBackground(Background):
    """Runs everything at once and takes no time, so the order of events is that of the seed."""

    @override
    async def run(self, function: Callable[[], T]) -> T:
        return function()
