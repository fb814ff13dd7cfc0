"""Commits that pages list, and the pages that draw their committees."""

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.page_node import DUE_MAX, OFFERED_MAX
from protocol.consensus.pages import PageTree
from protocol.core.crypto import digest
from protocol.messages import LISTED_MAX
from tests.protocol.consensus.councils import (
    KEPT_EPOCHS,
    PEERS,
    Councils,
    commit,
    copied,
    summary,
    vote_on,
)

WORLD = Councils(size=4, era_epochs=10)
A, B, C, D = PEERS[:4]


def drawn_by(nodes, one) -> list[int]:
    """Return the epochs of the pages that draw a commit's committee."""
    return [node.epoch for node in nodes if one in node.drawn]


# Draws


def test_the_next_page_that_draws_committees_draws_those_of_the_listed_commits():
    tree = WORLD.tree()
    nodes = WORLD.run(tree, [0, 1])
    nodes += [WORLD.extend(tree, 2, silent=3)]
    nodes += [WORLD.extend(tree, 5), WORLD.extend(tree, 6, commits=())]
    nodes += WORLD.run(tree, [7])
    assert [node.draws for node in nodes] == [True, True, False, True, True, True]
    for listed, drawn in {0: 1, 1: 5, 2: 5, 5: 6}.items():
        assert drawn_by(nodes, commit(listed)) == [drawn]
        assert tree.drawing(commit(listed)).epoch == drawn
    assert tree.drawing(commit(7)) is tree.drawing(commit(6)) is None
    assert [set(node.due) for node in nodes[-2:]] == [set(), {commit(7)}]
    for node in nodes:
        assert tree.page(node.digest) is node, "drawing or not: a certificate may name it"
        assert node.drawn_known
        assert node.due_known


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (4, 2), (5, 3), (8, 4), (10, 4)])
def test_half_of_the_drawn_members_must_reveal(size, needed):
    world = Councils(size=size)
    drawn = min(size, 8)
    for reveals in range(drawn + 1):
        tree = world.tree()
        world.extend(tree, 0)
        node = world.extend(tree, 1, silent=drawn - reveals)
        assert node.draws is (reveals >= needed)
        assert (tree.drawing(commit(0)) is node) is node.draws
        assert set(node.due) == {commit(1), *(() if node.draws else (commit(0),))}


def test_a_page_draws_only_once_it_is_notarised():
    tree = WORLD.tree()
    WORLD.extend(tree, 0)
    page = WORLD.page(tree.tip(), 1)
    for one in (page, *(vote_on(peer, page) for peer in (A, B))):
        tree.offer_page(one) if one is page else tree.offer_vote(one)
    assert tree.drawing(commit(0)) is tree.page(page.digest) is None
    tree.offer_vote(vote_on(C, page))
    assert tree.drawing(commit(0)) is tree.page(page.digest) is tree.get(page.digest)


def test_each_branch_draws_the_commits_of_its_own_pages():
    tree = WORLD.tree()
    first = WORLD.extend(tree, 0)
    fork = WORLD.extend(tree, 1, first)
    chain = [WORLD.extend(tree, 2, first)]
    assert fork.beacon != chain[0].beacon
    assert tree.drawing(commit(0)) is chain[0], "of two tips the newer one"
    assert tree.drawing(commit(0), fork) is fork
    fork2 = WORLD.extend(tree, 3, fork)
    assert tree.drawing(commit(0)) is fork
    assert tree.drawing(commit(1)) is fork2
    assert set(fork2.drawn) == {commit(1)}
    assert [tree.is_listed(commit(1), tip) for tip in (fork2, chain[0])] == [True, False]
    assert [tree.is_listed(commit(2), tip) for tip in (fork2, chain[0])] == [False, True]
    for epoch in (4, 5, 6):
        chain.append(WORLD.extend(tree, epoch, chain[-1]))
    assert set(chain[1].drawn) == {commit(2)}
    assert tree.root is chain[2]
    assert tree.drawing(commit(0)) is chain[0], "also after it is final"
    assert tree.drawing(commit(1)) is None, "its branch has ended"
    assert not tree.is_listed(commit(1), chain[-1]), "it may be listed again"
    assert tree.page(fork.digest) is fork, "a certificate may name it"
    assert set(tree.page(fork2.digest).drawn) == {commit(1)}


