"""DHT call limiter: CPU time of directory calls, per peer and for all untrusted peers.

hivemind serves each call at once, and some replies contain all records of a key. A caller over its
budget is refused until it has earned the debt; a refused lookup continues at other nodes.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from node.network.resources.rate_limiter import KEYS_MAX, Rate, RateLimiter, Rates
from node.network.streams.deadline import loop_time
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import Trust

T = TypeVar("T")

BYTE_SECONDS = 0.4e-6
"""CPU seconds per byte, the unit of the accounts. Storing a record of 600 bytes takes 150 us,
mostly for its signature."""

CALL_BYTES = 256
"""Charged per call: about 0.1 ms passes before a call can be refused."""

RATES = Rates(
    trusted=Rate(256 << 10, burst=128 << 10),
    untrusted=Rate(64 << 10, burst=128 << 10),
    shared=Rate(256 << 10, burst=256 << 10),
    burst_min=8 << 10,
)
"""A tenth of a core for all untrusted peers, and for each trusted one. Guesses: a lookup of a full
key takes 3 ms on each node."""

REFUSED_MAX = 100
"""Consecutive refused calls before the caller is at fault. An honest peer is refused a few times
per hour at most, because hivemind backs off from nodes that refuse."""


class CallError(ValueError):
    """A refused call; hivemind reports it to the caller."""


class DhtCallLimiter:
    """Accounts of all callers; ``timer`` is in seconds.

    ``trust`` decides which callers are trusted; ``blame`` receives the faults of callers.
    """

    def __init__(
        self,
        timer: Callable[[], float] = time.perf_counter,
        trust: Trust | None = None,
        blame: Callable[[PeerId, Fault], None] = lambda _peer, _fault: None,
    ) -> None:
        self._blame = blame
        self._timer = timer
        self._accounts = RateLimiter("directory_callers", RATES, (trust or Trust()).trusted)
        self._refused = BoundedDict[PeerId, int](KEYS_MAX, "directory_callers")
        """Consecutive refusals per peer; the most recent is last."""
        self.tables = (*self._accounts.tables, self._refused)

    async def serve(
        self, peer: PeerId, request_bytes: int, answer: Callable[[], Awaitable[T]]
    ) -> T:
        """Call ``answer`` and return its result; raises ``CallError`` when ``peer`` is over budget.

        ``answer`` must not wait for I/O: its whole duration is charged.
        """
        now = loop_time()
        self._accounts.charge(peer, CALL_BYTES + request_bytes, now)
        if self._accounts.wait_seconds(peer, now):
            self._refuse(peer)
            raise CallError("too many calls")
        self._refused.pop(peer, None)
        with self.charged(peer, request_bytes):
            return await answer()

    def reject(self, peer: PeerId, reason: str) -> NoReturn:
        """Refuse an invalid call, a fault of ``peer``; raises ``CallError``."""
        self._blame(peer, Fault(FaultCode.DIRECTORY_CALL))
        raise CallError(reason)

    @contextmanager
    def charged(self, peer: PeerId, paid_bytes: int = 0) -> Iterator[None]:
        """Charge ``peer`` for the time spent in this context, minus ``paid_bytes``."""
        began = self._timer()
        try:
            yield
        finally:
            extra_bytes = (self._timer() - began) / BYTE_SECONDS - paid_bytes
            self._accounts.charge(peer, max(0.0, extra_bytes), loop_time())

    def _refuse(self, peer: PeerId) -> None:
        count = self._refused.get(peer, 0) + 1
        self._refused.set_newest(peer, count)
        if count > REFUSED_MAX:
            self._blame(peer, Fault(FaultCode.DIRECTORY_CALL))
