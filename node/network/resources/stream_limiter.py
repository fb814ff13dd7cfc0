"""A bound on the streams that one protocol serves: at once, and how often somebody opens one."""

import asyncio
from typing import Protocol

from node.network.resources.stream_slots import StreamSlot, StreamSlots
from node.network.resources.token_bucket import TokenBuckets
from node.network.streams.deadline import loop_time
from protocol.core.containers import SizeGauge, Table
from roles.ports.transport import Stream, StreamHandler, Trust

UNDISTURBED_SECONDS = 1.0
"""For so long a stream of a stranger keeps its place against others: an honest small exchange takes
a few round trips. A guess."""


class StreamLimits(Protocol):
    """How many streams are served."""

    @property
    def word(self) -> str:
        """The protocol's."""

    @property
    def streams_per_peer(self) -> int:
        """At once, of one peer."""

    @property
    def streams_total(self) -> int:
        """At once, of all peers."""

    @property
    def streams_per_second(self) -> float | None:
        """Of the strangers at one address; None: without a bound."""

    @property
    def streams_burst(self) -> int:
        """Of them, before that bound holds."""


class StreamLimiter:
    """A stream handler that passes on so many streams; the others go to ``refuse``.

    By default they end unread: whoever opened one sees it close before an answer, and tries again
    or elsewhere. So does whose place is given to somebody else
    (``node.network.resources.stream_slots``). ``strangers`` is how many of them peers without
    standing have at most, ``turns`` how many of these peers have some at a time.
    """

    def __init__(
        self,
        handler: StreamHandler,
        limits: StreamLimits,
        trust: Trust,
        refuse: StreamHandler | None = None,
        *,
        strangers: int | None = None,
        turns: int | None = None,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._places = StreamSlots(
            limits.streams_per_peer,
            limits.streams_total,
            UNDISTURBED_SECONDS,
            trust,
            strangers=strangers,
            turns=turns,
        )
        per_second = limits.streams_per_second
        self._rates = (
            None if per_second is None else TokenBuckets(per_second, limits.streams_burst, trust)
        )
        self._serving: dict[StreamSlot, asyncio.Task[None] | None] = {}
        self._place_of: dict[Stream, StreamSlot] = {}
        name = f"streams_{limits.word.replace('-', '_')}"
        self.tables: tuple[Table, ...] = (
            SizeGauge(name, limits.streams_total, self._places.__len__),
            *(() if self._rates is None else self._rates.tables),
            *self._places.tables,
        )

    async def __call__(self, stream: Stream) -> None:
        """Serve a stream if there is room; the task that calls is cancelled to end one."""
        now = loop_time()
        place, lost = None, list[StreamSlot]()
        if self._rates is None or self._rates.take(stream.peer, now):
            place, lost = self._places.take(stream.peer, now)
        for one in lost:
            if (serving := self._serving.pop(one)) is not None:
                serving.cancel()
        if place is None:
            if self._refuse is not None:
                await self._refuse(stream)
            return
        task = self._serving[place] = asyncio.current_task()
        self._place_of[stream] = place
        try:
            await self._handler(stream)
        except asyncio.CancelledError:
            if place in self._serving or task is None or task.uncancel():
                raise  # it is not, or not only, for its place that it is cancelled
        finally:
            self._places.leave(place, loop_time())
            self._serving.pop(place, None)
            del self._place_of[stream]

    def note_slow(self, stream: Stream, *, slow: bool) -> None:
        """Note whether a stream that is served waits for its peer from now on, or for us.

        Who never says it has a peer that has been slow since the stream was opened.
        """
        now = loop_time()
        self._place_of[stream].note_slow(now, slow=slow)
