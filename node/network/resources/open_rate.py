"""Open rate limiter: rate of new streams of untrusted peers, over all protocols.

Accepting a stream costs time even if it is not served, so only a ban of the opener bounds that
cost. While untrusted peers together exceed the node's limit, those that exceed their share are at
fault. Streams that transferred enough data are refunded.

Without I/O: the clock is an argument.
"""

import math
from collections.abc import Callable

from protocol.core.containers import BoundedDict, DecayingSum
from protocol.core.types import PeerId

UNTRUSTED_PER_SECOND = 64.0
"""Limit of all untrusted peers: 1/20 of a core, as for gossip. A stream costs 0.2 to 0.35 ms, and
half as much again in p2pd (``benchmarks/opening.py``)."""

EACH_PER_SECOND = 2.0
"""Minimum share of a peer, so that a retrying peer is not at fault for being one of many. None of
800 untrusted peers that waited for weights reached half of it."""

HALF_LIFE_SECONDS = 10.0
"""Half-life of the counters; allows bursts of 29 streams: the 16 of two downloads, and more."""

_WINDOW_SECONDS = HALF_LIFE_SECONDS / math.log(2)
"""Value of a counter at a steady rate of 1 per second."""

_RECOUNT_SECONDS = 1.0

OPENERS_MAX = 4096
"""Counted peers, 8 times the connection limit; the oldest is evicted first."""


class OpenRateLimiter:
    """Counts streams opened by each untrusted peer; refunds productive ones."""

    def __init__(self, trusted: Callable[[PeerId], bool]) -> None:
        self._trusted = trusted
        self._all = DecayingSum()
        self._each = BoundedDict[PeerId, DecayingSum](OPENERS_MAX, "open_rate_peers")
        self.tables = (self._each,)
        self._recounted_at = 0.0

    def __len__(self) -> int:
        """Return the number of counted peers."""
        return len(self._each)

    def opened(self, peer: PeerId, now: float) -> bool:
        """Count a stream; return whether its peer is at fault."""
        if self._trusted(peer):
            return False
        if now >= self._recounted_at + _RECOUNT_SECONDS:
            self._forget(now)
        self._all.add(1, now, HALF_LIFE_SECONDS)
        each = self._each.setdefault(peer, DecayingSum())
        each.add(1, now, HALF_LIFE_SECONDS)
        if self._all.amount <= UNTRUSTED_PER_SECOND * _WINDOW_SECONDS:
            return False
        part = max(EACH_PER_SECOND, UNTRUSTED_PER_SECOND / len(self._each))
        return each.amount > part * _WINDOW_SECONDS

    def worth(self, peer: PeerId, now: float) -> None:
        """Refund one stream: its transfer outweighed the cost of opening it."""
        each = self._each.get(peer)
        if each is not None and each.value_at(now, HALF_LIFE_SECONDS) >= 1:
            each.add(-1, now, HALF_LIFE_SECONDS)
            self._all.add(-1, now, HALF_LIFE_SECONDS)

    def _forget(self, now: float) -> None:
        self._recounted_at = now
        self._each.retain(lambda _peer, each: each.value_at(now, HALF_LIFE_SECONDS) >= 0.5)
