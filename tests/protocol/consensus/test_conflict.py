"""Two final chains that conflict are noticed in any order, and honest councils make none.

The model check of ``model.py`` asserts the second half on all of its schedules.
"""

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.consensus.conflict import PAGES_MAX, Conflict, ConflictWatch
from protocol.consensus.council import NotarisedPage
from tests.protocol.consensus.councils import KEPT_EPOCHS, PEERS, Councils, copied, proofs

COUNCILS = Councils(size=4)
OUT, NEW = PEERS[0], PEERS[5]
CHANGES = [None, {"joined": [NEW]}, {"removed": [OUT]}]


def branch(councils, common, gap, change=None, length=3, **others):
    """Return a tree with common pages, and then pages that all keys have signed.

    ``gap`` epochs are empty before them; the second of them changes the council.
    """
    tree = councils.tree()
    councils.run(tree, range(1, common + 1))
    for epoch in range(common + gap + 1, common + gap + length + 1):
        fields = dict(others)
        if change is not None and epoch == common + gap + 2:
            fields = change
        elif tree.tip().is_closing:
            fields = {}
        councils.extend(tree, epoch, **fields)
    return tree


def pages_of(*trees):
    """Return the notarised pages of trees, in the order in which a tree can take them."""
    found = {}
    for tree in trees:
        for one in (*(page for chain in tree.handovers for page in chain), *proofs(tree)):
            found.setdefault(one.page.digest, one)
    return sorted(found.values(), key=lambda one: one.page.message.epoch)


def shown(councils, pages) -> Conflict | None:
    """Show pages to a node, each alone and again until there is no news; return what it found."""
    tree = councils.tree()
    while any([tree.offer_chain((one,)) is True for one in pages]):  # noqa: C419 - offer all
        pass
    return tree.watch.conflict


def proves(councils, conflict, trees) -> bool:
    """Check the evidence with nodes that know the council and nothing else of the branches."""
    final = []
    for chain in (conflict.first, conflict.second):
        seat = chain[0].page.message.council
        assert {one.page.message.council for one in chain} == {seat}
        joining = councils.tree()
        if seat:
            source = next(tree for tree in trees if seat in tree.councils)
            for handover in source.handovers[: source.councils[seat].number]:
                joining.offer_chain(handover)
        assert joining.council.seat == seat
        assert joining.offer_chain(chain) is True
        final.append([one for one in chain[:-1] if one.page.message.reveals])
    first, second = ([one.page for one in pages] for pages in final)
    return any(
        one.digest != other.digest
        and (
            one.message.epoch == other.message.epoch
            or lies_between(one.message.epoch, second)
            or lies_between(other.message.epoch, first)
            or is_cut_off(one.message, other.message)
            or is_cut_off(other.message, one.message)
        )
        for one, other in product(first, second)
    )


def lies_between(epoch, pages) -> bool:
    """Return whether the final chain passes an epoch without a page in it."""
    epochs = {page.digest: page.message.epoch for page in pages} | {b"": -1}
    return any(
        epochs.get(page.message.parent, epoch) < epoch < page.message.epoch for page in pages
    )


def is_cut_off(one, other) -> bool:
    return one.changes_council and other.epoch > one.epoch


@settings(max_examples=60)
@given(
    common=st.integers(0, 4),
    gaps=st.tuples(st.integers(0, 9), st.integers(0, 3)),
    changes=st.tuples(st.sampled_from(CHANGES), st.sampled_from(CHANGES)),
    lengths=st.tuples(st.integers(4, 7), st.integers(4, 7)),
    rng=st.randoms(use_true_random=False),
)
def test_two_final_chains_are_noticed_in_any_order(common, gaps, changes, lengths, rng):
    first = branch(COUNCILS, common, gaps[0], changes[0], lengths[0])
    second = branch(COUNCILS, common, gaps[1], changes[1], lengths[1], commits=())
    pages = pages_of(first, second)
    rng.shuffle(pages)
    conflict = shown(COUNCILS, pages)
    assert conflict is not None
    assert proves(COUNCILS, conflict, (first, second))
    for one in (first, second):
        alone = pages_of(one)
        rng.shuffle(alone)
        assert shown(COUNCILS, alone) is None


