"""Who loses what it holds when all is taken and somebody comes: a place, or a turn.

Keys are free. So who has standing takes from those without, and among these each block of
addresses counts once, however many keys it has: who has fewer of what is held than another block
takes from that one. Where none has more, the peer loses that has been slow for longest, once it had
time enough for an honest exchange. A peer that waits for us is not slow, and keeps what it has ten
times as long: in a crowd a stream that is ended before it is done has taken bytes of our line for
nothing.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from protocol.types import PeerId

SERVED_TIMES = 10
"""Times as long as a slow one a stream keeps its place that waits for us, so that others get one at
all: with ``ExchangeLimits`` it has had five chunks of a megabyte. A guess."""


@dataclass(eq=False, slots=True)
class Place:
    """The place of one stream."""

    peer: PeerId
    block: Hashable
    proven: bool
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


def least(
    held: Sequence[_Held], newcomer: Place, now: float, undisturbed_seconds: float
) -> _Held | None:
    """Return which of ``held``, the oldest first, goes to who comes, if any does."""
    if not held:
        return None
    blocks = Counter(one.block for one in held)
    most = max(blocks.values())
    if newcomer.proven or most > blocks[newcomer.block] + 1:
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
