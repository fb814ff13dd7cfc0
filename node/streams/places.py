"""Who is served when more streams are open than a protocol serves at once.

Who has standing always finds a place; the others share what is left (``node.streams.eviction``), of
some protocols in turns (``node.streams.turns``).

A machine without I/O: the clock is an argument, and the caller ends what loses its place.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from node.streams.eviction import Place, least
from node.streams.turns import Turns
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
        self._undisturbed_seconds = undisturbed_seconds
        self._trust = trust
        self._taken: dict[Place, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()
        self._strangers = 0
        self._turns = None if turns is None else Turns(turns, undisturbed_seconds, trust.member)
        self.tables = () if self._turns is None else self._turns.tables

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[Place | None, list[Place]]:
        """Return a place, if there is one, and those that were taken away for it."""
        if self._peers[peer] >= self._per_peer:
            return None, []
        place = Place(peer, self._trust.block(peer), self._trust.proven(peer), now, now)
        if place.proven or self._turns is None:
            return self._take(place, now)
        turn, ends = self._turns.find(place, now)
        if turn is None:
            return None, []
        lost: list[Place] = []
        if ends is not None:
            lost = list(ends.places)
            for one in lost:
                self.leave(one, now)
            self._turns.end(ends, now)
        taken, aside = self._take(place, now)
        if taken is not None:
            self._turns.begin(turn, taken)
        return taken, lost + aside

    def leave(self, place: Place, now: float) -> None:
        """Give a place back; idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._strangers -= not place.proven
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]
            if self._turns is not None:
                self._turns.leave(place, now)

    def _take(self, place: Place, now: float) -> tuple[Place | None, list[Place]]:
        """Take a place for who has a turn, if it needs one, and return it as ``take`` does."""
        lost: list[Place] = []
        full = len(self._taken) >= self._total
        if full or (not place.proven and self._strangers >= self._strangers_max):
            held = [one for one in self._taken if not one.proven]
            loser = least(held, place, now, self._undisturbed_seconds)
            if loser is None:
                return None, []
            self.leave(loser, now)
            lost.append(loser)
        self._taken[place] = None
        self._peers[place.peer] += 1
        self._strangers += not place.proven
        return place, lost
