"""Dial results by address: ranks addresses, and keeps the best over a restart.

Without I/O: the clock is an argument.
"""

from collections.abc import Iterable

from protocol.core.containers import BoundedDict

ANSWERED_MAX = 64
"""Remembered addresses that answered; the same number is kept over a restart."""

FAILED_MAX = 1024
"""Remembered addresses that failed since; records can hold arbitrary ones."""


class DialHistory:
    """Last answer of each address, and its number of failures since then."""

    def __init__(self) -> None:
        self._answered_at = BoundedDict[str, float](ANSWERED_MAX)  # the newest answer last
        self._failures = BoundedDict[str, int](FAILED_MAX, "failed_addresses")
        self.tables = (self._failures,)

    def note(self, address: str, now: float, *, answered: bool) -> None:
        """Record the result of a dial."""
        failures = self._failures.pop(address, 0)
        if answered:
            self._answered_at.set_newest(address, now)
            return
        self._failures[address] = failures + 1

    def failures(self, address: str) -> int:
        """Return the failures of an address since its last answer or first dial."""
        return self._failures.get(address, 0)

    def best_first(self, addresses: Iterable[str]) -> list[str]:
        """Rank addresses for dialling: fewest failures first, then the latest answer.

        Ties keep their order.
        """
        never = float("-inf")

        def rank(address: str) -> tuple[int, float]:
            return self.failures(address), -self._answered_at.get(address, never)

        return sorted(addresses, key=rank)

    def answered(self) -> list[str]:
        """Return the addresses that have answered, best first."""
        return self.best_first(self._answered_at)
