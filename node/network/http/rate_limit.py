"""Who may connect to the weights server, and how often an address may ask.

Apart from ``connection``, which needs uvicorn: 3.3 MB that a simulation can do without.
"""

from collections import Counter
from dataclasses import dataclass

from protocol.core.containers import BoundedDict, SizeGauge, Table

ADDRESSES_MAX = 4096
"""Whose requests are counted; who asked longest ago is forgotten first, and so is welcome again."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Guesses. ``total`` leaves most of the 1024 files that a process may have open by default.

    ``head_seconds`` is for a whole request head, ``stall_seconds`` for a reader to take a piece.
    An address may send ``requests_per_second``, and twice as many at once; ranges of 8 MiB at a
    gigabyte per second are 120.
    """

    total: int = 256
    per_address: int = 32
    head_seconds: float = 10.0
    stall_seconds: float = 60.0
    requests_per_second: float = 200.0


class HttpRateLimiter:
    """Counts the connections and the requests of all addresses."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.connections: Counter[str] = Counter()
        self._allowances = BoundedDict[str, tuple[float, float]](ADDRESSES_MAX, "http_addresses")
        """Requests that an address may send, and the time at which that was so."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("http_connections", limits.total, self.connections.total),
            self._allowances,
        )

    def enter(self, address: str) -> bool:
        """Count a connection if there is room for it."""
        full = self.connections.total() >= self.limits.total
        if full or self.connections[address] >= self.limits.per_address:
            return False
        self.connections[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Forget a connection that had entered."""
        self.connections[address] -= 1
        if not self.connections[address]:
            del self.connections[address]

    def may_ask(self, address: str, now: float) -> bool:
        """Count a request; False when its address has sent too many."""
        rate = self.limits.requests_per_second
        left, at = self._allowances.get(address, (0.0, float("-inf")))
        left = min(2 * rate, left + (now - at) * rate)
        self._allowances.set_newest(address, (max(0.0, left - 1), now))
        return left >= 1
