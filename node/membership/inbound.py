"""Whose streams are served: not those of who is kept away, nor of strangers beyond our places."""

from collections.abc import Awaitable, Callable

from node.membership.bans import Bans
from node.streams.deadline import loop_time
from node.streams.openings import Openings
from protocol.faults import Fault, FaultCode
from protocol.types import PeerId
from roles.ports.transport import Stream, StreamHandler


class Inbound:
    """Counts what peers open, and passes on the streams of those that ``admit`` takes.

    ``proven`` tells who has standing.
    """

    def __init__(
        self,
        proven: Callable[[PeerId], bool],
        bans: Bans,
        blame: Callable[[PeerId, Fault], None],
        disconnect: Callable[[PeerId], Awaitable[None]],
        admit: Callable[[PeerId], bool],
    ) -> None:
        self.openings = Openings(proven)
        """Of streams, by peers without standing."""
        self._bans = bans
        self._blame = blame
        self._disconnect = disconnect
        self._admit = admit
        self._leaving: set[PeerId] = set()

    def guarded(self, handler: StreamHandler) -> StreamHandler:
        """Return what serves a protocol with ``handler``."""

        async def serve(stream: Stream) -> None:
            peer, now = stream.peer, loop_time()
            if self.openings.opened(peer, now):
                self._blame(peer, Fault(FaultCode.OPENED_TOO_OFTEN))
            if self._bans.holds(peer, now):
                await self._send_away(peer)
            elif self._admit(peer):
                await handler(stream)

        return serve

    async def _send_away(self, peer: PeerId) -> None:
        """End the connection now, not at the next look: until then it opens more streams."""
        if peer not in self._leaving:
            self._leaving.add(peer)
            try:
                await self._disconnect(peer)
            finally:
                self._leaving.discard(peer)