def test_pages_and_their_lists_are_kept_for_a_while():
    tree = WORLD.tree()
    nodes = WORLD.run(tree, range(KEPT_EPOCHS + 20))
    oldest, tip = tree.root.epoch - KEPT_EPOCHS, tree.tip()
    for epoch in range(len(nodes) - 1):
        expected = nodes[epoch + 1] if epoch + 1 > oldest else None
        assert tree.drawing(commit(epoch)) is expected
        assert tree.is_listed(commit(epoch), tip) is (epoch > oldest)
        assert tree.page(nodes[epoch].digest) is nodes[epoch], "old evidence may name it"
        assert (nodes[epoch] in tree.notarised()) is (epoch > oldest)


@pytest.mark.parametrize("silent", [0, 3])
def test_an_old_page_is_served_with_those_that_list_what_it_draws(silent):
    tree, late = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(tree, [0, 1])
    nodes += [WORLD.extend(tree, 2, silent=silent), WORLD.extend(tree, 3)]
    WORLD.run(tree, range(4, KEPT_EPOCHS + 20))
    named = nodes[3]
    served = [one for one in tree.notarised([named.digest]) if one.epoch < 10]
    assert [one.epoch for one in served] == ([1, 2, 3] if silent else [2, 3])
    for chain in tree.chains([named.digest]):
        late.offer_chain(chain)
    again = late.page(named.digest)
    assert again.drawn_known
    assert set(again.drawn) == set(named.drawn)
    assert commit(2) in again.drawn


def test_the_oldest_waiting_commits_are_dropped():
    tree = WORLD.tree()
    pages = DUE_MAX // LISTED_MAX + 1
    lists = [
        tuple(digest(b"%d of %d" % (number, epoch)) for number in range(LISTED_MAX))
        for epoch in range(pages)
    ]
    for epoch, listed in enumerate(lists):
        node = WORLD.extend(tree, 2 * epoch, silent=4, commits=listed)
    drawing = WORLD.extend(tree, 2 * pages)
    every = [one for listed in lists for one in listed]
    assert len(every) > DUE_MAX == len(node.due)
    assert list(drawing.drawn) == every[-DUE_MAX:]


# Councils


def redraw_world():
    """Return a tree whose council page 11 draws anew; page 10 lists a commit and draws none."""
    tree = WORLD.tree()
    WORLD.run(tree, range(10))
    WORLD.extend(tree, 10, silent=3)
    seats = {A: 2, PEERS[5]: 4, PEERS[6]: 1}
    seating = WORLD.extend(tree, 11, draw=seats)
    WORLD.run(tree, [12])
    assert tree.council.seats == tuple(seats[peer] for peer in sorted(seats))
    return tree, seating


@pytest.mark.parametrize("silent", [0, 3])
def test_the_next_council_draws_the_commits_that_the_seating_page_leaves_due(silent):
    tree = WORLD.tree()
    WORLD.run(tree, [8, 9])
    seating = WORLD.extend(tree, 11, draw={PEERS[5]: 4, PEERS[6]: 1}, silent=silent)
    WORLD.run(tree, [12, 14, 15, 16])
    assert tree.root.digest == seating.digest
    first = WORLD.extend(tree, 17)
    assert set(first.drawn) == ({commit(9)} if silent else set())
    assert first.council.seats_total == 5
    before = tree.drawing(commit(9))
    assert before is (first if silent else seating)
    assert before.council.seats_total == (5 if silent else 4), "the council of its own page"
    WORLD.run(tree, [18, 19])
    assert tree.root.epoch == 18
    assert tree.drawing(commit(9)) is before
    assert all(tree.is_listed(commit(epoch), tree.tip()) for epoch in (8, 9, 17))


def test_a_late_joiner_follows_a_redraw():
    tree, _ = redraw_world()
    for epochs in ([], [14], [16, 17, 18, 19]):
        WORLD.run(tree, epochs)
        late = WORLD.tree()
        copied(tree, late)
        assert summary(late) == summary(tree)
        assert late.council.era == 1
        for epoch in range(20):
            one, other = tree.drawing(commit(epoch)), late.drawing(commit(epoch))
            assert (one and one.digest) == (other and other.digest)
            assert (one and one.council) == (other and other.council)
        assert late.drawing(commit(9)).epoch == 11
    assert late.drawing(commit(14)).epoch == 16


