"""Who is served when more streams are open than a protocol serves at once.

Keys are free. So who has standing always finds a place: it takes one from those without, who share
what is left. Among these each block of addresses counts once, however many keys it has: who has
fewer streams open than another block takes a place of that one, and where none has more the
stream goes that its peer has been slow with for longest, once it had time enough for an honest
exchange. A peer that waits for us is not slow, and keeps its place ten times as long: in a crowd a
stream that is ended before it is done has taken bytes of our line for nothing.

A machine without I/O: the clock is an argument, and the caller ends what loses its place.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from protocol.types import PeerId

SERVED_TIMES = 10
"""Times as long as a slow one a stream keeps its place that waits for us, so that others get one at
all: with ``ExchangeLimits`` it has had five chunks of a megabyte. A guess."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What a node knows of whoever opens streams to it."""

    proven: Callable[[PeerId], bool] = lambda _peer: False
    """Whether a peer has standing."""
    block: Callable[[PeerId], Hashable] = lambda peer: peer
    """What it shares with others who are probably the same: its address block, if known."""
    member: Callable[[PeerId], bool] = lambda _peer: False
    """Whether it has been admitted: its record is here."""


@dataclass(eq=False, slots=True)
class Place:
    """The place of one stream."""

    peer: PeerId
    block: Hashable
    proven: bool
    taken_at: float
    slow_since: float
    """Since when its peer has kept us waiting; infinity while it waits for us."""


class Places:
    """The places of one protocol; of them ``strangers`` at most are for peers without standing."""

    def __init__(
        self,
        per_peer: int,
        total: int,
        undisturbed_seconds: float,
        trust: Trust,
        *,
        strangers: int | None = None,
    ) -> None:
        self._per_peer = per_peer
        self._total = total
        self._strangers_max = total if strangers is None else strangers
        self._undisturbed_seconds = undisturbed_seconds
        self._trust = trust
        self._taken: dict[Place, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()
        self._strangers = 0

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[Place | None, Place | None]:
        """Return a place, if there is one, and the one that was taken away for it, if any."""
        if self._peers[peer] >= self._per_peer:
            return None, None
        place = Place(peer, self._trust.block(peer), self._trust.proven(peer), now, now)
        lost, full = None, len(self._taken) >= self._total
        if full or (not place.proven and self._strangers >= self._strangers_max):
            lost = self._least(place, now)
            if lost is None:
                return None, None
            self.leave(lost)
        self._taken[place] = None
        self._peers[peer] += 1
        self._strangers += not place.proven
        return place, lost

    def leave(self, place: Place) -> None:
        """Give a place back; idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._strangers -= not place.proven
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]

    def _least(self, newcomer: Place, now: float) -> Place | None:
        """Return the place that goes to somebody who comes when all are taken, if one does."""
        others = [place for place in self._taken if not place.proven]
        if not others:
            return None
        blocks = Counter(place.block for place in others)
        most = max(blocks.values())
        if newcomer.proven or most > blocks[newcomer.block] + 1:
            return _slowest([place for place in others if blocks[place.block] == most])
        slowest, oldest = _slowest(others), others[0]
        if now - slowest.slow_since >= self._undisturbed_seconds:
            return slowest
        waited = now - oldest.taken_at >= SERVED_TIMES * self._undisturbed_seconds
        return oldest if waited else None


def _slowest(places: Sequence[Place]) -> Place:
    """Return whose peer has been slow for longest; the youngest, which lost least, if none is."""
    slowest = min(places, key=lambda place: place.slow_since)
    return places[-1] if math.isinf(slowest.slow_since) else slowest
