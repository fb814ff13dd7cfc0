"""What a transfer knows of one that it asks: how busy it is, how reliable, and what it holds.

How long to wait for what usually takes a while: mean and deviation, RFC 6298 section 2.

What a transfer has asked for, stripe by stripe.
"""

from dataclasses import dataclass, field

from protocol.core.types import PeerId
from protocol.shardcast.events import Ask, TransferLimits


@dataclass(slots=True)
class SourceState:
    """One peer; times are of the transfer's clock."""

    in_flight: int = 0
    failures: int = 0
    paused_until: float = float("-inf")
    blamed: bool = False
    delivered: bool = False
    holdings: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of shards that are missing here: which chunks it said that it holds, and until when it is not
    asked for others."""

    def pause(self, now: float, limits: TransferLimits) -> None:
        """Leave it alone for a while, for twice as long as the last time."""
        if now < self.paused_until:  # several requests broke together: that is one failure
            return
        pause = limits.pause_seconds * 2 ** min(self.failures, 16)
        self.paused_until = now + min(pause, limits.pause_seconds_max)
        self.failures += 1

    def note(self, shard: int, mask: int, until: float) -> None:
        """Note what it holds of a shard: bit i for chunk i."""
        self.holdings[shard] = mask, until

    def held(self, shard: int, now: float) -> int:
        """Return which chunks it may have; all of them when it has not said lately."""
        mask, until = self.holdings.get(shard, (-1, float("inf")))
        return -1 if now >= until else mask


@dataclass(slots=True)
class RttEstimator:
    """Follows a duration, and says from when on it is unusual."""

    _mean_seconds: float | None = None
    _deviation_seconds: float = 0.0

    def measure(self, seconds: float) -> None:
        """Note that it took so long this time."""
        if self._mean_seconds is None:
            self._mean_seconds, self._deviation_seconds = seconds, seconds / 2
            return
        deviation = abs(seconds - self._mean_seconds)
        self._deviation_seconds += (deviation - self._deviation_seconds) / 4
        self._mean_seconds += (seconds - self._mean_seconds) / 8

    @property
    def late_seconds(self) -> float | None:
        """From when on it is late; None before the first measurement."""
        if self._mean_seconds is None:
            return None
        return self._mean_seconds + 4 * self._deviation_seconds


@dataclass(slots=True)
class ChunkRequest:
    """One that has not ended."""

    ask: Ask
    mask: int  # bit i: chunk i of the shard is awaited
    touched: float  # when it was asked or last delivered
    unlisted: bool = False  # its peer was a candidate when it was asked, and is not one now


@dataclass(slots=True)
class RetryState:
    """A candidate of a stripe that has not got the bytes yet."""

    since: float
    retry_at: float


@dataclass(slots=True)
class StripeState:
    """A stripe with its candidates, or what is asked of anyone, who has none."""

    candidates: tuple[PeerId, ...]
    shards: list[int] = field(default_factory=list)  # with chunks to ask for, ascending
    in_flight: int = 0
    late: int = 0  # requests given up since the last chunk
    gap: RttEstimator = field(default_factory=RttEstimator)  # between chunks of a request
    holds: dict[PeerId, RetryState] = field(default_factory=dict)
