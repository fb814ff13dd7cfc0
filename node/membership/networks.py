"""The network of a peer: what it shares with peers that are probably the same person's."""

from collections.abc import Hashable

from node.context import NodeContext
from node.local.addresses import is_circuit, place_of, prefix_of
from protocol.types import PeerId

_BEHIND_RELAYS = "behind relays"
"""One network for all peers whose place nobody can tell."""


def network_of(context: NodeContext, peer: PeerId) -> Hashable:
    """Return the network of a peer; the peer itself in a local swarm."""
    places = context.peers.places.get(peer)
    if places:
        return prefix_of(places[0])
    member = context.replica.roster.get(peer)
    addresses = () if member is None else member.record.message.addresses
    found = [place for place in map(place_of, addresses) if place is not None]
    if found and peer not in context.peers.connected:
        return prefix_of(found[0])
    return _BEHIND_RELAYS if any(map(is_circuit, addresses)) else peer
