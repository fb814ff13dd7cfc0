"""Which connections are spread over networks, and which addresses are kept over a restart.

Whoever wants to be all that we see makes keys, and those sit where its machines are: in few
networks. It may fill what connects to us; what we dial ourselves we spread, and it is what a later
start begins with.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from node.local.addresses import host_of, is_circuit, place_of, prefix_of
from protocol.types import PeerId

DIALLED_PER_NETWORK = 2
"""Members that we dial for want of peers in one network before others; a guess."""


def network_of(addresses: Iterable[str]) -> str | None:
    """Return the /16 (IPv6 /32) of the first address that tells one; local ones tell none."""
    places = (place_of(address) for address in addresses)
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
    heeded: AbstractSet[PeerId],
    count: int,
) -> list[PeerId]:
    """Return ``count`` of the peers, if there are so many, to end the connections of.

    Those come first that are not ``heeded``, then those that have most neighbours where they are,
    and of these who came last; who is nowhere known is nobody's neighbour. ``peers`` are in the
    order in which they came.
    """
    near: Counter[str] = Counter()
    ranked = []
    for came, peer in enumerate(peers):
        here = places.get(peer, ())[:1]
        near.update(here)
        ranked.append((peer not in heeded, near[here[0]] if here else 0, came, peer))
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
