"""Who is served when more streams are open than a protocol serves at once.

Who has standing always finds a place; the others share what is left
(``node.network.resources.stream_slots``), of some protocols in turns
(``node.network.resources.stream_slots``).

A machine without I/O: the clock is an argument, and the caller ends what loses its place.

Who loses what it holds when all is taken and somebody comes: a place, or a turn.

Keys are free. So who has standing takes from those without, and among these each block of
addresses counts once, however many keys it has: who has fewer of what is held than another block
takes from that one. Where none has more, the peer loses that has been slow for longest, once it had
time enough for an honest exchange. A peer that waits for us is not slow, and keeps what it has ten
times as long: in a crowd a stream that is ended before it is done has taken bytes of our line for
nothing.

Turns of strangers: so many at a time are served by a protocol, and the others wait.

Where one exchange takes many streams, who has a turn finds places for its streams. A crowd that is
served in turns is done one after another; of one that is served all at once all are done at the
end. A turn lasts a moment longer than something is served, and goes to somebody else as a place.

Who wasted a turn lately, or has not been admitted, is doubtful. These share half of the turns: for
others there is the rest, however often a crowd asks that does nothing with its turns.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId
from roles.ports.transport import Trust

SERVED_TIMES = 10
"""Times as long as a slow one a stream keeps its place that waits for us, so that others get one at
all: with ``ExchangeLimits`` it has had five chunks of a megabyte. A guess."""


@dataclass(eq=False, slots=True)
class StreamSlot:
    """The place of one stream."""

    peer: PeerId
    block: Hashable
    trusted: bool
    taken_at: float
    slow_since: float
    """Since when its peer has kept us waiting; infinity while it waits for us."""
    asked: bool = False
    """Whether it has ever waited for us."""

    def note_slow(self, now: float, *, slow: bool) -> None:
        """Note that the peer keeps us waiting from now on, or waits for us."""
        self.slow_since = now if slow else math.inf
        self.asked = self.asked or not slow


class Held(Protocol):
    """What a stranger holds until it goes to somebody else."""

    @property
    def block(self) -> Hashable:
        """The address block of who has it."""
        ...

    @property
    def taken_at(self) -> float:
        """Since when."""
        ...

    @property
    def slow_since(self) -> float:
        """Since when its peer has kept us waiting; infinity while it waits for us."""
        ...


_Held = TypeVar("_Held", bound=Held)


def choose_victim(
    held: Sequence[_Held], newcomer: StreamSlot, now: float, undisturbed_seconds: float
) -> _Held | None:
    """Return which of ``held``, the oldest first, goes to who comes, if any does."""
    if not held:
        return None
    blocks = Counter(one.block for one in held)
    most = max(blocks.values())
    if newcomer.trusted or most > blocks[newcomer.block] + 1:
        return _slowest([one for one in held if blocks[one.block] == most])
    slowest, oldest = _slowest(held), held[0]
    if now - slowest.slow_since >= undisturbed_seconds:
        return slowest
    waited = now - oldest.taken_at >= SERVED_TIMES * undisturbed_seconds
    return oldest if waited else None


def _slowest(held: Sequence[_Held]) -> _Held:
    """Return whose peer has been slow for longest; the youngest, which lost least, if none is."""
    slowest = min(held, key=lambda one: one.slow_since)
    return held[-1] if math.isinf(slowest.slow_since) else slowest


WASTED_SECONDS = 60.0
"""How long a turn counts that was wasted: if it was by chance, not for long; but hundreds of
strangers need twenty seconds to waste one each, of 26 that take a second. A guess."""

WASTED_MAX = 4096
"""Remembered; the oldest is forgotten first."""


@dataclass(eq=False, slots=True)
class ServiceRound:
    """The turn of one stranger: it has some places, or had one a moment ago."""

    peer: PeerId
    block: Hashable
    doubtful: bool
    taken_at: float
    served_at: float
    """When a stream was served last, of those that have ended."""
    wasted: bool = True
    """Whether none has ended while its peer waited for us."""
    places: dict[StreamSlot, None] = field(default_factory=dict)

    @property
    def slow_since(self) -> float:
        """Since when nothing has been served, however many streams have been opened meanwhile."""
        slow = (place.slow_since for place in self.places if place.asked)
        return max(slow, default=self.served_at)

    def leave(self, place: StreamSlot, now: float) -> None:
        """Let a place go."""
        del self.places[place]
        if math.isinf(place.slow_since):
            self.served_at, self.wasted = now, False


class ServiceRounds:
    """At most ``most`` at a time; a machine without I/O, as ``StreamSlots``."""

    def __init__(
        self, most: int, undisturbed_seconds: float, member: Callable[[PeerId], bool]
    ) -> None:
        self._most = most
        self._undisturbed_seconds = undisturbed_seconds
        self._member = member
        self._held: dict[PeerId, ServiceRound] = {}  # the oldest first
        self._wasted = BoundedDict[PeerId, float](WASTED_MAX, "turns_wasted")
        """Until when it counts; the oldest first."""
        self.tables = (self._wasted,)

    def find(
        self, newcomer: StreamSlot, now: float
    ) -> tuple[ServiceRound | None, ServiceRound | None]:
        """Return the turn of a stranger, or one for it, and whose ends for that.

        One that is new begins with ``begin``.
        """
        self._end_those_left(now)
        known = self._held.get(newcomer.peer)
        if known is not None:
            return known, None
        doubtful = newcomer.peer in self._wasted or not self._member(newcomer.peer)
        turn = ServiceRound(newcomer.peer, newcomer.block, doubtful, now, now)
        held = list(self._held.values())
        alike = [one for one in held if one.doubtful]
        if doubtful and len(alike) >= max(1, self._most // 2):
            held = alike
        elif len(held) < self._most:
            return turn, None
        ends = choose_victim(held, newcomer, now, self._undisturbed_seconds)
        return (None if ends is None else turn), ends

    def begin(self, turn: ServiceRound, place: StreamSlot) -> None:
        """Give a place to a turn, which begins unless it has."""
        turn.places[place] = None
        self._held[turn.peer] = turn

    def end(self, turn: ServiceRound, now: float) -> None:
        """End a turn whose places have been given back."""
        del self._held[turn.peer]
        if turn.wasted:
            self._wasted.set_newest(turn.peer, now + WASTED_SECONDS)

    def leave(self, place: StreamSlot, now: float) -> None:
        """Note that a place has been given back."""
        turn = self._held.get(place.peer)
        if turn is not None and place in turn.places:
            turn.leave(place, now)

    def _end_those_left(self, now: float) -> None:
        over = now - self._undisturbed_seconds
        for turn in list(self._held.values()):
            if not turn.places and turn.served_at <= over:
                self.end(turn, now)
        while self._wasted and next(iter(self._wasted.values())) <= now:
            self._wasted.popitem(last=False)


class StreamSlots:
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
        self._taken: dict[StreamSlot, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()
        self._strangers = 0
        self._turns = (
            None if turns is None else ServiceRounds(turns, undisturbed_seconds, trust.member)
        )
        self.tables = () if self._turns is None else self._turns.tables

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[StreamSlot | None, list[StreamSlot]]:
        """Return a place, if there is one, and those that were taken away for it."""
        if self._peers[peer] >= self._per_peer:
            return None, []
        place = StreamSlot(peer, self._trust.block(peer), self._trust.trusted(peer), now, now)
        if place.trusted or self._turns is None:
            return self._take(place, now)
        turn, ends = self._turns.find(place, now)
        if turn is None:
            return None, []
        lost: list[StreamSlot] = []
        if ends is not None:
            lost = list(ends.places)
            for one in lost:
                self.leave(one, now)
            self._turns.end(ends, now)
        taken, aside = self._take(place, now)
        if taken is not None:
            self._turns.begin(turn, taken)
        return taken, lost + aside

    def leave(self, place: StreamSlot, now: float) -> None:
        """Give a place back; idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._strangers -= not place.trusted
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]
            if self._turns is not None:
                self._turns.leave(place, now)

    def _take(self, place: StreamSlot, now: float) -> tuple[StreamSlot | None, list[StreamSlot]]:
        """Take a place for who has a turn, if it needs one, and return it as ``take`` does."""
        lost: list[StreamSlot] = []
        full = len(self._taken) >= self._total
        if full or (not place.trusted and self._strangers >= self._strangers_max):
            held = [one for one in self._taken if not one.trusted]
            loser = choose_victim(held, place, now, self._undisturbed_seconds)
            if loser is None:
                return None, []
            self.leave(loser, now)
            lost.append(loser)
        self._taken[place] = None
        self._peers[place.peer] += 1
        self._strangers += not place.trusted
        return place, lost
