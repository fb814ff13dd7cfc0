import math
import random

import pytest

from protocol import crypto
from protocol.shardcast import forest
from protocol.shardcast.forest import FALLBACKS_MAX, ForestMember, candidates
from protocol.types import PeerId

ROOT = PeerId("root")
VERSION = crypto.digest(b"version")
SHAPES = [(2, 2), (4, 4), (3, 5), (8, 2), (1, 4)]


def roster(count: int, *, capacity: int = 1000, unreachable: int = 0) -> list[ForestMember]:
    return [ForestMember(PeerId(f"p{n}"), capacity, n >= unreachable) for n in range(count)]


def tree(members: list[ForestMember], *place) -> dict[PeerId, PeerId]:
    return forest.tree(tuple(members), *place).parents


def uneven(count: int, seed: int) -> list[ForestMember]:
    draw = random.Random(seed)
    return [
        ForestMember(PeerId(f"p{n}"), draw.choice([0, 10, 100, 1000, 10**9]), draw.random() < 0.7)
        for n in range(count)
    ]


def depth(parents: dict[PeerId, PeerId], peer: PeerId) -> int:
    hops = 0
    while peer != ROOT:
        peer = parents[peer]
        hops += 1
        assert hops <= len(parents), "a cycle"
    return hops


def children(parents: dict[PeerId, PeerId]) -> dict[PeerId, int]:
    counts: dict[PeerId, int] = {}
    for parent in parents.values():
        counts[parent] = counts.get(parent, 0) + 1
    return counts


@pytest.mark.parametrize(("stripes", "fanout"), SHAPES)
def test_every_stripe_is_a_shallow_tree_over_everybody(stripes: int, fanout: int) -> None:
    for count in range(65):
        members = roster(count)
        for stripe in range(stripes):
            parents = tree(members, ROOT, VERSION, stripe, stripes, fanout)
            assert sorted(parents) == sorted(member.peer for member in members)
            deepest = max((depth(parents, peer) for peer in parents), default=0)
            assert deepest <= 2 + math.ceil(math.log(max(count, 2), fanout))


@pytest.mark.parametrize("seed", range(40))
def test_uneven_rosters_make_trees_in_which_only_reachable_members_feed(seed: int) -> None:
    for count in range(0, 65, 7):
        members = uneven(count, seed)
        reachable = {member.peer for member in members if member.reachable}
        for stripe in range(4):
            parents = tree(members, ROOT, VERSION, stripe, 4, 4)
            assert len(parents) == count
            assert all(depth(parents, peer) for peer in parents)
            assert reachable | {ROOT} >= set(parents.values())


@pytest.mark.parametrize(("stripes", "fanout"), [(2, 2), (4, 4), (3, 5), (8, 2)])
def test_each_member_is_inner_in_one_stripe_and_uploads_what_it_downloads(
    stripes: int, fanout: int
) -> None:
    for count in range(stripes, 65):
        inner: dict[PeerId, int] = {}
        uploads: dict[PeerId, int] = {}
        for stripe in range(stripes):
            parents = tree(roster(count), ROOT, VERSION, stripe, stripes, fanout)
            for peer, degree in children(parents).items():
                inner[peer] = inner.get(peer, 0) + 1
                uploads[peer] = uploads.get(peer, 0) + degree
        uploads_root = uploads.pop(ROOT)
        inner.pop(ROOT)
        assert max(inner.values(), default=1) == 1
        assert max(uploads.values(), default=0) <= 2 * max(fanout, stripes)
        if stripes >= fanout:
            assert uploads_root == stripes, "one copy in all"


@pytest.mark.parametrize(("stripes", "fanout"), [(2, 2), (4, 4), (3, 5), (2, 8)])
def test_as_few_are_inner_as_feed_everybody_with_the_fanout_each(stripes: int, fanout: int) -> None:
    for count in range(2 * stripes, 65, stripes):
        for stripe in range(stripes):
            feeding = children(tree(roster(count), ROOT, VERSION, stripe, stripes, fanout))
            assert feeding.pop(ROOT) == 1
            assert len(feeding) == math.ceil((count - 1) / fanout)
            assert max(feeding.values()) <= fanout


