"""A bound on the streams that one protocol serves at once, per peer and in all."""

from collections import Counter

from protocol.types import PeerId
from roles.ports.transport import Stream, StreamHandler


class Bounded:
    """A stream handler that passes on so many streams at once; the others go to ``refuse``.

    By default they end unread: whoever opened one sees it close before an answer, and tries again
    or elsewhere.
    """

    def __init__(
        self,
        handler: StreamHandler,
        *,
        per_peer: int,
        total: int,
        refuse: StreamHandler | None = None,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._per_peer = per_peer
        self._total = total
        self._serving: Counter[PeerId] = Counter()

    async def __call__(self, stream: Stream) -> None:
        """Serve a stream if there is room."""
        peer, serving = stream.peer, self._serving
        if serving[peer] >= self._per_peer or serving.total() >= self._total:
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
