"""Stream slots of one protocol: admission and eviction when more streams are open than slots.

A trusted peer always gets a slot; untrusted peers share the rest. Keys are free, so address blocks
count, not keys. An untrusted peer evicts from the block with most slots, if that has at least two
more than its own. Otherwise the longest stalled stream is evicted after ``undisturbed_seconds``. A
stream that waits for this node is not stalled, and keeps its slot ten times as long: aborted
transfers waste upload bandwidth.

``ServiceRounds`` serves untrusted peers round robin: a limited number at a time, while others wait.
It suits exchanges of many streams: peers served in succession finish one after another, and peers
served concurrently all finish at the end. A turn lasts until shortly after its last served stream,
and is evicted like a slot. Peers that recently left a turn unused, and peers that are no members,
share half of the turns, so that repeated requests cannot block the other half.

Without I/O: the clock is an argument, and the caller ends the streams of evicted slots.
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
"""Factor of ``undisturbed_seconds`` for a stream that waits for this node, so that others get a
slot eventually. With ``ExchangeLimits`` it has received five chunks of 1 MB by then. A guess."""


@dataclass(eq=False, slots=True)
class StreamSlot:
    """The slot of one stream."""

    peer: PeerId
    block: Hashable
    trusted: bool
    taken_at: float
    slow_since: float
    """Time since which the peer has stalled; infinity while it waits for this node."""
    asked: bool = False
    """True if the stream has ever waited for this node."""

    def note_slow(self, now: float, *, slow: bool) -> None:
        """Record that the peer stalls from now on, or waits for this node."""
        self.slow_since = now if slow else math.inf
        self.asked = self.asked or not slow


class Held(Protocol):
    """A slot or turn of an untrusted peer, subject to eviction."""

    @property
    def block(self) -> Hashable:
        """The address block of the holder."""
        ...

    @property
    def taken_at(self) -> float:
        """Time of acquisition."""
        ...

    @property
    def slow_since(self) -> float:
        """Time since which the peer has stalled; infinity while it waits for this node."""
        ...


_Held = TypeVar("_Held", bound=Held)


def choose_victim(
    held: Sequence[_Held], incoming: StreamSlot, now: float, undisturbed_seconds: float
) -> _Held | None:
    """Choose the victim among ``held`` (oldest first) for a new stream, or None."""
    if not held:
        return None
    blocks = Counter(one.block for one in held)
    most = max(blocks.values())
    if incoming.trusted or most > blocks[incoming.block] + 1:
        return _slowest([one for one in held if blocks[one.block] == most])
    slowest, oldest = _slowest(held), held[0]
    if now - slowest.slow_since >= undisturbed_seconds:
        return slowest
    waited = now - oldest.taken_at >= SERVED_TIMES * undisturbed_seconds
    return oldest if waited else None


def _slowest(held: Sequence[_Held]) -> _Held:
    """Return the longest stalled; if none stalls, the youngest, which loses least."""
    slowest = min(held, key=lambda one: one.slow_since)
    return held[-1] if math.isinf(slowest.slow_since) else slowest


WASTED_SECONDS = 60.0
"""Penalty for an unused turn. Short, as it may be an accident; long enough for a crowd: hundreds of
untrusted peers need 20 s to waste one each, of 26 turns of 1 s. A guess."""

WASTED_MAX = 4096
"""Remembered peers; the oldest is evicted first."""


@dataclass(eq=False, slots=True)
class ServiceRound:
    """Round-robin turn of one untrusted peer, which holds slots or did until recently."""

    peer: PeerId
    block: Hashable
    doubtful: bool
    taken_at: float
    served_at: float
    """End of the last served stream."""
    wasted: bool = True
    """True if no stream of it has ended while its peer waited for this node."""
    places: dict[StreamSlot, None] = field(default_factory=dict)

    @property
    def slow_since(self) -> float:
        """Time since which nothing was served, regardless of newly opened streams."""
        slow = (place.slow_since for place in self.places if place.asked)
        return max(slow, default=self.served_at)

    def leave(self, place: StreamSlot, now: float) -> None:
        """Release a slot."""
        del self.places[place]
        if math.isinf(place.slow_since):
            self.served_at, self.wasted = now, False


class ServiceRounds:
    """Round robin over untrusted peers: at most ``most`` at a time; without I/O."""

    def __init__(
        self, most: int, undisturbed_seconds: float, member: Callable[[PeerId], bool]
    ) -> None:
        self._most = most
        self._undisturbed_seconds = undisturbed_seconds
        self._member = member
        self._held: dict[PeerId, ServiceRound] = {}  # the oldest first
        self._wasted = BoundedDict[PeerId, float](WASTED_MAX, "unused_rounds")
        """Time at which each penalty ends; oldest first."""
        self.tables = (self._wasted,)

    def find(
        self, incoming: StreamSlot, now: float
    ) -> tuple[ServiceRound | None, ServiceRound | None]:
        """Return the present or a new turn of an untrusted peer, and the turn evicted for it.

        A new turn starts with ``begin``.
        """
        self._end_those_left(now)
        known = self._held.get(incoming.peer)
        if known is not None:
            return known, None
        doubtful = incoming.peer in self._wasted or not self._member(incoming.peer)
        turn = ServiceRound(incoming.peer, incoming.block, doubtful, now, now)
        held = list(self._held.values())
        alike = [one for one in held if one.doubtful]
        if doubtful and len(alike) >= max(1, self._most // 2):
            held = alike
        elif len(held) < self._most:
            return turn, None
        ends = choose_victim(held, incoming, now, self._undisturbed_seconds)
        return (None if ends is None else turn), ends

    def begin(self, turn: ServiceRound, place: StreamSlot) -> None:
        """Add a slot to a turn, and start the turn if it is new."""
        turn.places[place] = None
        self._held[turn.peer] = turn

    def end(self, turn: ServiceRound, now: float) -> None:
        """End a turn whose slots have been released."""
        del self._held[turn.peer]
        if turn.wasted:
            self._wasted.set_newest(turn.peer, now + WASTED_SECONDS)

    def leave(self, place: StreamSlot, now: float) -> None:
        """Record that a slot has been released."""
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
    """Slots of one protocol, of which untrusted peers have ``untrusted`` at most.

    Of untrusted peers, ``turns`` at most have slots at a time; None: no limit.
    """

    def __init__(
        self,
        per_peer: int,
        total: int,
        undisturbed_seconds: float,
        trust: Trust,
        *,
        untrusted: int | None = None,
        turns: int | None = None,
    ) -> None:
        self._per_peer = per_peer
        self._total = total
        self._untrusted_max = total if untrusted is None else untrusted
        self._undisturbed_seconds = undisturbed_seconds
        self._trust = trust
        self._taken: dict[StreamSlot, None] = {}  # the oldest first
        self._peers: Counter[PeerId] = Counter()
        self._untrusted = 0
        self._turns = (
            None if turns is None else ServiceRounds(turns, undisturbed_seconds, trust.member)
        )
        self.tables = () if self._turns is None else self._turns.tables

    def __len__(self) -> int:
        """Return the number of acquired slots."""
        return len(self._taken)

    def take(self, peer: PeerId, now: float) -> tuple[StreamSlot | None, list[StreamSlot]]:
        """Acquire a slot, or None; also return the slots that were evicted for it."""
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
        """Release a slot; idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._untrusted -= not place.trusted
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]
            if self._turns is not None:
                self._turns.leave(place, now)

    def _take(self, place: StreamSlot, now: float) -> tuple[StreamSlot | None, list[StreamSlot]]:
        """Acquire a slot for a peer that is trusted or has a turn; returns as ``take`` does."""
        lost: list[StreamSlot] = []
        full = len(self._taken) >= self._total
        if full or (not place.trusted and self._untrusted >= self._untrusted_max):
            held = [one for one in self._taken if not one.trusted]
            loser = choose_victim(held, place, now, self._undisturbed_seconds)
            if loser is None:
                return None, []
            self.leave(loser, now)
            lost.append(loser)
        self._taken[place] = None
        self._peers[place.peer] += 1
        self._untrusted += not place.trusted
        return place, lost
