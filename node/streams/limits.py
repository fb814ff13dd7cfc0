"""A bound on the streams that one protocol serves at once, per peer and in all."""

from collections import Counter
from typing import Protocol

from protocol.types import PeerId
from roles.ports.transport import Stream, StreamHandler


class Limits(Protocol):
    """How many streams are served at once."""

    @property
    def streams_per_peer(self) -> int:
        """Of one peer."""

    @property
    def streams_total(self) -> int:
        """Of all peers."""


class Bounded:
    """A stream handler that passes on so many streams at once; the others go to ``refuse``.

    By default they end unread: whoever opened one sees it close before an answer, and tries again
    or elsewhere.
    """

    def __init__(
        self, handler: StreamHandler, limits: Limits, refuse: StreamHandler | None = None
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._refuse = refuse
        self._serving: Counter[PeerId] = Counter()

    async def __call__(self, stream: Stream) -> None:
        """Serve a stream if there is room."""
        peer, serving = stream.peer, self._serving
        full = serving.total() >= self._limits.streams_total
        if full or serving[peer] >= self._limits.streams_per_peer:
            if self._refuse is not None:
                await self._refuse(stream)
            return
        serving[peer] += 1
        try:
            await self._handler(stream)
        finally:
            serving[peer] -= 1
            if not serving[peer]:
                del serving[peer]
