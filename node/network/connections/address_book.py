"""Address book of members, and address blocks of connected peers."""

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
    """Reads addresses from a roster; empty while the roster is None (run unknown)."""

    def __init__(self, roster: Roster | None, clock: Clock) -> None:
        self._roster = roster
        self._clock = clock

    def addresses_of(self, peer: PeerId) -> list[str]:
        """Return a member's own addresses; addresses of other peers are omitted."""
        member = self._roster.get(peer) if self._roster is not None else None
        addresses = member.record.message.addresses if member is not None else ()
        return [address for address in addresses if peer_of(address) == peer]

    def reachable(self, wanted: Callable[[PeerId], bool] = lambda _peer: True) -> list[str]:
        """Return the addresses of wanted members whose records claim reachability."""
        records = self._roster.records() if self._roster is not None else []
        there = (record.signer for record in records if record.message.reachable)
        return [address for peer in filter(wanted, there) for address in self.addresses_of(peer)]

    def is_relay(self, address: str) -> bool:
        """Return whether a live relay lists this address as its own."""
        roster, peer = self._roster, peer_of(address)
        member = roster.get(peer) if roster is not None else None
        if roster is None or member is None or not roster.is_live(peer, self._clock.now()):
            return False
        message = member.record.message
        return Role.RELAY in message.roles and address in message.addresses


class Locations:
    """Address blocks of the remote ends of connections; asks the transport once per peer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.places: Mapping[PeerId, tuple[str, ...]] = {}
        """Address blocks by peer, as of the last poll; replaced when it changes."""

    def block_of(self, peer: PeerId) -> Hashable:
        """Return the address block of a connected peer; the peer itself if unknown."""
        return self.places.get(peer) or peer

    async def look(self, connected: Mapping[PeerId, object]) -> None:
        """Look up new peers and drop disconnected ones."""
        if self.places.keys() == connected.keys():
            return
        known = {peer: self.places[peer] for peer in connected if peer in self.places}
        with suppress(TransportError):  # retried at the next poll
            for peer in [peer for peer in connected if peer not in known]:
                found = await within(CONNECT_SECONDS, self._transport.remote_addresses(peer))
                if found:  # empty: it has just disconnected
                    places = dict.fromkeys(map(address_block, found))
                    known[peer] = tuple(place for place in places if place is not None)
        self.places = known
