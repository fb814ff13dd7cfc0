"""How many streams strangers open, of all protocols together: who opens too many is at fault.

A stream costs time before anything is known of it but its peer, whether it is served or not. So no
rate of what is served bounds that: only to be rid of whoever opens them does. While strangers open
more than a node has time for, those are at fault that open more than their part, and no others.

A machine without I/O: the clock is an argument.
"""

import math
from collections.abc import Callable

from protocol.core.containers import BoundedDict, DecayingSum
from protocol.core.types import PeerId

STRANGERS_PER_SECOND = 64.0
"""What all peers without standing may open together: a twentieth of a core, as they have for
gossip, at 0.2 to 0.35 ms each and half as much again of p2pd (``benchmarks/opening.py``)."""

EACH_PER_SECOND = 2.0
"""What a peer may open in any case, so that one that asks whenever we are busy is not at fault for
being among many. Of eight hundred newcomers that wait for weights none came to half of it."""

HALF_LIFE_SECONDS = 10.0
"""Of what is counted. So a peer may open 29 at once: the sixteen of two downloads, and more."""

_WINDOW_SECONDS = HALF_LIFE_SECONDS / math.log(2)
"""What is counted of a steady rate comes to what it brings in so long."""

_RECOUNT_SECONDS = 1.0

OPENERS_MAX = 4096
"""Peers that are counted; the one that came first is forgotten. Eight times as many as connect."""


class OpenRateLimiter:
    """Counts what each peer without standing opens; what was worth its opening does not count."""

    def __init__(self, trusted: Callable[[PeerId], bool]) -> None:
        self._proven = trusted
        self._all = DecayingSum()
        self._each = BoundedDict[PeerId, DecayingSum](OPENERS_MAX, "openers")
        self.tables = (self._each,)
        self._recounted_at = 0.0

    def __len__(self) -> int:
        """Return of how many peers something is counted."""
        return len(self._each)

    def opened(self, peer: PeerId, now: float) -> bool:
        """Count a stream; return whether its peer is at fault for it."""
        if self._proven(peer):
            return False
        if now >= self._recounted_at + _RECOUNT_SECONDS:
            self._forget(now)
        self._all.add(1, now, HALF_LIFE_SECONDS)
        each = self._each.setdefault(peer, DecayingSum())
        each.add(1, now, HALF_LIFE_SECONDS)
        if self._all.amount <= STRANGERS_PER_SECOND * _WINDOW_SECONDS:
            return False
        part = max(EACH_PER_SECOND, STRANGERS_PER_SECOND / len(self._each))
        return each.amount > part * _WINDOW_SECONDS

    def worth(self, peer: PeerId, now: float) -> None:
        """Count one stream less: it was served with more than what opening it costs."""
        each = self._each.get(peer)
        if each is not None and each.value_at(now, HALF_LIFE_SECONDS) >= 1:
            each.add(-1, now, HALF_LIFE_SECONDS)
            self._all.add(-1, now, HALF_LIFE_SECONDS)

    def _forget(self, now: float) -> None:
        """Forget whose streams have faded away."""
        self._recounted_at = now
        self._each.retain(lambda _peer, each: each.value_at(now, HALF_LIFE_SECONDS) >= 0.5)
