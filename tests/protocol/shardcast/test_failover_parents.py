import random

import pytest

from protocol.core import crypto
from protocol.core.types import PeerId
from protocol.shardcast import forest
from protocol.shardcast.forest import ForestMember, failover_parent, with_failover

ROOT = PeerId("root")
VERSION = crypto.digest(b"version")


def roster(count: int) -> list[ForestMember]:
    draw = random.Random(count)
    return [ForestMember(PeerId(f"p{n}"), 1000, draw.random() < 0.9) for n in range(count)]


def trees(members: list[ForestMember], stripes: int) -> list[dict[PeerId, PeerId]]:
    return [
        forest.tree(forest.hashed(members), ROOT, VERSION, stripe, stripes, stripes).parents
        for stripe in range(stripes)
    ]


@pytest.mark.parametrize(("count", "stripes"), [(30, 2), (90, 4), (200, 4), (200, 8)])
def test_orphans_go_to_those_who_fed_their_parent_and_seldom_to_the_same(
    count: int, stripes: int
) -> None:
    members = roster(count)
    parents = trees(members, stripes)
    together = orphans = 0
    for stripe in range(stripes):
        taken: dict[tuple[PeerId, PeerId], int] = {}
        for child, parent in parents[stripe].items():
            found = failover_parent(members, ROOT, VERSION, stripe, child, stripes, stripes)
            if parent == ROOT or found is None:
                assert parent == ROOT, "somebody feeds it in another stripe"
                continue
            assert found in [tree[parent] for tree in parents]
            above = found
            while above != ROOT:
                assert above != child, "they would wait for each other"
                above = parents[stripe][above]
            taken[parent, found] = taken.get((parent, found), 0) + 1
        orphans += sum(taken.values())
        together += sum(number - 1 for number in taken.values())
    assert orphans > count
    assert together < 0.35 * orphans


def test_the_failover_parent_comes_after_the_parent_and_once() -> None:
    a, b, c = PeerId("a"), PeerId("b"), PeerId("c")
    assert with_failover([a, b, ROOT], c) == [a, c, b, ROOT]
    assert with_failover([a, b, ROOT], ROOT) == [a, ROOT, b]
    assert with_failover([a, b], None) == [a, b]
    assert with_failover([], a) == []
