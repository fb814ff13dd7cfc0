"""Who is served when more streams are open than a protocol serves at once.

Keys are free. So who has standing always finds a place: it takes one from those without, who share
what is left. Among these each block of addresses counts once, however many keys it has: who has
fewer streams open than another block takes a place of that one, and where none has more the
stream goes that has been open longest, once it had time enough for an honest exchange.

A machine without I/O: the clock is an argument, and the caller ends what loses its place.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class Trust:
    """What a node knows of whoever opens streams to it."""

    proven: Callable[[PeerId], bool] = lambda _peer: False
    """Whether a peer has standing."""
    block: Callable[[PeerId], Hashable] = lambda peer: peer
    """What it shares with others who are probably the same: its address block, if known."""
    member: Callable[[PeerId], bool] = lambda _peer: False
    """Whether it has been admitted: its record is here."""


@dataclass(eq=False, frozen=True, slots=True)
class Place:
    """The place of one stream."""

    peer: PeerId
    block: Hashable
    proven: bool
    taken_at: float


class Places:
    """The places of one protocol."""

    def __init__(self, per_peer: int, total: int, undisturbed_seconds: float, trust: Trust) -> None:
        self._per_peer = per_peer
        self._total = total
        self._undisturbed_seconds = undisturbed_seconds
        self._trust = trust
        self._taken: dict[Place, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[Place | None, Place | None]:
        """Return a place, if there is one, and the one that was taken away for it, if any."""
        if self._peers[peer] >= self._per_peer:
            return None, None
        place = Place(peer, self._trust.block(peer), self._trust.proven(peer), now)
        lost = None
        if len(self._taken) >= self._total:
            lost = self._least(place, now)
            if lost is None:
                return None, None
            self.leave(lost)
        self._taken[place] = None
        self._peers[peer] += 1
        return place, lost

    def leave(self, place: Place) -> None:
        """Give a place back; idempotent."""
        if place in self._taken:
            del self._taken[place]
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
        oldest = next(place for place in others if blocks[place.block] == most)
        waited = now - others[0].taken_at >= self._undisturbed_seconds
        if newcomer.proven or most > blocks[newcomer.block] + 1:
            return oldest
        return others[0] if waited else None
