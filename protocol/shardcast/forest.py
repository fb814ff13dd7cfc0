"""Distribution forest: striped trees with different inner nodes, computed without messages.

Shard ``i`` belongs to stripe ``i % stripes``, and each stripe has its own tree over all members. A
reachable member is an inner node in one tree only and a leaf in the others (SplitStream). With
``fanout == stripes`` each member uploads about what it downloads, the publisher one copy in total,
and the time tends to size / bandwidth. The result does not depend on the order of the roster.

In a stripe the members form a line: inner nodes by falling capacity, then the leaves. A parent
always precedes its children, so there are no cycles. A member's fallback candidates precede it too,
so members that wait for each other never form a ring.

If two rosters differ by a few records, their forests must differ by a few edges. So no position is
an index of a list. An inner node has *seats* in proportion to its capacity, at hashed points of a
circle. A member checks a few points of its own and takes a free seat. A member that joins or leaves
moves the members on its seats, and a few others (consistent hashing with bounded loads, Mirrokni,
Thorup and Zadimoghaddam, 2018).

If a member fails, its own parents become the failover parents of its children. When every uplink is
full, an orphan at any other parent slows that parent's whole subtree. But each parent of the failed
member has a free slot, one per stripe, about as many as the member had children. So its children in
a stripe are divided among its parents of all stripes, which all hold every stripe.
"""

import heapq
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import NamedTuple, overload

from blake3 import blake3
from typing_extensions import override

from protocol.core.types import Digest, PeerId, rate_class, rate_of_class

FALLBACKS_MAX = 4
"""Candidates between the parent and the root: a guess. If a tenth of the members is gone, one of
five is alive with probability 0.99999; more would only delay the request to the root."""

HELPERS_MAX = 6
"""In a model of 100 homes and 16 fast uplinks the last node had a version after 94 s with no
helper, 77 with 3, 74 with 6 and 74 with 12 (means of seeds 1 and 2). Each may be a new
connection."""

UNTRUSTED_SHARE = 4
UNTRUSTED_MIN = 1
"""Untrusted members with children: at most one per four trusted ones, and at least one: a guess. It
lets a new relay begin, and limits a crowd of new keys. With four, two that sent nothing delayed
every version of a testnet of eight, by 42 s at most: with their children, too many were late to
suspect any. ``bulk-20`` is no slower with one (1.95 and 1.95)."""

SMALL = 64
"""Up to this many inner nodes are divided evenly between the stripes, the strongest first. More of
them are even only in total; otherwise one member more or less would shift all after it."""

PROBES = 6
"""Points at which a member looks for a seat; with position and tie-break one BLAKE3 block."""

_WORDS = 2 + PROBES

_TREES_MAX = 64
"""Cached trees: the stripes of a few versions over a few rosters; 0.2 MB for a thousand members."""


class ForestMember(NamedTuple):
    """One member of the roster (capacity: ``protocol.membership.measured_capacity``).

    ``trusted``: whether its key has reputation. A member that is not ``reachable`` has no children.
    """

    peer: PeerId
    upload_bytes_per_second: int
    reachable: bool
    trusted: bool = True


class ForestMembers(Sequence[ForestMember]):
    """Members with a cached hash: hashing ten thousand at each lookup is too slow.

    Pass the same object again while nothing has changed.
    """

    __slots__ = ("_hash", "_members")

    def __init__(self, members: Iterable[ForestMember]) -> None:
        self._members = tuple(members)
        self._hash = hash(self._members)

    @override
    def __hash__(self) -> int:
        return self._hash

    @override
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ForestMembers) and self._members == other._members

    @override
    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, place: int) -> ForestMember: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[ForestMember, ...]: ...

    @override
    def __getitem__(self, place: int | slice) -> ForestMember | tuple[ForestMember, ...]:
        return self._members[place]

    @override
    def __iter__(self) -> Iterator[ForestMember]:
        return iter(self._members)


@dataclass(frozen=True, slots=True)
class Tree:
    """Tree of one stripe: child to parent in line order, without the root; possible parents."""

    parents: dict[PeerId, PeerId]
    feeders: tuple[PeerId, ...]
    feeders_before: dict[PeerId, int]
    """For each member, the number of ``feeders`` that precede it."""


