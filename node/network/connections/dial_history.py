"""What came of dials, by address: which to try first, and what a later start may begin with.

A machine without I/O: the clock is an argument.
"""

from collections.abc import Iterable

from protocol.core.containers import BoundedDict

ANSWERED_MAX = 64
"""Addresses that have answered and are remembered, as many as are kept over a restart."""

FAILED_MAX = 1024
"""Addresses that have not answered since; anybody may write some into a record."""


class DialHistory:
    """Remembers when each address answered last, and how often it has failed since then."""

    def __init__(self) -> None:
        self._answered_at = BoundedDict[str, float](ANSWERED_MAX)  # the newest answer last
        self._failures = BoundedDict[str, int](FAILED_MAX, "failed_addresses")
        self.tables = (self._failures,)

    def note(self, address: str, now: float, *, answered: bool) -> None:
        """Note what came of a dial."""
        failures = self._failures.pop(address, 0)
        if answered:
            self._answered_at.set_newest(address, now)
            return
        self._failures[address] = failures + 1

    def failures(self, address: str) -> int:
        """Return how often an address has failed since it answered, or since it was first tried."""
        return self._failures.get(address, 0)

    def best_first(self, addresses: Iterable[str]) -> list[str]:
        """Return addresses in the order in which they should be tried.

        Those that failed less often since they answered come first, then those that have answered,
        the last one first; else they keep their order.
        """
        never = float("-inf")

        def rank(address: str) -> tuple[int, float]:
            return self.failures(address), -self._answered_at.get(address, never)

        return sorted(addresses, key=rank)

    def answered(self) -> list[str]:
        """Return the addresses that have answered, best first."""
        return self.best_first(self._answered_at)
