"""Where the connected peers are: the address blocks of the other ends of their connections."""

from collections.abc import Hashable, Mapping
from contextlib import suppress

from node.local.addresses import place_of
from node.membership.dialler import CONNECT_SECONDS
from node.streams.deadline import within
from protocol.types import PeerId
from roles.ports.transport import Transport, TransportError


class Locations:
    """Asks the transport once for each peer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.places: Mapping[PeerId, tuple[str, ...]] = {}
        """The blocks of each peer, as of the last look; another mapping once they differ."""

    def block_of(self, peer: PeerId) -> Hashable:
        """Return where a connected peer is; itself where that is not known."""
        return self.places.get(peer) or peer

    async def look(self, connected: Mapping[PeerId, object]) -> None:
        """Ask where those are that are new, and forget who has left."""
        if self.places.keys() == connected.keys():
            return
        known = {peer: self.places[peer] for peer in connected if peer in self.places}
        with suppress(TransportError):  # asked again at the next look
            for peer in [peer for peer in connected if peer not in known]:
                found = await within(CONNECT_SECONDS, self._transport.remote_addresses(peer))
                if found:  # else it has just left
                    places = dict.fromkeys(map(place_of, found))
                    known[peer] = tuple(place for place in places if place is not None)
        self.places = known