def candidates(
    members: Sequence[ForestMember],
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    me: PeerId,
    stripes: int,
    fanout: int,
) -> list[PeerId]:
    """Return the sources of ``me`` for a stripe: parent, up to ``FALLBACKS_MAX`` others, root.

    The others are possible parents that precede ``me`` in the stripe's line, in an order of its
    own, so that the orphans of one parent spread out. A member without a position is treated like
    the last leaf. That includes unknown keys and untrusted members without children: many keys that
    never download would take all seats, and leave only the root for the others. Fast if ``members``
    is a ``ForestMembers`` that was used before.
    """
    if me == root:
        return []
    line = tree(hashed(members), root, version_digest, stripe, stripes, fanout)
    count = line.feeders_before.get(me, len(line.feeders))
    places = _drawn(version_digest + stripe.to_bytes(4, "big") + me.encode(), count)
    parent = line.parents.get(me)
    order = [peer for place in places if (peer := line.feeders[place]) != parent][:FALLBACKS_MAX]
    return list(dict.fromkeys([*([parent] if parent else []), *order, root]))


def extra_sources(
    members: Sequence[ForestMember],
    root: PeerId,
    version_digest: Digest,
    me: PeerId,
    stripes: int,
) -> list[PeerId]:
    """Return up to ``HELPERS_MAX`` other sources, drawn for ``me`` in proportion to their capacity.

    A late member requests chunks that they already hold: fast members finish first, and have most
    of their uplink left.
    """
    feeding, until = _shares(hashed(members), root, version_digest, stripes)
    words = _words(version_digest + b"help", me, HELPERS_MAX) if feeding else ()
    drawn = (feeding[bisect_right(until, word * until[-1] >> 64)] for word in words)
    return [peer for peer in dict.fromkeys(drawn) if peer != me]


def hashed(members: Sequence[ForestMember]) -> ForestMembers:
    """Return members with a cached hash, unchanged if they have one."""
    return members if isinstance(members, ForestMembers) else ForestMembers(members)


