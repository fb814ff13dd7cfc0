"""Two-level token buckets: one per key, and one that all untrusted keys share.

Keys are free, so a limit per key alone bounds nothing. A trusted key has only its own bucket. An
untrusted key also draws on the shared one, and its own rate is an equal share of the shared rate
among the active untrusted keys.

Callers choose the unit of cost and the reaction. ``take`` refuses a cost before it arises.
``charge`` counts one that has arisen, and ``wait_seconds`` is the time until it is earned back.

Without I/O: the clock is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from protocol.core.containers import BoundedDict, Key

KEYS_MAX = 4096
"""Keys of one limiter, 8 times the connection limit. The one used longest ago is evicted first: it
regains its burst, but the shared bucket keeps its cost."""

ACTIVE_SECONDS = 10.0
"""Duration of a key's active state; a guess above the delays of hundreds of untrusted peers."""

RECOUNT_SECONDS = 1.0
"""Interval at which idle keys are forgotten and active ones are counted."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Sustained cost per second, and cost allowed at once after a rest."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one limiter."""

    untrusted: Rate
    """Maximum of an untrusted key."""
    trusted: Rate | None = None
    """Of a trusted key; None: as ``untrusted``."""
    shared: Rate | None = None
    """Of all untrusted keys together; None: no limit."""
    share_min: float = 0.0
    """Minimum rate of an untrusted key, however many are active."""
    burst_min: float = 0.0
    """Burst of an untrusted key while the shared bucket is empty."""


class _Bucket:
    """Leaky bucket: cost charged and not yet earned back."""

    __slots__ = ("active_until", "debt", "per_second", "rate", "settled_at", "shared")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.per_second = rate.per_second
        """Present rate: that of ``rate``, or a share of the shared one."""
        self.settled_at = now
        self.debt = 0.0
        self.active_until = 0.0
        self.shared: _Bucket | None = None
        """Bucket that bears every cost as well."""

    @property
    def is_over(self) -> bool:
        return self.debt > self.rate.burst

    def add(self, cost: float) -> None:
        self.debt += cost
        if self.shared is not None:
            self.shared.debt += cost

    def settle(self, now: float) -> None:
        """Earn back debt for the time since the last call; refunds are no credit."""
        self.debt = max(0.0, self.debt - (now - self.settled_at) * self.per_second)
        self.settled_at = now


class RateLimiter(Generic[Key]):
    """Buckets of all keys of one limit, in a table called ``name``.

    ``trusted`` returns whether a key is trusted.
    """

    def __init__(
        self, name: str, rates: Rates, trusted: Callable[[Key], bool] = lambda _key: False
    ) -> None:
        self._rates = rates
        self._trusted = trusted
        self._buckets = BoundedDict[Key, _Bucket](KEYS_MAX, name)
        self.tables = (self._buckets,)
        self._shared = None if rates.shared is None else _Bucket(rates.shared, 0.0)
        self._active = 0
        """Number of active untrusted keys, which share the rate."""
        self._recounted_at = 0.0

    def __len__(self) -> int:
        """Return the number of known keys."""
        return len(self._buckets)

    def take(self, key: Key, cost: float, now: float) -> bool:
        """Charge a cost for which the key's bucket or the shared one has room; False if neither.

        What a key takes above its share is no debt of its own.
        """
        bucket = self._settle(key, now, active=True)
        shared = bucket.shared
        if bucket.debt + cost <= bucket.rate.burst:
            bucket.add(cost)
        elif shared is None or shared.debt + cost > shared.rate.burst:
            return False
        else:
            shared.add(cost)
        return True

    def charge(self, key: Key, cost: float, now: float) -> bool:
        """Charge a cost that has arisen; False if ``wait_seconds`` is 0 in any case."""
        bucket = self._settle(key, now)
        bucket.add(cost)
        shared = bucket.shared
        return bucket.debt > self._rates.burst_min or (shared is not None and shared.is_over)

    def adjust(self, key: Key, cost: float) -> None:
        """Add to the last charge of a key, or refund a part if ``cost`` is negative."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.add(cost)

    def wait_seconds(self, key: Key, now: float) -> float:
        """Return the time until a key's debt is at most its burst."""
        bucket = self._settle(key, now, active=True)
        burst = bucket.rate.burst
        if bucket.shared is not None and bucket.shared.is_over:
            burst = self._rates.burst_min  # otherwise each new key would add a burst
        return max(0.0, bucket.debt - burst) / bucket.per_second

    def _settle(self, key: Key, now: float, *, active: bool = False) -> _Bucket:
        """Return the bucket of a key, with its debt and rate at present."""
        if now >= self._recounted_at + RECOUNT_SECONDS:
            self._recount(now)
        rates = self._rates
        bucket = self._buckets.get(key)
        is_new = bucket is None
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(rates.untrusted, now)
        else:
            self._buckets.move_to_end(key)
        if active or is_new:  # reputation is slow to look up, and ``charge`` is in a hot path
            if self._trusted(key):
                bucket.rate, bucket.shared = rates.trusted or rates.untrusted, None
            else:
                bucket.rate, bucket.shared = rates.untrusted, self._shared
        bucket.per_second = bucket.rate.per_second
        if bucket.shared is not None:
            bucket.shared.settle(now)
            if active:
                self._active += bucket.active_until <= now
                bucket.active_until = now + ACTIVE_SECONDS
            share = bucket.shared.per_second / max(1, self._active)
            bucket.per_second = max(rates.share_min, min(bucket.per_second, share))
        bucket.settle(now)
        return bucket

    def _recount(self, now: float) -> None:
        self._recounted_at = now
        for bucket in self._buckets.values():
            bucket.settle(now)
        self._buckets.retain(lambda _key, one: one.debt > 0 or one.active_until > now)
        self._active = sum(one.active_until > now for one in self._buckets.values())
