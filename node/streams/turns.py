"""Turns of strangers: so many at a time are served by a protocol, and the others wait.

Where one exchange takes many streams, who has a turn finds places for its streams. A crowd that is
served in turns is done one after another; of one that is served all at once all are done at the
end. A turn lasts a moment longer than something is served, and goes to somebody else as a place.

Who wasted a turn lately, or has not been admitted, is doubtful. These share half of the turns: for
others there is the rest, however often a crowd asks that does nothing with its turns.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from node.streams.eviction import Place, least
from protocol.containers import BoundedDict
from protocol.types import PeerId

WASTED_SECONDS = 60.0
"""How long a turn counts that was wasted: if it was by chance, not for long; but hundreds of
strangers need twenty seconds to waste one each, of 26 that take a second. A guess."""

WASTED_MAX = 4096
"""Remembered; the oldest is forgotten first."""


@dataclass(eq=False, slots=True)
class Turn:
    """The turn of one stranger: it has some places, or had one a moment ago."""

    peer: PeerId
    block: Hashable
    doubtful: bool
    taken_at: float
    served_at: float
    """When a stream was served last, of those that have ended."""
    wasted: bool = True
    """Whether none has ended while its peer waited for us."""
    places: dict[Place, None] = field(default_factory=dict)

    @property
    def slow_since(self) -> float:
        """Since when nothing has been served, however many streams have been opened meanwhile."""
        slow = (place.slow_since for place in self.places if place.asked)
        return max(slow, default=self.served_at)

    def leave(self, place: Place, now: float) -> None:
        """Let a place go."""
        del self.places[place]
        if math.isinf(place.slow_since):
            self.served_at, self.wasted = now, False


class Turns:
    """At most ``most`` at a time; a machine without I/O, as ``Places``."""

    def __init__(
        self, most: int, undisturbed_seconds: float, member: Callable[[PeerId], bool]
    ) -> None:
        self._most = most
        self._undisturbed_seconds = undisturbed_seconds
        self._member = member
        self._held: dict[PeerId, Turn] = {}  # the oldest first
        self._wasted = BoundedDict[PeerId, float](WASTED_MAX, "turns_wasted")
        """Until when it counts; the oldest first."""
        self.tables = (self._wasted,)

    def find(self, newcomer: Place, now: float) -> tuple[Turn | None, Turn | None]:
        """Return the turn of a stranger, or one for it, and whose ends for that.

        One that is new begins with ``begin``.
        """
        self._end_those_left(now)
        known = self._held.get(newcomer.peer)
        if known is not None:
            return known, None
        doubtful = newcomer.peer in self._wasted or not self._member(newcomer.peer)
        turn = Turn(newcomer.peer, newcomer.block, doubtful, now, now)
        held = list(self._held.values())
        alike = [one for one in held if one.doubtful]
        if doubtful and len(alike) >= max(1, self._most // 2):
            held = alike
        elif len(held) < self._most:
            return turn, None
        ends = least(held, newcomer, now, self._undisturbed_seconds)
        return (None if ends is None else turn), ends

    def begin(self, turn: Turn, place: Place) -> None:
        """Give a place to a turn, which begins unless it has."""
        turn.places[place] = None
        self._held[turn.peer] = turn

    def end(self, turn: Turn, now: float) -> None:
        """End a turn whose places have been given back."""
        del self._held[turn.peer]
        if turn.wasted:
            self._wasted.set_newest(turn.peer, now + WASTED_SECONDS)

    def leave(self, place: Place, now: float) -> None:
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
