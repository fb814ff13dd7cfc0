"""Transport choice per peer: libp2p stream or HTTP, by measured throughput.

HTTP avoids libp2p's encryption and multiplexing and is mostly faster, but not on every machine and
link; the measured rate decides. After an HTTP failure the node uses streams for some time.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId

PAUSE_SECONDS_MIN = 15.0
PAUSE_SECONDS_MAX = 3600.0
"""Guesses: retry a busy HTTP service soon; one behind NAT costs an attempt per hour."""

OTHER_WAY_REQUESTS = 32
"""One in so many requests uses the slower transport, to update its rate; a guess."""

RATE_DECAY = 0.9
"""Per request. The best recent rate counts: a request may have waited for bytes still being
downloaded, which says nothing about the transport."""

PEERS_MAX = 4096
"""Remembered peers; the oldest is evicted first."""


class BlobTransport(StrEnum):
    """Transport of a blob transfer."""

    HTTP = "http"
    STREAM = "stream"


@dataclass(slots=True)
class _Seen:
    rates: dict[BlobTransport, float] = field(default_factory=dict)
    requests: int = 0
    failures: int = 0
    retry_at: float = 0.0


class TransportChooser:
    """Measured rates of peers that offer HTTP; ``now`` is a monotonic time in seconds."""

    def __init__(self) -> None:
        self._peers = BoundedDict[PeerId, _Seen](PEERS_MAX, "http_peers")
        self.tables = (self._peers,)

    def choose(self, peer: PeerId, now: float) -> BlobTransport:
        """Choose the transport of the next request to a peer that offers both."""
        seen = self._seen(peer)
        if now < seen.retry_at:
            return BlobTransport.STREAM
        seen.requests += 1
        http, stream = (seen.rates.get(way) for way in (BlobTransport.HTTP, BlobTransport.STREAM))
        better = (
            BlobTransport.HTTP
            if http is None or stream is None or http >= stream
            else BlobTransport.STREAM
        )
        if http is not None and seen.requests % OTHER_WAY_REQUESTS == 0:
            return BlobTransport.STREAM if better is BlobTransport.HTTP else BlobTransport.HTTP
        return better

    def delivered(self, peer: PeerId, way: BlobTransport, count: int, seconds: float) -> None:
        """Record that ``count`` bytes took ``seconds`` of waiting."""
        seen = self._seen(peer)
        rate = count / max(seconds, 1e-6)
        seen.rates[way] = max(rate, RATE_DECAY * seen.rates.get(way, 0.0))
        if way is BlobTransport.HTTP:
            seen.failures = 0

    def failed(self, peer: PeerId, now: float) -> None:
        """Record an HTTP failure; use streams until the backoff ends."""
        seen = self._seen(peer)
        if now < seen.retry_at:  # concurrent failures count once
            return
        pause_seconds = min(PAUSE_SECONDS_MIN * 2**seen.failures, PAUSE_SECONDS_MAX)
        seen.failures = min(seen.failures + 1, 16)
        seen.retry_at = now + pause_seconds

    def _seen(self, peer: PeerId) -> _Seen:
        return self._peers.setdefault(peer, _Seen())
