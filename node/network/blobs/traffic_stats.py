"""What moved in one direction: bytes by kind and way, and to or from whom lately.

``now`` is of a monotonic clock, in seconds.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from protocol.core.containers import BoundedDict

WINDOW_SECONDS = 10
"""Over which a rate is taken; a guess: a line of 10 Mbit/s brings three chunks of 4 MiB in it."""

PARTIES_MAX = 64
"""Known one by one; a guess, a few times as many as one feeds or is fed by."""


class SlidingRate:
    """Bytes a second over the last ``WINDOW_SECONDS``, or since the first ones came.

    Counted by whole seconds, so that it holds no more than these however often bytes come.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_SECONDS)

    def note(self, count: int, now: float) -> None:
        """Add bytes that moved now."""
        if self._first_at is None:
            self._first_at = now
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))

    def at(self, now: float) -> float:
        """Return the rate; what moved within less than a second counts as if it took one."""
        if self._first_at is None:
            return 0.0
        oldest = int(now) - WINDOW_SECONDS + 1
        total_bytes = sum(count for second, count in self._seconds if second >= oldest)
        return total_bytes / max(1.0, now - max(self._first_at, oldest))


@dataclass(slots=True)
class PeerTraffic:
    """What moved to or from one other."""

    ways: Counter[BlobTransport] = field(default_factory=Counter)
    rate: SlidingRate = field(default_factory=SlidingRate)

    def note(self, way: BlobTransport, count: int, now: float) -> None:
        """Add bytes that moved now."""
        self.ways[way] += count
        self.rate.note(count, now)


class TrafficStats:
    """Bytes in one direction since the start.

    ``parties`` are the last ones, by peer id or, where that is not known, by address; who moved
    last stands last, and who moved nothing for longest is forgotten first.
    """

    def __init__(self) -> None:
        self._moved: Counter[tuple[BlobKind, BlobTransport]] = Counter()
        self.rate = SlidingRate()
        self.parties = BoundedDict[str, PeerTraffic](PARTIES_MAX)

    def note(self, name: str, kind: BlobKind, way: BlobTransport, count: int, now: float) -> None:
        """Add bytes that moved now."""
        self._moved[kind, way] += count
        self.rate.note(count, now)
        party = self.parties.get(name) or PeerTraffic()
        party.note(way, count, now)
        self.parties.set_newest(name, party)

    def __getitem__(self, kind: BlobKind) -> int:
        """Return the bytes of a kind."""
        return sum(self._moved[kind, way] for way in BlobTransport)

    def by(self, kind: BlobKind, way: BlobTransport) -> int:
        """Return the bytes of a kind that went one way."""
        return self._moved[kind, way]

    def total(self) -> int:
        """Return all bytes."""
        return self._moved.total()
