"""Who feeds whom: striped trees with different inner nodes, computed and never negotiated.

Shard ``i`` belongs to stripe ``i % stripes``, and each stripe has its own tree over all members.
A reachable member is inner in one tree only and a leaf in the others (SplitStream), so with
``fanout == stripes`` everyone uploads about what it downloads, the publisher one copy in all, and
the time tends to size / bandwidth. The order in which the roster is given does not matter.

Inside a stripe members stand in one line: inner nodes by falling capacity, then the leaves. A
parent always stands before its children, hence no cycles; the fallback candidates of a member stand
before it too, so members that wait for each other never form a ring.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from protocol.types import Digest, PeerId

FALLBACKS_MAX = 4
"""Candidates between the parent and the root: a guess. When a tenth of the members is gone, one of
five is alive with probability 0.99999; more would only delay the way to the root."""

_TREES_MAX = 64
"""Remembered: the stripes of a few versions over a few rosters; of a thousand members 0.2 MB."""


class ForestMember(NamedTuple):
    """One member of the roster; ``upload_bytes_per_second`` is what it declares."""

    peer: PeerId
    upload_bytes_per_second: int
    reachable: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """One stripe: child to parent in line order, without the root, and who can feed others."""

    parents: dict[PeerId, PeerId]
    reachable: tuple[PeerId, ...]
    reachable_before: dict[PeerId, int]
    """Of each member: how many of ``reachable``, from the first on, stand before it."""


@lru_cache(maxsize=_TREES_MAX)
def tree(
    members: tuple[ForestMember, ...],
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    stripes: int,
    fanout: int,
) -> Tree:
    """Return the tree of one stripe; ``ValueError`` when ``fanout`` or ``stripe`` is impossible."""
    if fanout < 2 or not 0 <= stripe < stripes:
        raise ValueError(f"no forest with fanout {fanout}, stripe {stripe} of {stripes}")
    by_peer = {member.peer: member for member in members if member.peer != root}
    salt = version_digest + stripe.to_bytes(4, "big")
    inner = _inner(list(by_peer.values()), version_digest, stripe, stripes, fanout)
    line = [member.peer for member in inner]
    placed = frozenset(line)
    line += sorted((p for p in by_peer if p not in placed), key=lambda p: _rank(salt, p))
    degrees = _degrees(inner, len(line), 2 * max(fanout, stripes))
    feeders = [root] * max(1, len(line) - sum(degrees))
    for member, degree in zip(inner, degrees, strict=True):
        feeders += [member.peer] * degree
    reachable: list[PeerId] = []
    reachable_before: dict[PeerId, int] = {}
    for peer in line:
        reachable_before[peer] = len(reachable)
        if by_peer[peer].reachable:
            reachable.append(peer)
    parents = dict(zip(line, feeders, strict=False))
    return Tree(parents, tuple(reachable), reachable_before)


def candidates(
    members: Sequence[ForestMember],
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    me: PeerId,
    stripes: int,
    fanout: int,
) -> list[PeerId]:
    """Return whom ``me`` asks for a stripe: the parent, up to ``FALLBACKS_MAX`` others, the root.

    The others are reachable members that stand before ``me`` in the stripe's line, in an order of
    its own, so the orphans of one parent spread out. Who is not a member asks like the last leaf.
    """
    if me == root:
        return []
    line = tree(tuple(members), root, version_digest, stripe, stripes, fanout)
    count = line.reachable_before.get(me, len(line.reachable))
    places = _drawn(version_digest + stripe.to_bytes(4, "big") + me.encode(), count)
    parent = line.parents.get(me)
    order = [peer for place in places if (peer := line.reachable[place]) != parent][:FALLBACKS_MAX]
    return list(dict.fromkeys([*([parent] if parent else []), *order, root]))


def _drawn(salt: bytes, count: int) -> list[int]:
    """Return up to one more than ``FALLBACKS_MAX`` places below ``count``, drawn by hash.

    A hash for each of a thousand members, to keep four, was a tenth of what a new version cost.
    """
    stream = blake3(salt).digest(8 * (FALLBACKS_MAX + 1))
    moved: dict[int, int] = {}  # the first steps of a Fisher-Yates shuffle
    drawn: list[int] = []
    for first in range(min(FALLBACKS_MAX + 1, count)):
        word = int.from_bytes(stream[8 * first : 8 * first + 8], "big")
        chosen = first + word % (count - first)
        drawn.append(moved.get(chosen, chosen))
        moved[chosen] = moved.get(first, first)
    return drawn


def _rank(salt: bytes, peer: PeerId) -> bytes:
    return blake3(salt + peer.encode()).digest()


def _inner(
    members: Sequence[ForestMember], version_digest: Digest, stripe: int, stripes: int, fanout: int
) -> list[ForestMember]:
    """Return the inner nodes of a stripe: as many as feed everybody at ``fanout`` each.

    Reachable members are dealt to the stripes in turn, strongest first, so every stripe gets about
    the same capacity; with fewer of them than stripes, one serves several stripes.
    """
    reachable = sorted(
        (member for member in members if member.reachable),
        key=lambda m: (-m.upload_bytes_per_second, _rank(version_digest, m.peer)),
    )
    if not reachable:
        return []
    needed = -(-(len(members) - 1) // fanout)
    return reachable[stripe % len(reachable) :: stripes][: max(1, needed)]


def _degrees(inner: Sequence[ForestMember], count: int, degree_max: int) -> list[int]:
    """Return how many children each inner node feeds; all but one of ``count`` if limits allow.

    Places go one by one to whoever then has the least to upload for its capacity (D'Hondt), which
    keeps the slowest uplink as fast as it can be. The limit is against members that overstate their
    capacity: with ``2 * stripes`` children a member uploads two copies. It rises only when so few
    can feed that the root would bear more than its share.
    """
    degree_max = max(degree_max, -(-count // (len(inner) + 1)))
    degrees = [0] * len(inner)
    capacities = [max(1, member.upload_bytes_per_second) for member in inner]
    queue = [(1 / capacity, place) for place, capacity in enumerate(capacities)]
    heapq.heapify(queue)
    for _ in range(count - 1):
        if not queue:
            break
        place = heapq.heappop(queue)[1]
        degrees[place] += 1
        if degrees[place] < degree_max:
            heapq.heappush(queue, ((degrees[place] + 1) / capacities[place], place))
    return degrees
