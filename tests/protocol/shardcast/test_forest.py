import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core import crypto
from protocol.core.types import PeerId
from protocol.shardcast import forest
from protocol.shardcast.forest import FALLBACKS_MAX, ForestMember, ForestMembers, candidates

ROOT = PeerId("root")
VERSION = crypto.digest(b"version")
SHAPES = [(2, 2), (4, 4), (3, 5), (8, 2), (1, 4)]


def roster(count: int, *, capacity: int = 1000, unreachable: int = 0) -> list[ForestMember]:
    return [ForestMember(PeerId(f"p{n}"), capacity, n >= unreachable) for n in range(count)]


def tree(members: list[ForestMember], *place) -> dict[PeerId, PeerId]:
    return forest.tree(ForestMembers(members), *place).parents


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
            assert deepest <= 4 + math.ceil(math.log(max(count, 2), fanout))


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
            needed = math.ceil((count - 1) / fanout)
            assert needed - 1 <= len(feeding) <= needed
            assert max(feeding.values()) <= fanout + 1, "for a seat that stays free elsewhere"


def test_leaves_stand_in_another_order_in_each_stripe_and_version() -> None:
    """A node at the end of one stripe is there by chance, and not in all stripes."""
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


def test_peers_outside_the_roster_can_still_ask_and_the_root_asks_nobody() -> None:
    order = candidates(roster(20), ROOT, VERSION, 1, PeerId("untrusted"), 4, 4)
    assert order[-1] == ROOT
    assert len(order) == FALLBACKS_MAX + 1
    assert candidates(roster(20), ROOT, VERSION, 1, ROOT, 4, 4) == []
    assert candidates([], ROOT, VERSION, 1, PeerId("untrusted"), 4, 4) == [ROOT]


def edges(members: list[ForestMember], version=VERSION) -> set[tuple[int, PeerId, PeerId]]:
    return {
        (stripe, *edge)
        for stripe in range(4)
        for edge in tree(members, ROOT, version, stripe, 4, 4).items()
    }


@given(st.integers(0, 2**32), st.sampled_from([200, 400]), st.integers(1, 5))
@settings(max_examples=12)
def test_few_records_more_or_less_change_few_edges(seed: int, count: int, changed: int) -> None:
    """A list position as tree position would move four of five edges or more.

    The maximum in a thousand such rosters is a third, the median an eighth.
    """
    draw = random.Random(seed)
    members = [
        ForestMember(PeerId(f"p{n}"), draw.choice([10**6, 10**7, 10**8]), draw.random() < 0.7)
        for n in range(count)
    ]
    before = edges(members)
    gone = {member.peer for member in draw.sample(members, changed)}
    without = [member for member in members if member.peer not in gone]
    stronger = [
        member._replace(upload_bytes_per_second=10**9) if member.peer in gone else member
        for member in members
    ]
    for others in (without, stronger):
        moved = {edge for edge in before - edges(others) if edge[1] not in gone}
        assert len(moved) <= 0.45 * len(before)


def test_on_average_one_member_less_moves_what_it_fed_and_little_else() -> None:
    members = roster(600, unreachable=100)
    before = edges(members)
    moved = [len(before - edges([*members[:n], *members[n + 1 :]])) for n in range(0, 600, 40)]
    assert sum(moved) / len(moved) <= 0.1 * len(before)


def test_what_an_inner_node_feeds_is_in_proportion_to_what_it_can() -> None:
    draw = random.Random(3)
    members = [
        ForestMember(PeerId(f"p{n}"), draw.choice([4, 8, 16]) * 10**6, reachable=True)
        for n in range(400)
    ]
    capacity = {member.peer: member.upload_bytes_per_second for member in members}
    for stripe in range(4):
        feeding = children(tree(members, ROOT, VERSION, stripe, 4, 4))
        feeding.pop(ROOT)
        share = sum(feeding.values()) / sum(capacity[peer] for peer in feeding)
        assert max(count / capacity[peer] for peer, count in feeding.items()) <= 1.8 * share


def test_helpers_are_drawn_by_what_they_can_and_each_has_others() -> None:
    strong = {f"p{n}" for n in range(100, 110)}
    members = ForestMembers(
        [
            *(ForestMember(PeerId(f"p{n}"), 4_000_000, n % 2 == 0) for n in range(100)),
            *(ForestMember(PeerId(peer), 60_000_000, reachable=True) for peer in strong),
        ]
    )
    drawn: list[PeerId] = []
    for n in range(110):
        mine = forest.extra_sources(members, ROOT, VERSION, PeerId(f"p{n}"), 4)
        assert len(set(mine)) == len(mine) <= forest.HELPERS_MAX
        assert f"p{n}" not in mine
        drawn += mine
    share = sum(peer in strong for peer in drawn) / len(drawn)
    assert 0.65 < share < 0.85, "three quarters of what all can upload"
    assert len(set(drawn)) > 50, "and the others are asked too"
    assert all(int(peer[1:]) >= 100 or int(peer[1:]) % 2 == 0 for peer in drawn)
    assert forest.extra_sources(roster(5, unreachable=5), ROOT, VERSION, PeerId("p1"), 4) == []


@pytest.mark.parametrize("sybils", [50, 200, 1000])
@pytest.mark.parametrize("admitted", [False, True])
def test_new_keys_get_the_places_of_new_nodes_at_most(sybils: int, *, admitted: bool) -> None:
    """Sybils claim 2^53 B/s; ``admitted``: observers found them reachable, as every relay."""
    honest = roster(200, capacity=50_000_000)
    evil = [
        ForestMember(PeerId(f"evil{n}"), 2**53, reachable=admitted, trusted=False)
        for n in range(sybils)
    ]
    names = {member.peer for member in evil}
    members = ForestMembers([*honest, *evil])
    fed, cut_off, asked, helping, helped = 0, 0, 0, 0, 0
    for version in (VERSION, crypto.digest(b"next version")):
        for member in honest[:60]:
            helpers = forest.extra_sources(members, ROOT, version, member.peer, 4)
            helping += len(names.intersection(helpers))
            helped += len(helpers)
        for stripe in range(4):
            for member in honest[:60]:
                order = candidates(members, ROOT, version, stripe, member.peer, 4, 4)
                fed += order[0] in names
                cut_off += order != [ROOT] and names.issuperset(order[:-1])
                asked += 1
    assert helping <= (1.4 * 0.2 if admitted else 0) * helped
    # One untrusted node per four trusted ones, each counted with at most half of these.
    assert fed <= (1.4 * 0.2 if admitted else 0) * asked
    assert cut_off <= (0.02 if admitted else 0) * asked


@pytest.mark.parametrize("ghosts", [1, 20, 2000])
def test_untrusted_keys_that_feed_nobody_change_nothing_for_the_others(ghosts: int) -> None:
    honest = roster(20)
    more = [ForestMember(PeerId(f"ghost {n}"), 10**9, False, False) for n in range(ghosts)]
    for stripe in range(4):
        place = ROOT, VERSION, stripe, 4, 4
        assert tree([*honest, *more], *place) == tree(honest, *place)


def test_a_forest_must_have_stripes_and_branches() -> None:
    for stripe, stripes, fanout in ((4, 4, 4), (-1, 4, 4), (0, 4, 1)):
        with pytest.raises(ValueError, match="no forest"):
            tree(roster(3), ROOT, VERSION, stripe, stripes, fanout)
