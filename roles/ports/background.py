"""Executor for blocking third-party code, so that the event loop keeps running."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    """Runs blocking functions one after another."""

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of ``function``; the event loop keeps running meanwhile.

        A cancelled call still runs to its end.
        """
