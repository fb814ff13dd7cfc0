"""What a transfer has asked for, stripe by stripe."""

from dataclasses import dataclass, field

from protocol.shardcast.events import Ask
from protocol.shardcast.timer import Timer
from protocol.types import PeerId


@dataclass(slots=True)
class Request:
    """One that has not ended."""

    ask: Ask
    mask: int  # bit i: chunk i of the shard is awaited
    touched: float  # when it was asked or last delivered
    unlisted: bool = False  # its peer was a candidate when it was asked, and is not one now


@dataclass(slots=True)
class Hold:
    """A candidate of a stripe that has not got the bytes yet."""

    since: float
    retry_at: float


@dataclass(slots=True)
class Lane:
    """A stripe with its candidates, or what is asked of anyone, who has none."""

    candidates: tuple[PeerId, ...]
    shards: list[int] = field(default_factory=list)  # with chunks to ask for, ascending
    in_flight: int = 0
    late: int = 0  # requests given up since the last chunk
    gap: Timer = field(default_factory=Timer)  # between chunks of a request
    holds: dict[PeerId, Hold] = field(default_factory=dict)
