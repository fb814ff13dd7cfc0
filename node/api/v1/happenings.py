"""What happened in a bounded list, and how pages that watch are told of it.

Numbers count from 1 in each process, so a stream is resumed by (boot, number): who comes with the
boot of another process is told everything that this one knows, and has the keys to see what is
news.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from heapq import nlargest

from node.api.v1.answers import EventsPage, RunEvent
from node.api.v1.queries import EventQuery

HAPPENINGS_MAX = 512
"""About 0.5 KB each."""

ROUTINE = "escalated"
"""Some of every honest worker's rollouts go to a larger committee: it happens all day."""


class EventLog:
    """The last of them, each key once; what is ``ROUTINE`` is forgotten first."""

    def __init__(self, boot: str, known: Iterable[RunEvent] = ()) -> None:
        self.boot = boot
        self._kept: deque[tuple[int, RunEvent]] = deque()
        self._keys: dict[str, None] = {}
        self._number = 0
        self._news = asyncio.Event()
        for happening in known:
            self.add(happening)

    def add(self, happening: RunEvent) -> None:
        """Take one in, unless it is known."""
        if happening.key in self._keys:
            return
        self._number += 1
        self._kept.append((self._number, happening))
        self._keys[happening.key] = None
        if len(self._kept) > HAPPENINGS_MAX:
            routine = (item for item in self._kept if item[1].kind == ROUTINE)
            forgotten = next(routine, self._kept[0])
            self._kept.remove(forgotten)
            del self._keys[forgotten[1].key]

    def after(self, boot: str, number: int) -> list[tuple[int, RunEvent]]:
        """Return what came after a number of a boot, all of it for another boot."""
        if boot != self.boot:
            return list(self._kept)
        return [item for item in self._kept if item[0] > number]

    @property
    def number(self) -> int:
        """Of the last one; 0 before the first."""
        return self._number

    def wake(self) -> None:
        """Let those that watch look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, seconds: float) -> bool:
        """Return when ``wake`` is called; False when so many seconds pass before."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def rare(self, count: int) -> tuple[RunEvent, ...]:
        """Return the last ones by their time, the newest first, without the ``ROUTINE``."""
        items = (happening for _, happening in self._kept if happening.kind != ROUTINE)
        return tuple(nlargest(count, items, key=lambda one: one.at))

    def page(self, query: EventQuery) -> EventsPage:
        """Return those that are asked for, the newest first."""
        items = [happening for _, happening in self._kept]
        wanted = [one for one in items if query.kind in ("", one.kind)]
        wanted.sort(key=lambda one: -one.at)
        kinds: Counter[str] = Counter(one.kind for one in items)
        return EventsPage(tuple(wanted[: query.limit]), dict(sorted(kinds.items())))
