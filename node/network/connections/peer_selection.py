"""Peer selection: dial candidates, peers to prune, and anchors for the next start.

An eclipse attacker can create keys freely, but its machines are in few networks. It can fill the
inbound connections; a node therefore spreads its outbound connections over networks, and starts
from those peers after a restart. ``TrustedPeers`` caches which connected peers are trusted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from node.context import NodeContext
from node.local.addresses import address_block, host_of, is_circuit, prefix_of
from node.network.connections.address_book import AddressBook
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.membership.roster import Roster
from roles.ports.clock import Clock

DIALLED_PER_NETWORK = 2
"""Outbound peers in one network before other networks are preferred; a guess."""


def network_of(addresses: Iterable[str]) -> str | None:
    """Return the /16 (IPv6 /32) of the first public address, or None."""
    places = (address_block(address) for address in addresses)
    return next((prefix_of(place) for place in places if place is not None), None)


def crowded(networks: Iterable[str | None]) -> frozenset[str]:
    """Return the networks that have enough outbound peers."""
    counts = Counter(network for network in networks if network is not None)
    return frozenset(name for name, count in counts.items() if count >= DIALLED_PER_NETWORK)


def independent(addresses: Sequence[str], answered: Iterable[str], networks_max: int) -> list[str]:
    """Return the addresses in networks other than those of ``answered``.

    Empty once ``networks_max`` networks answered. An address without a network counts as its own.
    """
    met = {network_of([address]) or host_of(address) for address in answered}
    if len(met) >= networks_max:
        return []
    return [each for each in addresses if (network_of([each]) or host_of(each)) not in met]


def surplus(
    peers: Sequence[PeerId],
    places: Mapping[PeerId, Sequence[str]],
    above: AbstractSet[PeerId],
    count: int,
) -> list[PeerId]:
    """Return up to ``count`` peers to disconnect.

    Order: peers that are not ``above`` the gossip threshold first, then those with most peers in
    their address block, then the most recent. Peers with unknown address have no colocation count.
    ``peers`` are in order of arrival.
    """
    near: Counter[str] = Counter()
    ranked = []
    for came, peer in enumerate(peers):
        here = places.get(peer, ())[:1]
        near.update(here)
        ranked.append((peer not in above, near[here[0]] if here else 0, came, peer))
    return [peer for *_, peer in sorted(ranked, reverse=True)[:count]]


def anchors(peers: Sequence[PeerId], addresses: Mapping[PeerId, Sequence[str]]) -> list[str]:
    """Return addresses of ``peers`` in the order in which a later start should dial them.

    ``peers`` are ranked best first; the first peer of each network precedes further peers of the
    same network. Circuit addresses are omitted because they are short-lived.
    """
    seen: Counter[str | None] = Counter()
    ranked = []
    for place, peer in enumerate(peers):
        direct = [address for address in addresses.get(peer, ()) if not is_circuit(address)]
        network = network_of(direct)
        ranked.append((seen[network] if network is not None else 0, place, direct))
        seen[network] += 1
    return [address for *_, direct in sorted(ranked) for address in direct]


AGAIN_SECONDS = 15.0
"""Pause between two dials of one member."""

LOOKED_AT_MAX = 1024
"""Members inspected per draw: 1 to 2 ms."""


class Candidates:
    """Draws members from a roster, except ``own``; empty before the run is known."""

    def __init__(
        self, own: PeerId, roster: Roster | None, book: AddressBook, clock: Clock, rng: Rng
    ) -> None:
        self._own = own
        self._roster = roster
        self._book = book
        self._clock = clock
        self._rng = rng
        self._dialled_at: dict[PeerId, float] = {}

    def draw(
        self,
        now: float,
        connected: Collection[PeerId],
        chosen: Collection[PeerId],
        wanted: Callable[[PeerId], bool],
    ) -> PeerId | None:
        """Return the first wanted member from a random roster position on, or None.

        Prefers networks with too few outbound peers. Does not sample all members: looking at 1000
        to take two would cost more than all other work of the connection manager.
        """
        roster, wall_now = self._roster, self._clock.now()
        if roster is None:
            return None
        before = now - AGAIN_SECONDS
        self._dialled_at = {peer: at for peer, at in self._dialled_at.items() if at > before}
        full: frozenset[str] | None = None
        second_best = None
        some = roster.peers_from(self._rng.below(max(1, len(roster))))
        for peer in islice(some, LOOKED_AT_MAX):
            if peer in connected or peer in self._dialled_at or not wanted(peer):
                continue
            member = roster.get(peer)
            reachable = member is not None and member.record.message.reachable
            if reachable and peer != self._own and roster.is_live(peer, wall_now):
                if full is None:
                    full = crowded(map(self._network_of, chosen))
                if not full or self._network_of(peer) not in full:
                    self._dialled_at[peer] = now
                    return peer
                second_best = second_best or peer
        if second_best is not None:
            self._dialled_at[second_best] = now
        return second_best

    def _network_of(self, peer: PeerId) -> str | None:
        return network_of(self._book.addresses_of(peer))


_BEHIND_RELAYS = "behind relays"
"""One network for all peers with only circuit addresses."""


def network_of_peer(context: NodeContext, peer: PeerId) -> Hashable:
    """Return the network of a peer; the peer itself in a local swarm."""
    places = context.peers.places.get(peer)
    if places:
        return prefix_of(places[0])
    member = context.replica.roster.get(peer)
    addresses = () if member is None else member.record.message.addresses
    found = [place for place in map(address_block, addresses) if place is not None]
    if found and peer not in context.peers.connected:
        return prefix_of(found[0])
    return _BEHIND_RELAYS if any(map(is_circuit, addresses)) else peer


TARGET = 8
TARGET_IF_UNTRUSTED = 2
"""Trusted peers that a node wants: 8 if it is trusted itself, 2 if not. They ensure that untrusted
peers which fill its connections cannot isolate it. Guesses; 2 is the need of a gossip mesh."""

LOOK_SECONDS = 30.0
"""Lifetime of the cached result: half an epoch of one minute; reputation changes by epoch."""


class TrustedPeers:
    """Caches which connected peers are trusted (``trusted``)."""

    def __init__(self, trusted: Callable[[PeerId], bool]) -> None:
        self._trusted = trusted
        self._looked_at: dict[PeerId, object] = {}
        self._until = 0.0
        self.peers: frozenset[PeerId] = frozenset()
        """The trusted peers, as of the last update."""

    def look(self, connected: Mapping[PeerId, object], now: float) -> bool:
        """Update if the connected peers changed or the cache expired; return whether it did."""
        if connected == self._looked_at and now < self._until:
            return False
        if now >= self._until:
            self._looked_at, self._until = {}, now + LOOK_SECONDS
        stayed = self.peers & self._looked_at.keys() & connected.keys()
        self.peers = stayed.union(filter(self._trusted, connected.keys() - self._looked_at.keys()))
        self._looked_at = dict(connected)
        return True

    def few(self, own: PeerId) -> bool:
        """Return whether fewer trusted peers than wanted are connected to us (``own``)."""
        count = len(self.peers)
        return count < TARGET_IF_UNTRUSTED or (count < TARGET and self._trusted(own))
