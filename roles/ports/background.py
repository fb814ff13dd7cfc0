"""Where blocking code runs: the event loop must go on while somebody else's code thinks."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    """Runs functions that may take long, one after another."""

    async def run(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns; the loop serves everybody else meanwhile.

        A cancelled call still runs to its end there.
        """