def test_leaves_stand_in_another_order_in_each_stripe_and_version() -> None:
    """Whoever is last in one stripe is last by chance, and not in all of them."""
    members = roster(48, unreachable=40)
    leaves = [f"p{n}" for n in range(40)]
    orders = [
        [peer for peer in tree(members, ROOT, version, stripe, 4, 4) if peer in leaves]
        for version in (VERSION, crypto.digest(b"next version"))
        for stripe in range(4)
    ]
    assert all(sorted(order) == sorted(leaves) for order in orders)
    assert len({tuple(order) for order in orders}) == 8
    assert len({order[-1] for order in orders}) > 1


def test_the_root_helps_when_few_can_feed() -> None:
    parents = tree(roster(40, unreachable=40), ROOT, VERSION, 0, 4, 4)
    assert children(parents) == {ROOT: 40}
    feeding = children(tree(roster(40, unreachable=39), ROOT, VERSION, 2, 4, 4))
    assert feeding[ROOT] <= 20
    assert feeding[PeerId("p39")] <= 20


def test_capacity_decides_who_stands_near_the_root_and_how_many_they_feed() -> None:
    members = [*roster(32, capacity=100), ForestMember(PeerId("big"), 10**6, reachable=True)]
    parents = tree(members, ROOT, VERSION, 0, 4, 4)
    assert parents[PeerId("big")] == ROOT
    assert children(parents)[PeerId("big")] == 8, "boasting is limited to twice the fanout"


def test_the_order_of_the_roster_does_not_matter() -> None:
    members = uneven(50, 7)
    shuffled = random.Random(1).sample(members, len(members))
    for stripe in range(4):
        for member in members:
            first = candidates(members, ROOT, VERSION, stripe, member.peer, 4, 4)
            assert first == candidates(shuffled, ROOT, VERSION, stripe, member.peer, 4, 4)


def test_candidates_are_the_parent_then_earlier_members_then_the_root() -> None:
    for count in (1, 2, 5, 20, 64):
        members = [*uneven(count, 3), ForestMember(ROOT, 10, reachable=True)]
        reachable = {member.peer for member in members if member.reachable}
        for stripe in range(4):
            parents = tree(members, ROOT, VERSION, stripe, 4, 4)
            line = list(parents)
            for peer, parent in parents.items():
                order = candidates(members, ROOT, VERSION, stripe, peer, 4, 4)
                assert order[0] == parent
                assert order.count(ROOT) == 1
                assert parent == ROOT or order[-1] == ROOT
                assert len(set(order)) == len(order) <= FALLBACKS_MAX + 2
                others = [name for name in order if name != ROOT]
                assert all(line.index(other) < line.index(peer) for other in others)
                assert all(other in reachable for other in others)


def test_orphans_of_one_parent_spread_over_the_others() -> None:
    members = roster(64)
    parents = tree(members, ROOT, VERSION, 0, 4, 4)
    parent = next(p for p in parents.values() if p != ROOT and list(parents).index(p) > 8)
    orphans = [peer for peer, feeder in parents.items() if feeder == parent]
    seconds = {candidates(members, ROOT, VERSION, 0, peer, 4, 4)[1] for peer in orphans}
    assert len(seconds) > 1


def test_strangers_to_the_roster_can_still_ask_and_the_root_asks_nobody() -> None:
    order = candidates(roster(20), ROOT, VERSION, 1, PeerId("stranger"), 4, 4)
    assert order[-1] == ROOT
    assert len(order) == FALLBACKS_MAX + 1
    assert candidates(roster(20), ROOT, VERSION, 1, ROOT, 4, 4) == []
    assert candidates([], ROOT, VERSION, 1, PeerId("stranger"), 4, 4) == [ROOT]


def test_a_forest_must_have_stripes_and_branches() -> None:
    for stripe, stripes, fanout in ((4, 4, 4), (-1, 4, 4), (0, 4, 1)):
        with pytest.raises(ValueError, match="no forest"):
            tree(roster(3), ROOT, VERSION, stripe, stripes, fanout)
