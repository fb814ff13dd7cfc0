"""Which member a node dials next, of those whose records say that they can be dialled.

Which connections are spread over networks, and which addresses are kept over a restart.

Whoever wants to be all that we see makes keys, and those sit where its machines are: in few
networks. It may fill what connects to us; what we dial ourselves we spread, and it is what a later
start begins with.

The network of a peer: what it shares with peers that are probably the same person's.

Which of the connected peers have standing.
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
"""Members that we dial for want of peers in one network before others; a guess."""


def network_of(addresses: Iterable[str]) -> str | None:
    """Return the /16 (IPv6 /32) of the first address that tells one; local ones tell none."""
    places = (address_block(address) for address in addresses)
    return next((prefix_of(place) for place in places if place is not None), None)


def crowded(networks: Iterable[str | None]) -> frozenset[str]:
    """Return the networks of which enough have been dialled."""
    counts = Counter(network for network in networks if network is not None)
    return frozenset(name for name, count in counts.items() if count >= DIALLED_PER_NETWORK)


def independent(addresses: Sequence[str], answered: Iterable[str], networks_max: int) -> list[str]:
    """Return the addresses that are of other networks than those which have answered.

    None once these are of so many. An address that tells no network is one of its own.
    """
    met = {network_of([address]) or host_of(address) for address in answered}
    if len(met) >= networks_max:
        return []
    return [each for each in addresses if (network_of([each]) or host_of(each)) not in met]


def surplus(
    peers: Sequence[PeerId],
    places: Mapping[PeerId, Sequence[str]],
    gossip_ok: AbstractSet[PeerId],
    count: int,
) -> list[PeerId]:
    """Return ``count`` of the peers, if there are so many, to end the connections of.

    Those come first that are not ``gossip_ok``, then those that have most neighbours where they
    are, and of these who came last; who is nowhere known is nobody's neighbour. ``peers`` are in
    the order in which they came.
    """
    near: Counter[str] = Counter()
    ranked = []
    for came, peer in enumerate(peers):
        here = places.get(peer, ())[:1]
        near.update(here)
        ranked.append((peer not in gossip_ok, near[here[0]] if here else 0, came, peer))
    return [peer for *_, peer in sorted(ranked, reverse=True)[:count]]


def anchors(peers: Sequence[PeerId], addresses: Mapping[PeerId, Sequence[str]]) -> list[str]:
    """Return the addresses of peers in the order in which a later start should try them.

    Of ``peers``, the best first, those come first that are alone in their network so far. None
    through a relay: it does not last so long.
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
"""Until a member is dialled again."""

LOOKED_AT_MAX = 1024
"""Members looked at for one to dial: a millisecond or two."""


class Candidates:
    """Draws members from a roster, ``own`` never; none before the run is known."""

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
        """Return a wanted member to dial, the first one from a random place in the roster on.

        One of a network in which we have not chosen enough yet, if there is such a member.
        Not a sample of all of them: looking at a thousand members to take two costs more than the
        rest of a table's work.
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
"""One network for all peers whose place nobody can tell."""


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
NEWCOMERS_TARGET = 2
"""To how many peers with standing a node is connected, if there are so many, that has standing
itself, and that has none yet: strangers that fill its connections must not come between. Guesses;
the second is what a gossip mesh needs."""

LOOK_SECONDS = 30.0
"""Until the same peers are looked at again: half of an epoch of a minute, by which standing
changes."""


class TrustedPeers:
    """Remembers what ``trusted`` said of the connected peers."""

    def __init__(self, trusted: Callable[[PeerId], bool]) -> None:
        self._proven = trusted
        self._looked_at: dict[PeerId, object] = {}
        self._until = 0.0
        self.peers: frozenset[PeerId] = frozenset()
        """Those that have it, as of the last look."""

    def look(self, connected: Mapping[PeerId, object], now: float) -> bool:
        """Look, if others are connected than at the last look or it is long ago; tell whether."""
        if connected == self._looked_at and now < self._until:
            return False
        if now >= self._until:
            self._looked_at, self._until = {}, now + LOOK_SECONDS
        stayed = self.peers & self._looked_at.keys() & connected.keys()
        self.peers = stayed.union(filter(self._proven, connected.keys() - self._looked_at.keys()))
        self._looked_at = dict(connected)
        return True

    def few(self, own: PeerId) -> bool:
        """Return whether we (``own``) are connected to fewer than we want."""
        count = len(self.peers)
        return count < NEWCOMERS_TARGET or (count < TARGET and self._proven(own))
