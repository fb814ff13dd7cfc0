"""Events, effects and limits of a transfer: closed unions of frozen values."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.core.faults import Fault
from protocol.core.types import PeerId


class Refusal(StrEnum):
    """Reason why a request ended before its last chunk."""

    BROKEN = "broken"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class ChunkVerified:
    """A chunk arrived for ``request``, matches its digest and is stored."""

    request: int
    shard: int
    chunk: int


@dataclass(frozen=True, slots=True)
class ChunkCorrupt:
    """A chunk arrived for ``request`` and does not match its digest; the request is over."""

    request: int
    chunk: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """``request`` ended before its last chunk.

    ``held``: bit i is set if the refusing peer holds chunk i of that shard.
    """

    request: int
    refusal: Refusal
    held: int = 0


@dataclass(frozen=True, slots=True)
class CandidatesChanged:
    """New candidates per stripe, and new helpers, after a change of the roster.

    ``untrusted``: the untrusted sources.
    """

    candidates: tuple[tuple[PeerId, ...], ...]
    helpers: tuple[PeerId, ...] = ()
    untrusted: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; also the first event."""


Event = ChunkVerified | ChunkCorrupt | RequestFailed | CandidatesChanged | Tick


@dataclass(frozen=True, slots=True)
class Ask:
    """Request ``count`` chunks from ``peer``; ``wait``: also chunks that it is still receiving.

    ``stripe`` is the one that the request counts for; the shard may belong to another one.
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
    """Stop ``request``; chunks of it that still arrive are accepted."""

    request: int


@dataclass(frozen=True, slots=True)
class BadSource:
    """``peer`` sent bytes that do not match the index."""

    peer: PeerId
    fault: Fault


@dataclass(frozen=True, slots=True)
class SourceLate:
    """A request to ``peer`` stalled, and it has not delivered anything in this transfer."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class TransferDone:
    """All chunks are present; the last effect."""


Effect = Ask | CancelRequest | BadSource | SourceLate | TransferDone


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Constants of one transfer; all are guesses until a link measurement corrects them.

    Two requests per stripe hide one round trip. Four stripes then make the eight streams that fill
    a wide-area link (one libp2p stream carries 42 MB/s at 150 ms, four 116 MB/s).
    """

    requests_per_peer: int = 8
    requests_per_stripe: int = 2
    request_bytes: int = 8 << 20
    late_seconds_initial: float = 15.0
    late_seconds_untrusted: float = 6.0
    late_seconds_min: float = 2.0
    late_seconds_max: float = 60.0
    patience_seconds: float = 3.0
    retry_seconds: float = 0.1
    ahead_seconds: float = 1.0
    pause_seconds: float = 2.0
    pause_seconds_max: float = 60.0
