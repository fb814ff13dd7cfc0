"""Traffic statistics of one direction: bytes by kind and transport, and recent rates by peer.

``now`` is a monotonic time in seconds.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from protocol.core.containers import BoundedDict

WINDOW_SECONDS = 10
"""Averaging window of a rate; a guess: 10 Mbit/s transfer three chunks of 4 MiB in it."""

PARTIES_MAX = 64
"""Peers with own statistics; a guess, a few times the peers of one transfer."""


class SlidingRate:
    """Bytes per second over the last ``WINDOW_SECONDS``, or since the first ones.

    Counts per whole second, so its size does not depend on the number of calls.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_SECONDS)

    def note(self, count: int, now: float) -> None:
        """Add bytes transferred now."""
        if self._first_at is None:
            self._first_at = now
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))

    def at(self, now: float) -> float:
        """Return the rate; a duration below one second counts as one second."""
        if self._first_at is None:
            return 0.0
        oldest = int(now) - WINDOW_SECONDS + 1
        total_bytes = sum(count for second, count in self._seconds if second >= oldest)
        return total_bytes / max(1.0, now - max(self._first_at, oldest))


@dataclass(slots=True)
class PeerTraffic:
    """Traffic with one peer."""

    ways: Counter[BlobTransport] = field(default_factory=Counter)
    rate: SlidingRate = field(default_factory=SlidingRate)

    def note(self, way: BlobTransport, count: int, now: float) -> None:
        """Add bytes transferred now."""
        self.ways[way] += count
        self.rate.note(count, now)


class TrafficStats:
    """Bytes in one direction since the start.

    ``parties`` are the recent peers, by peer id or, where that is unknown, by address. LRU: the
    most recent is last, the oldest is evicted first.
    """

    def __init__(self) -> None:
        self._moved: Counter[tuple[BlobKind, BlobTransport]] = Counter()
        self.rate = SlidingRate()
        self.parties = BoundedDict[str, PeerTraffic](PARTIES_MAX)

    def note(self, name: str, kind: BlobKind, way: BlobTransport, count: int, now: float) -> None:
        """Add bytes transferred now."""
        self._moved[kind, way] += count
        self.rate.note(count, now)
        party = self.parties.get(name) or PeerTraffic()
        party.note(way, count, now)
        self.parties.set_newest(name, party)

    def __getitem__(self, kind: BlobKind) -> int:
        """Return the bytes of a kind."""
        return sum(self._moved[kind, way] for way in BlobTransport)

    def by(self, kind: BlobKind, way: BlobTransport) -> int:
        """Return the bytes of a kind over one transport."""
        return self._moved[kind, way]

    def total(self) -> int:
        """Return all bytes."""
        return self._moved.total()
