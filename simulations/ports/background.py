"""Background work of a node, run inline because virtual time has no threads."""

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import override

from roles.ports.background import Background

T = TypeVar("T")


class SimBackground(Background):
    """Runs work at once and without duration, so the order of events depends on the seed only."""

    @override
    async def run(self, function: Callable[[], T]) -> T:
        return function()
