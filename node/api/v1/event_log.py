"""Bounded event log, and its notification of open pages.

Event numbers count from 1 in each process, so a stream resumes by (boot, number). A client with
another boot id receives all events again and recognises known ones by their keys.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from heapq import nlargest

from node.api.v1.answers import EventsPage, RunEvent
from node.api.v1.queries import EventQuery

EVENTS_KEPT = 512
"""Capacity of the log; an event takes about 0.5 KB."""

ROUTINE = "escalated"
"""Event kind that is frequent in an honest swarm, and evicted first."""


class EventLog:
    """The latest events, each key once; ``ROUTINE`` events are evicted first."""

    def __init__(self, boot: str, known: Iterable[RunEvent] = ()) -> None:
        self.boot = boot
        self._kept: deque[tuple[int, RunEvent]] = deque()
        self._keys: dict[str, None] = {}
        self._number = 0
        self._news = asyncio.Event()
        for event in known:
            self.add(event)

    def add(self, event: RunEvent) -> None:
        """Add an event unless its key is known."""
        if event.key in self._keys:
            return
        self._number += 1
        self._kept.append((self._number, event))
        self._keys[event.key] = None
        if len(self._kept) > EVENTS_KEPT:
            routine = (item for item in self._kept if item[1].kind == ROUTINE)
            forgotten = next(routine, self._kept[0])
            self._kept.remove(forgotten)
            del self._keys[forgotten[1].key]

    def after(self, boot: str, number: int) -> list[tuple[int, RunEvent]]:
        """Return the events after a number of this boot, or all events for another boot."""
        if boot != self.boot:
            return list(self._kept)
        return [item for item in self._kept if item[0] > number]

    @property
    def number(self) -> int:
        """Number of the latest event; 0 before the first."""
        return self._number

    def wake(self) -> None:
        """Wake all watchers."""
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, seconds: float) -> bool:
        """Wait for ``wake``; return False on timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def rare(self, count: int) -> tuple[RunEvent, ...]:
        """Return the latest events without ``ROUTINE`` ones, newest first."""
        items = (event for _, event in self._kept if event.kind != ROUTINE)
        return tuple(nlargest(count, items, key=lambda one: one.at))

    def page(self, query: EventQuery) -> EventsPage:
        """Return the events that match a query, newest first."""
        items = [event for _, event in self._kept]
        wanted = [one for one in items if query.kind in ("", one.kind)]
        wanted.sort(key=lambda one: -one.at)
        kinds: Counter[str] = Counter(one.kind for one in items)
        return EventsPage(tuple(wanted[: query.limit]), dict(sorted(kinds.items())))
