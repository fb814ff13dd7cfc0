"""What a transfer knows of one that it asks: how busy it is, how reliable, and what it holds."""

from dataclasses import dataclass, field

from protocol.shardcast.events import TransferLimits


@dataclass(slots=True)
class Source:
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
