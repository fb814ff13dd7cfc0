"""How often somebody may open a stream of one protocol: a token bucket for each block of addresses.

``node.network.resources.stream_slots`` bounds what is served at once. A question that is answered
quickly leaves its place quickly, and whoever asks it again at once has us do nothing else.

A machine without I/O: the clock is an argument.
"""

import math
from collections.abc import Hashable

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId
from roles.ports.transport import Trust

PROVEN_FACTOR = 8
"""Whoever has standing opens so many times as often; a guess."""

BUCKETS_MAX = 4096
"""Blocks that are remembered: some 200 B each. A full bucket is as good as none."""


class TokenBuckets:
    """The buckets of one protocol; ``burst`` streams at once, then ``per_second``."""

    def __init__(self, per_second: float, burst: int, trust: Trust) -> None:
        self._per_second = per_second
        self._burst = burst
        self._trust = trust
        self._empty_at = BoundedDict[Hashable, float](BUCKETS_MAX, "stream_rates")
        """From when on a bucket would be empty had it filled without a bound; longest unused
        first."""
        self.tables = (self._empty_at,)

    def __len__(self) -> int:
        """Return how many buckets are kept."""
        return len(self._empty_at)

    def take(self, peer: PeerId, now: float) -> bool:
        """Take a token for a stream of ``peer``; False when there is none."""
        trusted = self._trust.trusted(peer)
        per_second = self._per_second * (PROVEN_FACTOR if trusted else 1)
        # One with standing does not share with its neighbours, which may be anybody.
        bucket = peer if trusted else self._trust.block(peer)
        full_seconds = self._burst / self._per_second
        empty_at = max(self._empty_at.get(bucket, -math.inf), now - full_seconds)
        enough = now - empty_at >= 1 / per_second
        self._empty_at.set_newest(bucket, empty_at + (1 / per_second if enough else 0.0))
        return enough
