"""Where members say that they are."""

from collections.abc import Callable

from node.local.addresses import peer_of
from protocol.membership import Roster
from protocol.types import PeerId, Role
from roles.ports.clock import Clock


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
        """Tell whether a member which relays gives an address as its own."""
        roster, peer = self._roster, peer_of(address)
        member = roster.get(peer) if roster is not None else None
        if roster is None or member is None or not roster.is_live(peer, self._clock.now()):
            return False
        message = member.record.message
        return Role.RELAY in message.roles and address in message.addresses
