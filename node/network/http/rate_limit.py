"""HTTP rate limiter: connections in total and per address, and request rate per address.

Separate from ``server_connection``, whose import of uvicorn (3.3 MB) simulations do not need.
"""

from collections import Counter
from dataclasses import dataclass

from protocol.core.containers import BoundedDict, SizeGauge, Table

ADDRESSES_MAX = 4096
"""Addresses with a request count; the least recent is evicted first and regains its burst."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connection limits; guesses. ``total`` stays below the default limit of 1024 open files.

    ``head_seconds`` is the deadline of a request head, ``stall_seconds`` that of a reader for one
    piece. ``requests_per_second`` is per address, with twice as many as burst; 8 MiB ranges at 1
    GB/s are 120.
    """

    total: int = 256
    per_address: int = 32
    head_seconds: float = 10.0
    stall_seconds: float = 60.0
    requests_per_second: float = 200.0


class HttpRateLimiter:
    """Counts connections and requests per address."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.connections: Counter[str] = Counter()
        self._allowances = BoundedDict[str, tuple[float, float]](ADDRESSES_MAX, "http_addresses")
        """Tokens of an address, and the time of the last update."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("http_connections", limits.total, self.connections.total),
            self._allowances,
        )

    def enter(self, address: str) -> bool:
        """Count a connection; False if there is no room."""
        full = self.connections.total() >= self.limits.total
        if full or self.connections[address] >= self.limits.per_address:
            return False
        self.connections[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Release a connection."""
        self.connections[address] -= 1
        if not self.connections[address]:
            del self.connections[address]

    def may_ask(self, address: str, now: float) -> bool:
        """Count a request; False if its address exceeds the rate."""
        rate = self.limits.requests_per_second
        left, at = self._allowances.get(address, (0.0, float("-inf")))
        left = min(2 * rate, left + (now - at) * rate)
        self._allowances.set_newest(address, (max(0.0, left - 1), now))
        return left >= 1
