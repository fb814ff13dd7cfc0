"""Stream limiter of one protocol: concurrent streams, and rate of new ones.

A short exchange frees its slot at once, so without the rate its peer could repeat it without pause.
"""

import asyncio
from collections.abc import Hashable
from operator import itemgetter
from typing import Protocol

from node.network.resources.rate_limiter import Rate, RateLimiter, Rates
from node.network.resources.stream_slots import StreamSlot, StreamSlots
from node.network.streams.deadline import loop_time
from protocol.core.containers import SizeGauge, Table
from protocol.core.types import PeerId
from roles.ports.transport import Stream, StreamHandler, Trust

UNDISTURBED_SECONDS = 1.0
"""Time before an untrusted peer's stream can be evicted: a few round trips suffice. A guess."""

TRUSTED_FACTOR = 8
"""Rate and burst of a trusted peer, relative to those of an address block; a guess."""


class StreamLimits(Protocol):
    """Stream limits of one protocol."""

    @property
    def word(self) -> str:
        """Short name of the protocol."""

    @property
    def streams_per_peer(self) -> int:
        """Concurrent streams per peer."""

    @property
    def streams_total(self) -> int:
        """Concurrent streams of all peers."""

    @property
    def streams_per_second(self) -> float | None:
        """Rate for the untrusted peers of one address block; None: no limit."""

    @property
    def streams_burst(self) -> int:
        """Burst of that rate."""


class StreamLimiter:
    """Stream handler that enforces limits; excess streams go to ``refuse``.

    Without ``refuse`` they are closed unread: the opener sees the close and retries, or uses
    another peer. Evicted streams end likewise (``node.network.resources.stream_slots``).
    ``untrusted`` limits the slots of all untrusted peers, ``turns`` their number at a time.
    """

    def __init__(
        self,
        handler: StreamHandler,
        limits: StreamLimits,
        trust: Trust,
        refuse: StreamHandler | None = None,
        *,
        untrusted: int | None = None,
        turns: int | None = None,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._places = StreamSlots(
            limits.streams_per_peer,
            limits.streams_total,
            UNDISTURBED_SECONDS,
            trust,
            untrusted=untrusted,
            turns=turns,
        )
        self._trust = trust
        self._rates: RateLimiter[tuple[bool, Hashable]] | None = None
        if limits.streams_per_second is not None:
            per_second, burst = limits.streams_per_second, limits.streams_burst
            trusted = Rate(TRUSTED_FACTOR * per_second, TRUSTED_FACTOR * burst)
            rates = Rates(untrusted=Rate(per_second, burst), trusted=trusted)
            self._rates = RateLimiter("stream_rates", rates, itemgetter(0))
        self._serving: dict[StreamSlot, asyncio.Task[None] | None] = {}
        self._place_of: dict[Stream, StreamSlot] = {}
        name = f"streams_{limits.word.replace('-', '_')}"
        self.tables: tuple[Table, ...] = (
            SizeGauge(name, limits.streams_total, self._places.__len__),
            *(() if self._rates is None else self._rates.tables),
            *self._places.tables,
        )

    async def __call__(self, stream: Stream) -> None:
        """Serve a stream if a slot is free; eviction cancels the calling task."""
        now = loop_time()
        place, lost = None, list[StreamSlot]()
        if self._rates is None or self._rates.take(self._rate_key(stream.peer), 1, now):
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
                raise  # cancelled for another reason than eviction
        finally:
            self._places.leave(place, loop_time())
            self._serving.pop(place, None)
            del self._place_of[stream]

    def _rate_key(self, peer: PeerId) -> tuple[bool, Hashable]:
        """Return the key of a bucket: a trusted peer, or the address block of an untrusted one."""
        trusted = self._trust.trusted(peer)
        return trusted, peer if trusted else self._trust.block(peer)

    def note_slow(self, stream: Stream, *, slow: bool) -> None:
        """Record whether a stream now waits for its peer, or for this node.

        Without a call the peer counts as stalled since the stream was opened.
        """
        now = loop_time()
        self._place_of[stream].note_slow(now, slow=slow)