def test_a_page_after_a_redraw_needs_the_seats_of_the_new_council():
    tree, _ = redraw_world()
    page = WORLD.page(tree.root, 14)
    assert tree.offer_page(page) is True
    node, heavy = tree.get(page.digest), PEERS[5]
    for peer, is_enough in ((PEERS[6], False), (heavy, True)):
        assert tree.offer_vote(vote_on(peer, page)) is True
        assert node.is_notarised is is_enough, "one of seven, and five"


def test_a_second_proposal_needs_a_third_of_the_seats():
    tree, _ = redraw_world()
    page, second = (WORLD.page(tree.root, 14, silent=number) for number in (0, 1))
    assert tree.offer_page(page) is True
    tree.offer_vote(vote_on(PEERS[6], second))
    assert tree.offer_page(second).code == "equivocation", "one of seven"
    tree.offer_vote(vote_on(A, second))
    assert tree.offer_page(second) is True, "three of seven"


def test_the_commits_of_a_recovery_are_drawn_by_those_that_stay():
    world = Councils(size=7)
    tree, alive = world.tree(), PEERS[:4]
    world.run(tree, range(3))
    late = world.extend(tree, 3, silent=7)
    seating = world.extend(tree, 14, voters=alive, removed=PEERS[4:7], silent=7)
    assert seating.is_recovery
    assert set(late.due) == {commit(2), commit(3)}
    world.run(tree, [15, 16], voters=alive)
    assert tree.council.members == tuple(alive)
    first = world.extend(tree, 18)
    assert set(first.drawn) == {commit(2), commit(3)}
    for number in (2, 3):
        assert tree.drawing(commit(number)) is first
    joiner = world.tree()
    copied(tree, joiner)
    assert summary(joiner) == summary(tree)
    assert joiner.drawing(commit(2)).digest == first.digest


# Listing again


def test_a_commit_keeps_its_committee_if_it_is_listed_again():
    """Honest members refuse such a page; a council that votes for it gives nobody a second draw."""
    tree = WORLD.tree()
    nodes = WORLD.run(tree, [0, 2])
    nodes += [WORLD.extend(tree, 4, commits=(commit(0),)), WORLD.extend(tree, 6)]
    for epoch in (7, 8, 9):
        assert commit(0) in nodes[3].drawn
        assert tree.drawing(commit(0)) is nodes[1], epoch
        WORLD.run(tree, [epoch])
    assert tree.root.epoch == 8


def test_a_restarted_node_knows_the_commits_of_final_pages():
    tree = WORLD.tree()
    WORLD.run(tree, range(12))
    again = WORLD.tree()
    copied(tree, again)
    assert again.root.digest == tree.root.digest
    tip = again.tip()
    for epoch in range(12):
        assert again.is_listed(commit(epoch), tip)
        drawing = again.drawing(commit(epoch))
        assert (drawing and drawing.epoch) == (epoch + 1 if epoch < 11 else None)
    assert not again.is_listed(commit(12), tip)


def test_a_node_that_jumped_knows_the_commits_once_it_has_the_pages():
    tree, away = WORLD.tree(), WORLD.tree()
    WORLD.run(tree, range(12))
    away.offer_chain(tree.newest)
    assert away.root.epoch == 10
    tip = away.tip()
    assert [away.is_listed(commit(epoch), tip) for epoch in (4, 8, 9)] == [False, False, True]
    pages = tree.notarised()
    for node in pages[6:]:
        away.offer_chain([node.proof])
    listed = {epoch for epoch in range(12) if away.is_listed(commit(epoch), tip)}
    assert listed == set(range(6, 12))
    assert away.drawing(commit(5)) is None, "page 6 is the oldest here: it may draw others"
    away.offer_chain([pages[5].proof])
    assert away.drawing(commit(5)).epoch == 6
    for node in pages[:4]:
        away.offer_chain([node.proof])
    assert not away.is_listed(commit(1), tip), "page 4 is missing"
    away.offer_chain([pages[4].proof])
    assert all(away.is_listed(commit(epoch), tip) for epoch in range(12))


