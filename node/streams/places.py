"""Who is served when more streams are open than a protocol serves at once.

Keys are free. So who has standing always finds a place: it takes one from those without, who share
what is left. Among these each block of addresses counts once, however many keys it has: who has
fewer streams open than another block takes a place of that one, and where none has more the
stream goes that its peer has been slow with for longest, once it had time enough for an honest
exchange. A peer that waits for us is not slow, and keeps its place ten times as long: in a crowd a
stream that is ended before it is done has taken bytes of our line for nothing.

Where one exchange takes many streams, so many strangers have a *turn* at a time, and its streams
find places; the turn ends by the same rules. A crowd that is served in turns is done one after
another; of one that is served all at once all are done at the end.

A machine without I/O: the clock is an argument, and the caller ends what loses its place.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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


@dataclass(eq=False, slots=True)
class _Turn:
    """The turn of one stranger: it has some places, or had one a moment ago."""

    peer: PeerId
    block: Hashable
    taken_at: float
    left_at: float
    places: dict[Place, None] = field(default_factory=dict)

    @property
    def slow_since(self) -> float:
        """Since when it has had no stream, or been slow with all."""
        return max((place.slow_since for place in self.places), default=self.left_at)


_Held = TypeVar("_Held", Place, _Turn)
"""What a stranger holds until it goes to somebody else."""


class Places:
    """The places of one protocol; of them ``strangers`` at most are for peers without standing.

    Of these so many as ``turns`` have some at a time; None: all for whom there is room.
    """

    def __init__(
        self,
        per_peer: int,
        total: int,
        undisturbed_seconds: float,
        trust: Trust,
        *,
        strangers: int | None = None,
        turns: int | None = None,
    ) -> None:
        self._per_peer = per_peer
        self._total = total
        self._strangers_max = total if strangers is None else strangers
        self._turns_max = turns
        self._undisturbed_seconds = undisturbed_seconds
        self._trust = trust
        self._taken: dict[Place, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()
        self._strangers = 0
        self._turns: dict[PeerId, _Turn] = {}  # the oldest first

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[Place | None, list[Place]]:
        """Return a place, if there is one, and those that were taken away for it."""
        if self._peers[peer] >= self._per_peer:
            return None, []
        place = Place(peer, self._trust.block(peer), self._trust.proven(peer), now, now)
        lost: list[Place] = []
        turn = None
        if not place.proven and self._turns_max is not None:
            turn, lost = self._turn(place, self._turns_max, now)
            if turn is None:
                return None, []
        full = len(self._taken) >= self._total
        if full or (not place.proven and self._strangers >= self._strangers_max):
            least = self._least([one for one in self._taken if not one.proven], place, now)
            if least is None:
                return None, lost
            self.leave(least, now)
            lost.append(least)
        self._taken[place] = None
        self._peers[peer] += 1
        self._strangers += not place.proven
        if turn is not None:
            turn.places[place] = None
            self._turns[peer] = turn
        return place, lost

    def leave(self, place: Place, now: float) -> None:
        """Give a place back; idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._strangers -= not place.proven
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]
            turn = self._turns.get(place.peer)
            if turn is not None:
                turn.left_at = now
                turn.places.pop(place, None)

    def _turn(self, newcomer: Place, most: int, now: float) -> tuple[_Turn | None, list[Place]]:
        """Return the turn of a stranger, if there is one, and the places of whose it was."""
        over = now - self._undisturbed_seconds
        self._turns = {
            peer: turn for peer, turn in self._turns.items() if turn.places or turn.left_at > over
        }
        lost: list[Place] = []
        if newcomer.peer not in self._turns and len(self._turns) >= most:
            least = self._least(list(self._turns.values()), newcomer, now)
            if least is None:
                return None, []
            lost = list(least.places)
            for place in lost:
                self.leave(place, now)
            del self._turns[least.peer]
        known = self._turns.get(newcomer.peer)
        return known or _Turn(newcomer.peer, newcomer.block, now, now), lost

    def _least(self, held: Sequence[_Held], newcomer: Place, now: float) -> _Held | None:
        """Return what goes to somebody who comes when all is taken, if anything does.

        ``held`` is what strangers have, the oldest first.
        """
        if not held:
            return None
        blocks = Counter(one.block for one in held)
        most = max(blocks.values())
        if newcomer.proven or most > blocks[newcomer.block] + 1:
            return _slowest([one for one in held if blocks[one.block] == most])
        slowest, oldest = _slowest(held), held[0]
        if now - slowest.slow_since >= self._undisturbed_seconds:
            return slowest
        waited = now - oldest.taken_at >= SERVED_TIMES * self._undisturbed_seconds
        return oldest if waited else None


def _slowest(held: Sequence[_Held]) -> _Held:
    """Return whose peer has been slow for longest; the youngest, which lost least, if none is."""
    slowest = min(held, key=lambda one: one.slow_since)
    return held[-1] if math.isinf(slowest.slow_since) else slowest
