"""How long the directory's calls may keep our core busy: those of a peer, and of all strangers.

hivemind answers each call as soon as it comes, and some are answered from all that a key holds. Who
has called for more than its share is refused, until what it took is earned: a lookup asks others.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from node.network.resources.read_limiter import ACCOUNTS_MAX, ReadRateLimiter, ReadRates
from node.network.streams.deadline import loop_time
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import Trust

T = TypeVar("T")

BYTE_SECONDS = 0.4e-6
"""Of a core for a byte: the unit in which calls are accounted for. A record that is stored has 600
and takes 150 us, most of it for its signature."""

CALL_BYTES = 256
"""Charged for each call, so many microseconds are gone before it can be refused: a tenth of a
millisecond."""

RATES = ReadRates(
    trusted=256 << 10, stranger=64 << 10, strangers=256 << 10, byte_seconds=BYTE_SECONDS
)
"""A tenth of a core for all strangers together, and as much for each peer with standing. Guesses: a
lookup takes 3 ms of each node that it asks, where a key is full."""

REFUSED_MAX = 100
"""One after another, and whoever goes on is at fault. hivemind leaves who refused it alone for a
while, so an honest peer is refused a few times an hour at most."""


class CallError(ValueError):
    """A call that is not answered; hivemind tells its caller so."""


class DhtCallLimiter:
    """The accounts of all callers; ``timer`` is in seconds.

    ``trust`` tells who has standing, and ``blame`` hears of callers that are at fault.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.trust = Trust()
        self.blame: Callable[[PeerId, Fault], None] = lambda _peer, _fault: None
        self._timer = timer
        self._accounts = ReadRateLimiter(RATES, self._is_proven, name="directory_callers")
        self._refused = BoundedDict[PeerId, int](ACCOUNTS_MAX, "directory_callers")
        """Of each peer since the last call that was answered; who was refused last is last."""
        self.tables = (*self._accounts.tables, self._refused)

    async def serve(
        self, peer: PeerId, request_bytes: int, answer: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what ``answer`` returns; raises ``CallError`` when ``peer`` has had its share.

        ``answer`` waits for nothing: all the time until it returns is charged.
        """
        self._accounts.came(peer, CALL_BYTES + request_bytes)
        if self._accounts.wait_seconds(peer, loop_time()):
            self._refuse(peer)
            raise CallError("too many calls")
        self._refused.pop(peer, None)
        with self.charged(peer, request_bytes):
            return await answer()

    def reject(self, peer: PeerId, reason: str) -> NoReturn:
        """Refuse a call that no honest peer makes; raises ``CallError``."""
        self.blame(peer, Fault(FaultCode.DIRECTORY_CALL))
        raise CallError(reason)

    @contextmanager
    def charged(self, peer: PeerId, paid_bytes: int = 0) -> Iterator[None]:
        """Charge ``peer`` for the time that is spent inside, less what it has been charged."""
        began = self._timer()
        try:
            yield
        finally:
            self._accounts.took(peer, self._timer() - began, paid_bytes)
            self._accounts.wait_seconds(peer, loop_time())  # it may never call again

    def _refuse(self, peer: PeerId) -> None:
        count = self._refused.get(peer, 0) + 1
        self._refused.set_newest(peer, count)
        if count > REFUSED_MAX:
            self.blame(peer, Fault(FaultCode.DIRECTORY_CALL))

    def _is_proven(self, peer: PeerId) -> bool:
        return self.trust.trusted(peer)