def test_a_node_that_jumped_learns_what_later_pages_draw():
    tree, away = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(tree, [0])
    nodes += [WORLD.extend(tree, epoch, silent=3) for epoch in (2, 4, 5, 6, 7)]
    away.offer_chain(tree.newest)
    assert (away.root.epoch, away.root.due_known) == (6, False)
    nodes += [WORLD.extend(tree, 9)]
    away.offer_chain([nodes[-1].proof])
    assert away.tip().digest == nodes[-1].digest
    assert away.drawing(commit(4)) is None
    assert away.drawing(commit(6)).digest == nodes[-1].digest, "its list is here"
    for node in nodes[:3]:
        away.offer_chain([node.proof])
    for epoch in (0, 2, 4, 6, 7):
        assert away.drawing(commit(epoch)).digest == nodes[-1].digest
    assert summary(away)[:-4] == summary(tree)[:-4]


def test_the_pages_of_other_branches_list_nothing_in_the_final_chain():
    tree = WORLD.tree()
    first = WORLD.extend(tree, 0)
    WORLD.extend(tree, 1, first, commits=(commit(99),))
    last = WORLD.extend(tree, 2, first)
    for epoch in (3, 4):
        last = WORLD.extend(tree, epoch, last)
    assert tree.root.epoch == 3
    assert not tree.is_listed(commit(99), last)
    again = WORLD.tree()
    copied(tree, again)
    assert not again.is_listed(commit(99), again.tip())


def test_an_outcome_is_in_the_pages_from_the_one_that_names_it_on():
    tree = WORLD.tree()
    WORLD.run(tree, [0, 1])
    outcomes = {"certified": (commit(0),), "rejected": (commit(1),), "checkers": (1, 1)}
    node = WORLD.extend(tree, 2, **outcomes)
    expected = [True, False, None]
    numbers = range(3)  # 2 is listed only
    assert [tree.outcome(commit(number), node) for number in numbers] == expected
    assert [tree.outcome(commit(number), node.parent) for number in numbers] == [None] * 3
    for epoch in (3, 4, 5):
        node = WORLD.extend(tree, epoch)
    assert tree.root.epoch == 4, "and in final pages"
    assert [tree.outcome(commit(number), node) for number in numbers] == expected
    late = WORLD.tree()
    copied(tree, late)
    assert [late.outcome(commit(number), late.root) for number in numbers] == expected


# Late joiners


@cache
def source() -> PageTree:
    """Return a tree with pages that draw nothing, forks, and two councils."""
    tree = WORLD.tree()
    WORLD.run(tree, [0, 1])
    WORLD.extend(tree, 2, silent=3)
    WORLD.extend(tree, 3, silent=4)
    node = WORLD.extend(tree, 4)
    WORLD.extend(tree, 5, node)
    for epoch in (6, 7, 8):
        node = WORLD.extend(tree, epoch, node, silent=3 if epoch == 7 else 0)
    WORLD.extend(tree, 11, draw={B: 1, PEERS[7]: 2}, silent=3)
    WORLD.run(tree, [12, 13])
    assert tree.council.number == 1
    WORLD.extend(tree, 14, silent=2)
    WORLD.run(tree, [16, 17, 18])
    last = WORLD.extend(tree, 19, silent=2)
    WORLD.extend(tree, 21, last)
    WORLD.extend(tree, 22, last)
    return tree


def chains_of(tree: PageTree, *, alone: bool) -> list:
    return [(one.proof,) if alone else one.to_offer() for one in tree.notarised()]


@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_the_order_of_the_chains_does_not_matter(rng, alone, is_seated):
    """Commits that are known early are right, and in the end all are known."""
    late = WORLD.tree()
    starts = [*source().handovers, source().newest]
    chains = chains_of(source(), alone=alone)
    rng.shuffle(chains)
    for chain in [*starts, *chains] if is_seated else [*chains, *starts, *chains]:
        late.offer_chain(chain)
        check_never_wrong(late)
    assert summary(late) == summary(source())
    for node in source().notarised():
        same = late.page(node.digest)
        assert (same.drawn_known, same.due_known) == (True, True)
        assert (list(same.drawn), list(same.due)) == (list(node.drawn), list(node.due))
    for epoch in range(24):
        one, other = source().drawing(commit(epoch)), late.drawing(commit(epoch))
        assert (one and one.digest) == (other and other.digest)


