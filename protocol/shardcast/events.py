"""What a transfer is told and what it answers: closed unions of frozen values; its constants."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.core.faults import Fault
from protocol.core.types import PeerId


class Refusal(StrEnum):
    """Why a request ended before its last chunk."""

    BROKEN = "broken"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class ChunkVerified:
    """A chunk came with ``request``, fits its digest and is stored."""

    request: int
    shard: int
    chunk: int


@dataclass(frozen=True, slots=True)
class ChunkCorrupt:
    """A chunk came with ``request`` and does not fit its digest; the request is over."""

    request: int
    chunk: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """``request`` is over before its last chunk.

    ``held``: bit i is set where whoever refused holds chunk i of that shard.
    """

    request: int
    refusal: Refusal
    held: int = 0


@dataclass(frozen=True, slots=True)
class CandidatesChanged:
    """New candidate lists, one per stripe, and helpers, because the roster changed.

    ``strangers``: which sources have no standing.
    """

    candidates: tuple[tuple[PeerId, ...], ...]
    helpers: tuple[PeerId, ...] = ()
    strangers: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; also the first event."""


Event = ChunkVerified | ChunkCorrupt | RequestFailed | CandidatesChanged | Tick


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask ``peer`` for ``count`` chunks; ``wait``: also for those that are on their way to it.

    ``stripe`` is the one in whose turn they are asked for, which may help with another one's shard.
    """

    request: int
    stripe: int
    peer: PeerId
    shard: int
    first: int
    count: int
    wait: bool


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Stop ``request``; chunks of it that still come in are welcome."""

    request: int


@dataclass(frozen=True, slots=True)
class BadSource:
    """``peer`` sent bytes that do not fit the index."""

    peer: PeerId
    fault: Fault


@dataclass(frozen=True, slots=True)
class SourceLate:
    """``peer`` has let a request stand still and has not delivered anything in this transfer."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class TransferDone:
    """Every chunk is here; the last effect of all."""


Effect = Ask | CancelRequest | BadSource | SourceLate | TransferDone


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Constants of one transfer; all are guesses until a link measurement corrects them.

    Two requests per stripe hide one round trip; four stripes then make the eight streams that fill
    a wide-area link (one libp2p stream carries 42 MB/s at 150 ms, four 116 MB/s).
    """

    requests_per_peer: int = 8
    requests_per_stripe: int = 2
    request_bytes: int = 8 << 20
    late_seconds_initial: float = 15.0
    late_seconds_stranger: float = 6.0
    late_seconds_min: float = 2.0
    late_seconds_max: float = 60.0
    patience_seconds: float = 3.0
    retry_seconds: float = 0.1
    ahead_seconds: float = 1.0
    pause_seconds: float = 2.0
    pause_seconds_max: float = 60.0
