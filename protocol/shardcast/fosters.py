"""Who takes the children of a member that is gone: those who were feeding it.

When every uplink is full, an orphan that goes to any other parent slows that one's children and all
that hang on them. But whoever fed the dead member has a place free, in each stripe one, and these
are about as many as its children. So its children in a stripe go one each to those who fed it, in
that stripe and in the others: everybody has all stripes, a leaf of this one as well.
"""

from collections.abc import Sequence
from functools import lru_cache

from protocol.shardcast import forest
from protocol.shardcast.forest import ForestMember, ForestMembers
from protocol.types import Digest, PeerId

_SIBLINGS_MAX = 64


def foster(
    members: Sequence[ForestMember],
    root: PeerId,
    version_digest: Digest,
    stripe: int,
    me: PeerId,
    stripes: int,
    fanout: int,
) -> PeerId | None:
    """Return whom ``me`` asks for a stripe when its parent is gone; None when nobody has a place.

    Nobody that ``me`` feeds in this stripe: they would wait for each other.
    """
    everyone = forest.hashed(members)
    trees = [
        forest.tree(everyone, root, version_digest, number % stripes, stripes, fanout)
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


def with_foster(candidates: Sequence[PeerId], taken_in_by: PeerId | None) -> list[PeerId]:
    """Return the candidates of a stripe with the foster parent after the parent."""
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
    parents = forest.tree(members, root, version_digest, stripe, stripes, fanout).parents
    children: dict[PeerId, list[PeerId]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    return children