def check_never_wrong(late: PageTree) -> None:
    for node in late.notarised():
        same = source().page(node.digest)
        assert set(node.drawn) <= set(same.drawn)
        assert not node.drawn_known or set(node.drawn) == set(same.drawn)
        assert set(node.due) <= set(same.due)
        assert not node.due_known or set(node.due) == set(same.due)
        assert node.council.seat == same.council.seat or node is late.root


def test_a_page_without_those_before_it_does_not_know_what_it_draws():
    late = WORLD.tree()
    nodes = {node.epoch: node for node in source().notarised()}
    late.offer_chain([nodes[4].proof])
    late.offer_chain([nodes[3].proof])
    drawing, poor = (late.page(nodes[epoch].digest) for epoch in (4, 3))
    assert not drawing.drawn_known
    assert drawing.due_known, "it draws all before it"
    assert poor.drawn_known, "a page that draws nothing"
    assert not poor.due_known
    late.offer_chain([nodes[1].proof])
    assert not late.page(nodes[1].digest).drawn_known
    assert not drawing.drawn_known
    late.offer_chain([nodes[2].proof])
    assert drawing.drawn_known
    assert set(drawing.drawn) == {commit(1), commit(2), commit(3)}
    assert set(poor.due) == {commit(1), commit(2), commit(3)}


def test_a_page_is_offered_with_those_since_the_last_draw_of_its_council():
    tree = WORLD.tree()
    nodes = WORLD.run(tree, [0, 2])
    nodes += [WORLD.extend(tree, epoch, silent=3) for epoch in (4, 6)]
    nodes += WORLD.run(tree, [8])
    assert nodes[0].to_offer() == (nodes[0].proof,)
    assert nodes[1].to_offer() == (nodes[0].proof, nodes[1].proof)
    assert nodes[3].to_offer() == (nodes[3].proof,), "it draws nothing"
    assert nodes[4].to_offer() == tuple(node.proof for node in nodes[1:])
    late = WORLD.tree()
    assert late.offer_chain(nodes[4].to_offer()) is True
    same = late.page(nodes[4].digest)
    assert same.drawn_known
    assert list(same.drawn) == list(nodes[4].drawn)
    redrawn, _ = redraw_world()
    first = WORLD.extend(redrawn, 14)
    assert first.to_offer() == (first.proof,), "those before it are of another council"


def test_a_page_is_offered_with_a_bounded_number_of_pages():
    tree = WORLD.tree()
    for number in range(OFFERED_MAX + 5):
        WORLD.extend(tree, 2 * number, silent=3)
    last = WORLD.extend(tree, 1000)
    assert len(last.to_offer()) == OFFERED_MAX
    late = WORLD.tree()
    copied(tree, late)
    assert len(late.drawing(commit(0)).drawn) == OFFERED_MAX + 5


# All chains


@given(st.lists(st.integers(1, 3), min_size=3, max_size=12), st.data())
def test_exactly_one_page_of_a_chain_draws_a_commit(gaps, data):
    tree, epoch, nodes = WORLD.tree(), -1, []
    for gap in gaps:
        epoch += gap
        nodes.append(WORLD.extend(tree, epoch, silent=data.draw(st.sampled_from([0, 3]))))
    for place, listing in enumerate(nodes):
        later = [node.epoch for node in nodes[place + 1 :] if node.draws]
        assert drawn_by(nodes, commit(listing.epoch)) == later[:1]
        drawing = tree.drawing(commit(listing.epoch))
        assert (drawing and [drawing.epoch]) == (later[:1] or None)


def test_random_trees_agree_with_a_walk_over_the_chain():
    rng = random.Random(3)
    for _ in range(20):
        tree, nodes, number = WORLD.tree(), [], 0
        for epoch in range(30):
            if rng.random() < 0.3:
                continue
            lists = tuple(commit(1000 + number + one) for one in range(rng.randint(0, 3)))
            number += len(lists)
            nodes.append(WORLD.extend(tree, epoch, silent=rng.choice([0, 0, 3]), commits=lists))
        waiting: list[bytes] = []
        for node in nodes:
            if node.draws:
                assert list(node.drawn) == waiting
                assert all(tree.drawing(one) is node for one in waiting)
                waiting = []
            else:
                assert not node.drawn
            waiting += node.page.message.commits
        assert all(tree.drawing(one) is None for one in waiting)