def _drawn(salt: bytes, count: int) -> list[int]:
    """Return up to one more than ``FALLBACKS_MAX`` indices below ``count``, drawn by hash.

    A hash for each of a thousand members, to keep four, was a tenth of the cost of a new version.
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


# One stripe


@lru_cache(maxsize=_TREES_MAX)
def tree(
    members: ForestMembers,
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    stripes: int,
    fanout: int,
) -> Tree:
    """Return the tree of one stripe; ``ValueError`` for an impossible ``fanout`` or ``stripe``."""
    if fanout < 2 or not 0 <= stripe < stripes:
        raise ValueError(f"no forest with fanout {fanout}, stripe {stripe} of {stripes}")
    may_feed, dealt = _dealt(members, root, version_digest, stripes)
    peers = dict.fromkeys(
        member.peer
        for member in members
        if member.peer != root and (member.trusted or member.peer in may_feed)
    )
    inner = dealt[stripe][: max(1, -(-(len(peers) - 1) // fanout))]
    salt = version_digest + stripe.to_bytes(4, "big")
    seats = _ChildSlots(salt, inner, len(peers), 2 * max(fanout, stripes))
    by_root = max(1, len(peers) - seats.count)  # the first in the line
    parents: dict[PeerId, PeerId] = {}
    for place, member in enumerate(inner):
        parents[member.peer] = (place >= by_root and seats.near_the_root(place)) or root
        seats.offer(place)
        del peers[member.peer]
    for words, peer in sorted((_words(salt, peer, _WORDS), peer) for peer in peers):
        parents[peer] = (len(parents) >= by_root and seats.first_free(words[2:])) or root
    feeders: list[PeerId] = []
    feeders_before: dict[PeerId, int] = {}
    for peer in parents:
        feeders_before[peer] = len(feeders)
        if peer in may_feed:
            feeders.append(peer)
    return Tree(parents, tuple(feeders), feeders_before)


@lru_cache(maxsize=_TREES_MAX)
def _dealt(
    members: ForestMembers, root: PeerId, version_digest: Digest, stripes: int
) -> tuple[frozenset[PeerId], tuple[tuple[ForestMember, ...], ...]]:
    """Return the possible parents, and the inner nodes of each stripe, strongest first.

    Each belongs to the stripe that its hash names, or to the next with room. If there are fewer of
    them than stripes, one serves several.
    """
    able = [member for member in members if member.reachable and member.peer != root]
    drawn = {member.peer: _words(version_digest, member.peer, 2) for member in able}
    feeding = sorted(
        _admitted(able, drawn),
        key=lambda m: (-rate_class(m.upload_bytes_per_second), not m.trusted, drawn[m.peer]),
    )
    lines: list[list[ForestMember]] = [[] for _ in range(stripes)]
    total = len(feeding)
    for place, member in enumerate(feeding):
        most = 1 + place // stripes
        if total > SMALL:
            most = min(most + isqrt(total), -(-total // stripes))
        stripe = drawn[member.peer][1] % stripes
        while len(lines[stripe]) >= most:
            stripe = (stripe + 1) % stripes
        lines[stripe].append(member)
    for stripe, line in enumerate(lines):
        if not line and feeding:
            line.append(feeding[stripe % len(feeding)])
    return frozenset(member.peer for member in feeding), tuple(map(tuple, lines))


def _admitted(
    able: Sequence[ForestMember], drawn: Mapping[PeerId, tuple[int, ...]]
) -> list[ForestMember]:
    """Return all trusted members, and the untrusted ones admitted to this version.

    An untrusted member counts at most as much as the third quartile of the trusted ones.
    """
    trusted = [member for member in able if member.trusted]
    untrusted = [member for member in able if not member.trusted]
    untrusted.sort(key=lambda member: drawn[member.peer])
    del untrusted[max(UNTRUSTED_MIN, len(trusted) // UNTRUSTED_SHARE) :]
    rates = sorted(member.upload_bytes_per_second for member in trusted)
    most = rates[3 * (len(rates) - 1) // 4] if rates else 0
    return [
        *trusted,
        *(
            m._replace(upload_bytes_per_second=min(m.upload_bytes_per_second, most))
            for m in untrusted
        ),
    ]


@lru_cache(maxsize=_TREES_MAX)
def _shares(
    members: ForestMembers, root: PeerId, version_digest: Digest, stripes: int
) -> tuple[tuple[PeerId, ...], tuple[int, ...]]:
    """Return the possible parents with the cumulative sums of their upload rates."""
    _, dealt = _dealt(members, root, version_digest, stripes)
    rates = {
        member.peer: max(1, member.upload_bytes_per_second) for line in dealt for member in line
    }
    return tuple(rates), tuple(accumulate(rates.values()))


class _ChildSlots:
    """Seats of one stripe's inner nodes on their circle, and their occupation."""

    def __init__(
        self, salt: bytes, inner: Sequence[ForestMember], count: int, degree_max: int
    ) -> None:
        degree_max = max(degree_max, -(-count // (len(inner) + 1)))
        self._inner = inner
        self._words = [_words(salt, member.peer, _WORDS + degree_max) for member in inner]
        degrees = self._degrees(count - 1, degree_max)
        seats = sorted(
            (point, place)
            for place, degree in enumerate(degrees)
            for point in self._words[place][_WORDS : _WORDS + degree]
        )
        self._points = [point for point, _ in seats]
        self._owners = [place for _, place in seats]
        self._owned: list[list[int]] = [[] for _ in inner]
        for seat, place in enumerate(self._owners):
            self._owned[place].append(seat)
        self._free = bytearray(len(seats))

    def _degrees(self, seats: int, degree_max: int) -> list[int]:
        """Return the number of seats of each inner node: ``seats`` in total, if limits allow.

        Each seat goes to the node with the fewest for its capacity (D'Hondt), which maximises the
        rate of the slowest uplink. A hash breaks ties, so that one more seat changes one member
        only. The limit bounds members that overstate their capacity: with ``2 * stripes`` children
        a member uploads two copies. It rises only if there are so few parents that the root would
        bear more than its share.
        """
        degrees = [0] * len(self._inner)
        weights = [
            rate_of_class(rate_class(member.upload_bytes_per_second)) for member in self._inner
        ]
        queue = [
            (1 / weight, words[1], place)
            for place, (weight, words) in enumerate(zip(weights, self._words, strict=True))
        ]
        heapq.heapify(queue)
        for _ in range(seats):
            if not queue:
                break
            _, word, place = heapq.heappop(queue)
            degrees[place] += 1
            if degrees[place] < degree_max:
                heapq.heappush(queue, ((degrees[place] + 1) / weights[place], word, place))
        return degrees

    @property
    def count(self) -> int:
        """Number of seats."""
        return len(self._free)

    def offer(self, place: int) -> None:
        """Free the seats of an inner node that has got a parent."""
        for seat in self._owned[place]:
            self._free[seat] = 1

    def near_the_root(self, place: int) -> PeerId | None:
        """Give an inner node the seat closest to the root among those next to its points."""
        points = self._words[place][2:_WORDS]
        found = [seat for point in points if (seat := self._next_free(point)) >= 0]
        best = min(found, key=lambda seat: (self._owners[seat], seat), default=-1)
        return self._take(best)

    def first_free(self, points: Sequence[int]) -> PeerId | None:
        """Give a leaf the first free seat at one of its points, else the next after its first."""
        seats = len(self._free)
        for point in points if seats else ():
            seat = bisect_left(self._points, point) % seats
            if self._free[seat]:
                return self._take(seat)
        return self._take(self._next_free(points[0]))

    def _next_free(self, point: int) -> int:
        """Return the first free seat from a point on, around the circle; -1 if there is none."""
        seat = self._free.find(1, bisect_left(self._points, point))
        return seat if seat >= 0 else self._free.find(1)

    def _take(self, seat: int) -> PeerId | None:
        if seat < 0:
            return None
        self._free[seat] = 0
        return self._inner[self._owners[seat]].peer


def _words(salt: bytes, peer: PeerId, count: int) -> tuple[int, ...]:
    """Return the first ``count`` 64-bit numbers, big-endian, of BLAKE3 over both."""
    return struct.unpack(f">{count}Q", blake3(salt + peer.encode()).digest(8 * count))


_SIBLINGS_MAX = 64


def failover_parent(
    members: Sequence[ForestMember],
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    me: PeerId,
    stripes: int,
    fanout: int,
) -> PeerId | None:
    """Return the failover parent of ``me`` in a stripe; None if there is none.

    Never a descendant of ``me`` in this stripe: they would wait for each other.
    """
    everyone = hashed(members)
    trees = [
        tree(everyone, root, version_digest, number % stripes, stripes, fanout)
        for number in range(stripe, stripe + stripes)
    ]
    parent = trees[0].parents.get(me)
    if parent is None or parent == root:
        return None
    siblings = _children(everyone, root, version_digest, stripe, stripes, fanout)[parent]
    feeders = [tree.parents[parent] for tree in trees]
    place = siblings.index(me) % len(feeders)
    for feeder in feeders[place:] + feeders[:place]:
        if feeder != parent and not _feeds(trees[0].parents, me, feeder):
            return feeder
    return None


def with_failover(candidates: Sequence[PeerId], taken_in_by: PeerId | None) -> list[PeerId]:
    """Return the candidates of a stripe with the failover parent after the parent."""
    if taken_in_by is None or not candidates:
        return list(candidates)
    return list(dict.fromkeys([candidates[0], taken_in_by, *candidates[1:]]))


def _feeds(parents: dict[PeerId, PeerId], above: PeerId, below: PeerId | None) -> bool:
    while below is not None and below != above:
        below = parents.get(below)
    return below == above


@lru_cache(maxsize=_SIBLINGS_MAX)
def _children(
    members: ForestMembers,
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    stripes: int,
    fanout: int,
) -> dict[PeerId, list[PeerId]]:
    parents = tree(members, root, version_digest, stripe, stripes, fanout).parents
    children: dict[PeerId, list[PeerId]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    return children
