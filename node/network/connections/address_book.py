"""Where members say that they are.

Where the connected peers are: the address blocks of the other ends of their connections.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress

from node.local.addresses import address_block, peer_of
from node.network.connections.dialer import CONNECT_SECONDS
from node.network.streams.deadline import within
from protocol.core.types import PeerId, Role
from protocol.membership.roster import Roster
from roles.ports.clock import Clock
from roles.ports.transport import Transport, TransportError


class AddressBook:
    """Reads the records of a roster; None before the run is known: then it is empty."""

    def __init__(self, roster: Roster | None, clock: Clock) -> None:
        self._roster = roster
        self._clock = clock

    def addresses_of(self, peer: PeerId) -> list[str]:
        """Return what a member says of itself; an address of somebody else is left out."""
        member = self._roster.get(peer) if self._roster is not None else None
        addresses = member.record.message.addresses if member is not None else ()
        return [address for address in addresses if peer_of(address) == peer]

    def reachable(self, wanted: Callable[[PeerId], bool] = lambda _peer: True) -> list[str]:
        """Return the addresses of all wanted members that say that they can be dialled."""
        records = self._roster.records() if self._roster is not None else []
        there = (record.signer for record in records if record.message.reachable)
        return [address for peer in filter(wanted, there) for address in self.addresses_of(peer)]

    def is_relay(self, address: str) -> bool:
        """Return whether a member which relays gives an address as its own."""
        roster, peer = self._roster, peer_of(address)
        member = roster.get(peer) if roster is not None else None
        if roster is None or member is None or not roster.is_live(peer, self._clock.now()):
            return False
        message = member.record.message
        return Role.RELAY in message.roles and address in message.addresses


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
                    places = dict.fromkeys(map(address_block, found))
                    known[peer] = tuple(place for place in places if place is not None)
        self.places = known
