"""Token buckets: rate of new streams of one protocol, per address block.

``node.network.resources.stream_slots`` limits concurrent streams. A short exchange frees its slot
at once, so without a rate limit its peer could repeat it without pause.

Without I/O: the clock is an argument.
"""

import math
from collections.abc import Hashable

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId
from roles.ports.transport import Trust

TRUSTED_FACTOR = 8
"""Rate of a trusted peer, relative to that of an address block; a guess."""

BUCKETS_MAX = 4096
"""Remembered address blocks, about 200 B each; losing a full bucket changes nothing."""


class TokenBuckets:
    """Token buckets of one protocol: ``burst`` streams at once, then ``per_second``."""

    def __init__(self, per_second: float, burst: int, trust: Trust) -> None:
        self._per_second = per_second
        self._burst = burst
        self._trust = trust
        self._empty_at = BoundedDict[Hashable, float](BUCKETS_MAX, "stream_rates")
        """Virtual time at which each bucket, if unbounded, was empty; least recently used first."""
        self.tables = (self._empty_at,)

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._empty_at)

    def take(self, peer: PeerId, now: float) -> bool:
        """Take a token for a stream of ``peer``; False when the bucket is empty."""
        trusted = self._trust.trusted(peer)
        per_second = self._per_second * (TRUSTED_FACTOR if trusted else 1)
        # A trusted peer does not share with its address block, which untrusted peers can use.
        bucket = peer if trusted else self._trust.block(peer)
        full_seconds = self._burst / self._per_second
        empty_at = max(self._empty_at.get(bucket, -math.inf), now - full_seconds)
        enough = now - empty_at >= 1 / per_second
        self._empty_at.set_newest(bucket, empty_at + (1 / per_second if enough else 0.0))
        return enough
