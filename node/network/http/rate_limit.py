"""HTTP rate limiter: connections in total and per address, and request rate per address.

Separate from ``server_connection``, whose import of uvicorn (3.3 MB) simulations do not need.
"""

from collections import Counter
from dataclasses import dataclass

from node.network.resources.rate_limiter import Rate, RateLimiter, Rates
from protocol.core.containers import SizeGauge, Table


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
        rate = limits.requests_per_second
        self._requests = RateLimiter[str]("http_addresses", Rates(untrusted=Rate(rate, 2 * rate)))
        self.tables: tuple[Table, ...] = (
            SizeGauge("http_connections", limits.total, self.connections.total),
            *self._requests.tables,
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
        return self._requests.take(address, 1, now)
