"""State of a transfer: its sources, its requests per stripe, and its timers."""

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
    """By missing shard: the chunks it listed as held, and until when that list is valid."""

    def pause(self, now: float, limits: TransferLimits) -> None:
        """Skip it for a while, twice as long as the last time."""
        if now < self.paused_until:  # several requests that broke together are one failure
            return
        pause = limits.pause_seconds * 2 ** min(self.failures, 16)
        self.paused_until = now + min(pause, limits.pause_seconds_max)
        self.failures += 1

    def note(self, shard: int, mask: int, until: float) -> None:
        """Record the chunks that it holds of a shard: bit i for chunk i."""
        self.holdings[shard] = mask, until

    def held(self, shard: int, now: float) -> int:
        """Return the chunks that it may have; all of them without a recent list."""
        mask, until = self.holdings.get(shard, (-1, float("inf")))
        return -1 if now >= until else mask


@dataclass(slots=True)
class RttEstimator:
    """Estimator of a duration and its timeout: mean and deviation, RFC 6298 section 2."""

    _mean_seconds: float | None = None
    _deviation_seconds: float = 0.0

    def measure(self, seconds: float) -> None:
        """Add a measurement."""
        if self._mean_seconds is None:
            self._mean_seconds, self._deviation_seconds = seconds, seconds / 2
            return
        deviation = abs(seconds - self._mean_seconds)
        self._deviation_seconds += (deviation - self._deviation_seconds) / 4
        self._mean_seconds += (seconds - self._mean_seconds) / 8

    @property
    def late_seconds(self) -> float | None:
        """Timeout; None before the first measurement."""
        if self._mean_seconds is None:
            return None
        return self._mean_seconds + 4 * self._deviation_seconds


@dataclass(slots=True)
class ChunkRequest:
    """A request in flight."""

    ask: Ask
    mask: int  # bit i: chunk i of the shard is awaited
    touched: float  # time of the request or its last chunk
    unlisted: bool = False  # its peer is no candidate any more


@dataclass(slots=True)
class RetryState:
    """Retry state of a candidate that does not have the bytes of a stripe yet."""

    since: float
    retry_at: float


@dataclass(slots=True)
class StripeState:
    """A stripe with its candidates; the one for requests to any peer has none."""

    candidates: tuple[PeerId, ...]
    shards: list[int] = field(default_factory=list)  # with chunks to request, ascending
    in_flight: int = 0
    late: int = 0  # requests given up since the last chunk
    gap: RttEstimator = field(default_factory=RttEstimator)  # between chunks of a request
    holds: dict[PeerId, RetryState] = field(default_factory=dict)