@pytest.mark.parametrize("common", [0, 1])
@pytest.mark.parametrize("gap", [1, 3])
def test_every_order_of_two_short_chains_shows_the_conflict(common, gap):
    """Three pages each, of which the second is final, from the beginning or from a common page.

    Their epochs overlap, or the second chain begins after the first one.
    """
    first, second = branch(COUNCILS, common, 0), branch(COUNCILS, common, gap)
    pages = pages_of(first, second)
    assert len(pages) == 6 + common
    for order in permutations(pages):
        watch = ConflictWatch()
        for one in order:
            watch.add(one)
        assert watch.conflict is not None
    assert proves(COUNCILS, watch.conflict, (first, second))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_another_node_serves_a_node_that_has_a_final_page_shows_the_conflict(change, swapped):
    """Though the node would go on from a page whose ancestors it does not know."""
    branches = [branch(COUNCILS, 2, 0, change, 6), branch(COUNCILS, 2, 1, None, 9, commits=())]
    ours, theirs = reversed(branches) if swapped else branches
    tree = COUNCILS.tree()
    copied(ours, tree)
    assert tree.watch.conflict is None
    for chain in theirs.chains():
        tree.offer_chain(chain)
    assert tree.watch.conflict is not None
    assert proves(COUNCILS, tree.watch.conflict, branches)


def test_a_branch_that_is_not_final_is_no_conflict():
    tree = branch(COUNCILS, 2, 0, length=5)
    side = branch(COUNCILS, 2, 1, length=2, commits=())
    assert shown(COUNCILS, pages_of(tree, side)) is None


def test_keys_of_a_council_that_ended_long_ago_prove_nothing():
    """Anybody may hold them: they could stop every node, or fill its table."""
    tree = branch(COUNCILS, 2, 0, CHANGES[2], 6)
    COUNCILS.run(tree, range(9, 9 + KEPT_EPOCHS))
    assert tree.root.epoch > 4 + KEPT_EPOCHS
    watched = len(tree.watch.gauge)
    for gap in (KEPT_EPOCHS, KEPT_EPOCHS + 1):
        for chain in branch(COUNCILS, 2, gap, length=6, commits=()).chains():
            tree.offer_chain(chain)
    assert tree.watch.conflict is None
    assert len(tree.watch.gauge) == watched


def test_honest_changes_of_the_council_are_no_conflict():
    tree = COUNCILS.tree()
    for epoch in range(1, 90):
        leaves, joins = {"removed": [OUT]}, {"joined": [OUT]}
        change = {10: leaves, 20: joins, 40: leaves, 60: joins}.get(epoch, {})
        COUNCILS.extend(tree, epoch, **change)
        assert tree.watch.conflict is None
    assert tree.council.number == 4
    assert len(tree.watch.gauge) <= 2 * KEPT_EPOCHS


def test_the_evidence_has_canonical_bytes():
    first, second = branch(COUNCILS, 0, 0), branch(COUNCILS, 0, 1)
    watch = ConflictWatch()
    for one in pages_of(first, second):
        watch.add(one)
    assert sorted(watch.conflict.epochs) == [2, 3]
    assert all(one.page.envelope in watch.conflict.encoded() for one in watch.conflict.first)


def test_the_watched_pages_are_bounded():
    watch, tree = ConflictWatch(), branch(COUNCILS, 0, 0, length=4)
    page = pages_of(tree)[0]
    for number in range(PAGES_MAX + 10):
        other = COUNCILS.page(COUNCILS.tree().root, 1 + number)
        watch.add(NotarisedPage(other, page.votes))
    assert len(watch.gauge) == PAGES_MAX
    watch.forget(PAGES_MAX)
    assert len(watch.gauge) == 0
