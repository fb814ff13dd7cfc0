import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.council import NotarisedPage, decode_notarised
from protocol.consensus.page_votes import VOTED_EPOCHS_MAX
from protocol.consensus.pages import (
    ORPHANS_MAX,
    PROPOSALS_EACH_MAX,
    VOTES_EACH_MAX,
    PageTree,
)
from protocol.core.containers import table_sizes
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault
from protocol.messages import OPENED_MAX, Opened, PageVote
from tests.protocol.consensus.councils import (
    KEPT_EPOCHS,
    PEERS,
    RUN,
    Councils,
    commit,
    copied,
    proofs,
    summary,
    vote_on,
)

WORLD = Councils(size=4)
A, B, C, D = PEERS[:4]


def offered(tree, *messages):
    return [
        tree.offer_vote(one) if isinstance(one.message, PageVote) else tree.offer_page(one)
        for one in messages
    ]


# Votes and finality


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10])
def test_the_last_vote_of_the_quorum_notarises_a_page(size):
    world = Councils(size=size)
    tree = world.tree()
    page = world.page(tree.root, 0)
    tree.offer_page(page)
    node = tree.get(page.digest)
    for number, peer in enumerate(world.genesis):
        assert node.is_notarised is (number >= tree.council.quorum)
        assert tree.offer_vote(vote_on(peer, page)) is True
        assert tree.offer_vote(vote_on(peer, page)) is False, "known"
    assert node.is_notarised


def test_the_real_random_function_decides_the_same():
    world = Councils(size=4, is_real=True)
    tree, other = world.tree(), world.tree()
    nodes = world.run(tree, range(4))
    assert tree.root is nodes[2]
    copied(tree, other)
    assert summary(other) == summary(tree)


@pytest.mark.parametrize(
    ("epochs", "final"),
    [
        ([0], -1),
        ([0, 1], -1),
        ([0, 1, 2], 1),
        ([0, 1, 3], -1),
        ([0, 2, 3], -1),
        ([0, 2, 3, 4], 3),
        ([0, 2, 4, 6, 8], -1),
        ([5, 6, 7, 9, 10, 12], 6),
        ([5, 6, 7, 9, 10, 11], 10),
        ([0, 1, 2, 3, 4], 3),
    ],
)
def test_the_second_of_three_consecutive_pages_is_final(epochs, final):
    tree = WORLD.tree()
    WORLD.run(tree, epochs)
    assert tree.root.epoch == final
    assert [one.page.message.epoch for one in tree.newest] == (
        [] if final < 0 else [final - 1, final, final + 1]
    )


def test_three_consecutive_pages_in_two_branches_make_nothing_final():
    tree = WORLD.tree()
    first = WORLD.extend(tree, 0)
    WORLD.extend(tree, 1, first)
    WORLD.extend(tree, 2, first)
    assert tree.root.epoch == -1
    assert {tip.epoch for tip in tree.tips()} == {1, 2}


def test_an_old_branch_goes_when_another_is_final():
    tree = WORLD.tree()
    first = WORLD.extend(tree, 0)
    fork = WORLD.extend(tree, 1, first)
    kept = WORLD.run(tree, [2])
    for epoch in (3, 4):
        kept.append(WORLD.extend(tree, epoch, kept[-1]))
    assert tree.root is kept[1]
    assert tree.get(fork.digest) is tree.get(first.digest) is None
    late = WORLD.page(fork, 9)
    assert tree.offer_page(late) is False
    assert tree.offer_page(WORLD.page(first, 2, parent=fork.digest)) is False


def test_the_longest_chain_is_extended():
    tree = WORLD.tree()
    first = WORLD.extend(tree, 0)
    short = WORLD.extend(tree, 9, first)
    long = WORLD.extend(tree, 4, WORLD.extend(tree, 2, first))
    unvoted = WORLD.page(long, 6)
    tree.offer_page(unvoted)
    assert tree.tips() == [long]
    assert tree.tip() is tree.tip(5) is long
    assert tree.tip(4) is None, "no page extends one of its own epoch"
    second = WORLD.extend(tree, 12, short)
    assert tree.tips() == [long, second]
    assert tree.tip() is second
    assert tree.tip(12) is long
    assert [node.digest for node in tree.pages_of(6)] == [unvoted.digest]


def test_votes_may_come_before_their_page():
    tree = WORLD.tree()
    page = WORLD.page(tree.root, 3)
    votes = [vote_on(peer, page) for peer in (A, B, C)]
    wrong = [vote_on(D, page, epoch=4), vote_on(D, page, parent=digest(b"another"))]
    assert offered(tree, *votes[:2], *wrong, page) == [True] * 5
    node = tree.get(page.digest)
    assert set(node.votes) == {A, B}, "a vote names the epoch of its page"
    assert tree.offer_vote(vote_on(C, page, epoch=5)).code == "wrong-epoch"
    assert tree.offer_vote(vote_on(C, page, parent=digest(b"another"))).code == "wrong-epoch"
    assert not node.is_notarised
    assert tree.offer_vote(votes[2]) is True
    assert node.is_notarised
    decoded = decode_notarised(node.proof.encoded(), RUN, verify, Opened(OPENED_MAX))
    assert decoded.verified(tree.council, WORLD.rules, verify, is_recovery=False) is None


def test_a_page_waits_for_the_votes_on_its_parent():
    source, tree = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(source, range(3))
    pages = [node.page for node in nodes]
    votes = [[vote_on(peer, page) for peer in (A, B, C)] for page in pages]
    assert offered(tree, pages[2], pages[1], *votes[2], *votes[1]) == [False] * 2 + [True] * 6
    assert tree.is_behind()
    assert offered(tree, pages[0]) == [True]
    assert tree.get(pages[1].digest) is None
    assert offered(tree, *votes[0]) == [True] * 3
    assert tree.root.digest == pages[1].digest
    assert sorted(tree.take_adopted(), key=lambda page: page.message.epoch) == pages[1:]
    assert tree.take_adopted() == []
    assert not tree.is_behind()
    assert summary(tree) == summary(source)


def test_two_votes_in_one_epoch_are_noted():
    tree = WORLD.tree()
    page = WORLD.page(tree.root, 0)
    other = WORLD.page(tree.root, 0, silent=1)
    votes = [vote_on(A, page), vote_on(A, other)]
    assert offered(tree, page, *votes) == [True, True, True]
    assert tree.equivocations == {A: tuple(votes)}
    third = vote_on(A, page, page=digest(b"a third"))
    assert tree.offer_vote(third) is False, "two prove it"
    assert tree.equivocations == {A: tuple(votes)}
    offered(tree, vote_on(B, page), vote_on(B, WORLD.page(tree.root, 1)))
    assert list(tree.equivocations) == [A], "votes in two epochs are none"


def test_an_honest_vote_is_never_lost_among_those_of_a_dishonest_member():
    """The votes of a dishonest member for unknown pages end at two; a known page counts all."""
    tree = WORLD.tree()
    page = WORLD.page(tree.root, 0)
    for number in range(5):
        tree.offer_vote(vote_on(A, page, page=digest(b"%d" % number)))
    assert offered(tree, page, *(vote_on(peer, page) for peer in (A, B, C))) == [True] * 4
    assert tree.get(page.digest).is_notarised


def test_a_second_proposal_needs_the_votes_of_a_third():
    world = Councils(size=7)
    tree = world.tree()
    page, second = world.page(tree.root, 0), world.page(tree.root, 0, silent=1)
    assert tree.offer_page(page) is True
    for peer in PEERS[:3]:
        assert tree.offer_page(second).code == "equivocation"
        assert tree.offer_vote(vote_on(peer, second)) is True
    assert tree.offer_page(second) is True
    later = world.page(tree.root, 1)
    assert tree.offer_page(later) is True, "of another epoch"


def test_each_proposer_may_make_one_page():
    world = Councils(size=7)
    tree = world.tree()
    proposers = tree.council.proposers(tree.root.beacon, 0)
    pages = [world.page(tree.root, 0, signer=peer) for peer in proposers]
    assert offered(tree, *pages) == [True] * 3
    again = [world.page(tree.root, 0, signer=peer, silent=1) for peer in proposers]
    assert [fault.code for fault in offered(tree, *again)] == ["equivocation"] * 3
    for peer in world.genesis[:5]:
        assert tree.offer_vote(vote_on(peer, pages[2])) is True
    assert [node.digest for node in tree.tips()] == [pages[2].digest]


def test_a_member_that_saw_the_other_proposal_accepts_the_notarised_one():
    source, tree = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(source, range(3), silent=1)
    tree.offer_page(WORLD.page(tree.root, 0))
    for node in nodes:
        assert tree.offer_chain([node.proof]) is True
    assert summary(tree) == summary(source)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", digest(b"another")),
        ("final_epoch", -1),
        ("final_epoch", 3),
    ],
)
def test_a_page_says_what_its_ancestors_show(field, value):
    tree = WORLD.tree()
    parent = WORLD.run(tree, range(4))[-1]
    fields = {"seed": parent.beacon, "final_epoch": 2}
    assert parent.shown_epoch == fields["final_epoch"]
    assert value != fields[field]
    signer = tree.council.proposer(fields["seed"] if field != "seed" else value, 5)
    spoilt = WORLD.page(parent, 5, signer=signer, **{field: value})
    assert tree.offer_page(spoilt).code == "wrong-parent"
    assert tree.offer_page(WORLD.page(parent, 5)) is True


def test_the_epoch_of_a_page_comes_after_that_of_its_parent():
    tree = WORLD.tree()
    WORLD.run(tree, [5, 6])
    for epoch in (4, 6):
        page = WORLD.page(tree.tip(), epoch, final_epoch=-1)
        assert tree.offer_page(page).code == "wrong-epoch"


def test_messages_of_no_member_or_of_another_council_change_nothing():
    tree = WORLD.tree()
    page = WORLD.page(tree.root, 0)
    foreign = vote_on(A, page, council=digest(b"another"))
    assert tree.offer_vote(vote_on(PEERS[4], page)).code == "not-in-council"
    assert offered(tree, foreign, WORLD.page(tree.root, 0, council=digest(b"x"))) == [False] * 2
    assert offered(tree, WORLD.page(tree.root, 0, signer=PEERS[4])) == [False]
    proposers = tree.council.proposers(tree.root.beacon, 0)
    wrong = next(peer for peer in PEERS[:4] if peer not in proposers)
    assert tree.offer_page(WORLD.page(tree.root, 0, signer=wrong)).code == "not-proposer"
    assert set(table_sizes(tree.tables).values()) == {0}
    assert tree.heard == {}


def test_the_newest_epoch_of_each_member_is_known():
    tree = WORLD.tree()
    WORLD.run(tree, range(3), voters=(A, B, C))
    assert {peer: tree.heard[peer] for peer in (A, B, C)} == dict.fromkeys((A, B, C), 2)
    old = vote_on(A, WORLD.page(tree.tip(), 3), epoch=2)
    tree.offer_vote(old)
    assert tree.heard[A] == 2


# Contents of the council


def test_a_page_after_a_change_changes_nothing_and_has_no_reveals():
    tree = WORLD.tree()
    seating = WORLD.extend(tree, 0, joined=PEERS[4:5])
    assert seating.is_closing
    assert seating.draws, "of its own council"
    for fields in ({"joined": PEERS[5:6]}, {"removed": PEERS[:1]}):
        page = WORLD.page(seating, 1, **fields)
        assert tree.offer_page(page).code == "wrong-council"
    proofs = tuple(
        WORLD.proof(peer, WORLD.rules.alpha(seating.beacon, 1))
        for peer in tree.council.revealers(seating.beacon, 1, 8)
    )
    for reveals in (proofs, (b"",) * 4):
        assert tree.offer_page(WORLD.page(seating, 1, reveals=reveals)).code == "bad-reveal"
    closing = WORLD.extend(tree, 1)
    assert (closing.is_closing, closing.draws) == (True, False)
    for fields in (
        {"commits": (commit(1),)},
        {"certified": (commit(1),), "checkers": (1,)},
        {"rejected": (commit(1),), "checkers": (1,)},
        {"work": commit(1)},
        {"ledger": commit(1)},
    ):
        assert tree.offer_page(WORLD.page(closing, 2, **fields)).code == "wrong-council"
    assert tree.drawing(commit(0)) is None
    assert tree.tip() is closing


def test_only_pages_after_a_change_have_no_reveals():
    tree = WORLD.tree()
    assert tree.offer_page(WORLD.page(tree.root, 0, reveals=())).code == "bad-reveal"


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "members", [PEERS[:4], PEERS[2:6], PEERS[4:8], PEERS[:7], PEERS[:1]], ids=len
)
def test_the_next_council_continues_from_the_page_that_seats_it(place, members):
    """Whatever of the closing pages a node has seen: they are no part of the chain."""
    joined = [peer for peer in members if peer not in PEERS[:4]]
    removed = [peer for peer in PEERS[:4] if peer not in members]
    if not joined and not removed:
        return
    tree = WORLD.tree()
    WORLD.run(tree, range(place))
    before = tree.tip()
    seating = WORLD.extend(tree, place, joined=joined, removed=removed)
    genesis = tree.council
    closing = []
    while tree.council is genesis:
        closing.append(WORLD.extend(tree, place + 1 + len(closing)))
    assert len(closing) == (1 if place else 2)
    assert tree.root.digest == seating.digest
    assert tree.root.beacon == seating.beacon
    assert tree.council.members == tuple(sorted(members))
    assert (tree.council.seat, tree.council.number) == (seating.digest, 1)
    assert tree.council.since == place
    assert tree.councils == {b"": genesis, seating.digest: tree.council}
    assert tree.tips() == [tree.root]
    assert (tree.drawing(commit(before.epoch)) is seating) is bool(place)
    assert tree.newest == ()
    assert set(tree.heard) == set(members)
    assert len(tree.handovers) == 1
    sizes = table_sizes(tree.tables)
    assert sizes.pop("watched_pages") == len(closing) + place + 1
    assert set(sizes.values()) == {0}
    late = WORLD.page(closing[-1], place + 9)
    assert tree.offer_page(late) is False
    assert tree.offer_vote(vote_on(PEERS[0], late)) is False
    first = WORLD.extend(tree, place + 1)
    assert first.draws
    assert first.page.message.final_epoch == place
    assert (tree.drawing(commit(before.epoch)) is seating) is bool(place), "of its own council"
    WORLD.run(tree, [place + 2])
    assert tree.drawing(commit(place + 1)).council is tree.council
    assert tree.root.digest == seating.digest, "the seating page is not the first of three"
    WORLD.run(tree, [place + 3])
    assert tree.root.epoch == place + 2


def test_a_change_that_is_final_among_later_pages():
    tree = WORLD.tree()
    nodes = WORLD.run(tree, [0, 2], joined=())
    seating = WORLD.extend(tree, 4, joined=PEERS[4:5])
    WORLD.run(tree, [6, 7])
    assert tree.council.number == 0
    WORLD.run(tree, [8])
    assert tree.root.digest == seating.digest
    other = WORLD.tree()
    assert other.offer_chain(tree.handovers[0]) is True
    assert summary(other) == summary(tree)
    assert [one.page.message.epoch for one in tree.handovers[0]] == [4, 6, 7, 8]
    assert tree.drawing(commit(0)) is nodes[1]


def test_votes_for_the_old_council_count_nothing_in_the_new_one():
    """A vote names its council, so one with the same page in the old council proves nothing."""
    world = Councils(size=7)
    tree = world.tree()
    seating = world.extend(tree, 0, removed=PEERS[:3])
    reference = world.tree()
    world.extend(reference, 0, removed=PEERS[:3])
    world.run(reference, [1, 2])
    page = world.page(reference.root, 5)
    for peer in PEERS[:7]:
        tree.offer_vote(vote_on(peer, page, council=b""))
    world.run(tree, [1, 2])
    assert tree.root.digest == seating.digest
    assert tree.offer_page(page) is True
    assert tree.get(page.digest).votes == {}
    world.run(tree, [6])
    assert tree.root.digest == seating.digest


# Recovery


def recovery_world():
    world = Councils(size=7)
    tree = world.tree()
    world.run(tree, range(3))
    assert tree.root.epoch == 1
    return world, tree


def test_more_than_half_remove_members_after_a_long_time_without_a_final_page():
    world, tree = recovery_world()
    alive = PEERS[:4]
    assert tree.tip().shown_epoch == 1
    for epoch, fields, expected in (
        (10, {"removed": PEERS[4:7]}, False),  # too early
        (11, {}, False),  # removes nobody
        (12, {"joined": PEERS[7:8]}, False),
    ):
        node = world.extend(tree, epoch, voters=alive, **fields)
        assert (node.is_recovery, node.is_notarised) == (expected, expected)
    seating = world.extend(tree, 13, voters=alive, removed=PEERS[4:7])
    assert seating.is_recovery
    closing = world.run(tree, [14, 15], voters=alive)
    assert all(node.is_recovery and node.is_notarised for node in closing)
    assert tree.root.digest == seating.digest
    assert tree.council.members == tuple(alive)
    late = world.tree()
    copied(tree, late)
    assert summary(late) == summary(tree)
    node = world.extend(tree, 16, voters=alive[:2])
    assert not node.is_recovery
    assert not node.is_notarised
    world.run(tree, [17, 18, 19])
    assert tree.root.epoch == 18


def test_exactly_half_is_too_few_for_a_recovery():
    world = Councils(size=6)
    tree = world.tree()
    node = world.extend(tree, 20, voters=PEERS[:3], removed=PEERS[3:5])
    assert node.is_recovery
    assert not node.is_notarised
    tree.offer_vote(vote_on(PEERS[3], node.page))
    assert node.is_notarised


def test_the_pages_after_a_usual_change_need_the_usual_quorum():
    world = Councils(size=7)
    tree = world.tree()
    world.extend(tree, 5, removed=PEERS[4:7])
    for epoch in (20, 30):
        node = world.extend(tree, epoch, voters=PEERS[:4])
        assert not node.is_recovery
        assert not node.is_notarised


def test_a_chain_after_a_recovery_is_refused_without_the_page_that_began_it():
    world, tree = recovery_world()
    other = world.tree()
    world.extend(tree, 13, voters=PEERS[:4], removed=PEERS[4:7])
    world.run(tree, [15, 16, 17], voters=PEERS[:4])
    assert len(tree.handovers[0]) == 4
    assert isinstance(other.offer_chain(tree.handovers[0][1:]), Fault)
    assert other.offer_chain(tree.handovers[0]) is True


# Late joiners


def history():
    """Return a tree with two handovers, forks and gaps."""
    tree = WORLD.tree()
    WORLD.run(tree, [0, 1, 2, 3])
    WORLD.run(tree, [5], joined=PEERS[4:6], removed=PEERS[:1])
    WORLD.run(tree, [6, 8, 9, 10])
    assert tree.council.number == 1
    WORLD.run(tree, [11, 12, 13])
    WORLD.run(tree, [14], joined=PEERS[8:12], removed=tree.council.members)
    WORLD.run(tree, [15])
    assert tree.council.number == 2
    return tree


@pytest.mark.parametrize("later", [0, 1, 2, 3, 4, 6, 30, KEPT_EPOCHS + 9])
@pytest.mark.parametrize("gap", [1, 2])
def test_a_late_joiner_reaches_the_state_of_an_old_node(later, gap):
    tree, late = history(), WORLD.tree()
    WORLD.run(tree, range(16, 16 + later), silent=0)
    if later:
        last = WORLD.extend(tree, 16 + later - 1 + gap)
        WORLD.extend(tree, last.epoch + 2)
        WORLD.extend(tree, last.epoch + 3, last)
    copied(tree, late)
    assert summary(late) == summary(tree)
    assert {node.digest for node in late.tips()} == {node.digest for node in tree.tips()}
    assert late.tip().digest == tree.tip().digest
    # The oldest page that is kept draws commits of one that is not.
    for epoch in range(tree.root.epoch - KEPT_EPOCHS + 1, 30 + later):
        one, other = tree.drawing(commit(epoch)), late.drawing(commit(epoch))
        assert getattr(one, "digest", None) == getattr(other, "digest", None)
        if one is not None:
            assert late.page(one.digest).beacon == one.beacon
            assert late.page(one.digest).council == one.council
    assert proofs(late) == proofs(tree)
    assert [[n.page.digest for n in chain] for chain in late.handovers] == [
        [n.page.digest for n in chain] for chain in tree.handovers
    ]
    third = WORLD.tree()
    copied(late, third)
    assert summary(third) == summary(tree)
    for node in (tree, late):
        WORLD.run(node, range(100, 104))
    assert summary(late) == summary(tree)


def test_a_node_that_was_away_continues_from_the_newest_final_page():
    tree, away = WORLD.tree(), WORLD.tree()
    WORLD.run(tree, range(3))
    copied(tree, away)
    WORLD.run(away, [3])
    WORLD.run(tree, [4, 5, 6, 7])
    assert away.offer_chain(tree.newest) is True
    assert away.root.digest == tree.root.digest
    assert away.offer_chain(tree.newest) is False, "no news"
    old = tree.newest
    WORLD.run(tree, range(8, 12))
    assert away.offer_chain(tree.newest) is True
    assert away.offer_chain(old) is False
    assert summary(away) == summary(tree)


def test_a_jump_forgets_no_longer_chain():
    """Votes that were hidden make a page final; a page after it that this node voted for stays.

    If it were forgotten, this node would vote for a shorter chain.
    """
    tree = WORLD.tree()
    first, second = WORLD.run(tree, [0, 1])
    hidden = WORLD.page(second, 2)
    fork = WORLD.extend(tree, 3, second)
    longest = WORLD.extend(tree, 4, fork)
    source = WORLD.tree()
    WORLD.run(source, [0, 1])
    tree_of_hidden = WORLD.extend(source, 2, source.get(second.digest))
    assert tree_of_hidden.digest == hidden.digest
    assert tree.offer_chain([first.proof, second.proof, tree_of_hidden.proof]) is True
    assert tree.root is second
    assert tree.tips() == [longest]
    assert tree.get(longest.digest) is longest


def test_closing_pages_alone_do_not_continue_the_old_council():
    """Pages after a change, without the page that changes: the old council's chain has ended."""
    source, away = WORLD.tree(), WORLD.tree()
    nodes = [WORLD.extend(source, 0, joined=PEERS[4:5])]
    nodes += WORLD.run(source, [2, 4, 5, 6])
    assert source.council.number == 1
    chain = [node.proof for node in nodes]
    away.offer_chain(chain[-3:])
    assert (away.root.epoch, away.council.number) == (-1, 0)
    assert not away.page(nodes[-1].digest).draws
    assert away.tips() == [away.root]
    assert away.offer_chain(chain) is True
    assert summary(away) == summary(source)


def test_a_handover_holds_no_more_than_shows_it():
    tree, other = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(tree, [0, 1, 2])
    before = [node.proof for node in nodes]
    seating = WORLD.extend(tree, 5, joined=PEERS[4:5])
    closing = [WORLD.extend(tree, epoch) for epoch in (6, 8, 9)]
    pages = [seating, *closing]
    last = WORLD.extend(tree, 10)
    after = [WORLD.page(last, epoch) for epoch in (11,)]
    more = [WORLD.notarised(page, last) for page in after]
    chain = [*before, *(node.proof for node in pages), last.proof, *more]
    assert other.offer_chain(chain) is True
    assert other.handovers == [tuple(chain[3:8])]
    assert summary(other) == summary(tree)


def test_old_councils_draw_nothing_after_their_end():
    """Their keys may be sold later; a page of theirs with a later epoch is nothing."""
    tree = WORLD.tree()
    fork_tree = WORLD.tree()
    for one in (tree, fork_tree):
        WORLD.run(one, [0, 1, 2])
    forged = WORLD.extend(fork_tree, 7)
    early = WORLD.extend(fork_tree, 5, forged.parent)
    WORLD.run(tree, [6], joined=PEERS[4:5])
    WORLD.run(tree, [7, 8])
    assert tree.council.number == 1
    assert tree.offer_chain([forged.proof]) is False
    assert tree.page(forged.digest) is None
    assert tree.offer_chain([early.proof]) is True, "its own branch, in time"
    assert tree.page(early.digest).digest == early.digest
    assert summary(tree)[0] == tree.council.seat


def chain_of(tree: PageTree, epochs) -> list[NotarisedPage]:
    return [node.proof for node in WORLD.run(tree, epochs)]


def tampered() -> dict[str, list[NotarisedPage]]:
    """Return chains that a node must refuse."""
    chain = chain_of(WORLD.tree(), [0, 1, 2])
    page, votes = chain[1].page, chain[1].votes
    spoilt = (votes[0][0], votes[0][1][:-1] + b"x")
    other = WORLD.tree()
    elsewhere = chain_of(other, [0, 1, 2])
    odd = WORLD.tree()
    first = WORLD.extend(odd, 0)
    wrong = {
        "seed": {"seed": digest(b"x")},
        "epoch": {"epoch": 0, "final_epoch": -1},
    }
    forged = {}
    for name, changes in wrong.items():
        signer = odd.council.proposer(changes.get("seed", first.beacon), changes.get("epoch", 1))
        proofs = {"reveals": (b"",) * 4} if name == "seed" else {}
        bad = WORLD.page(first, 1, signer=signer, **{**proofs, **changes})
        forged[f"a page with a wrong {name}"] = [first.proof, WORLD.notarised(bad, first)]
    seating = WORLD.extend(WORLD.tree(), 0, joined=PEERS[4:5])
    twin = WORLD.page(seating.parent, 0, joined=PEERS[5:6])
    after = WORLD.notarised(WORLD.page(seating, 1), seating)
    return {
        "a page after its parent's twin": [WORLD.notarised(twin, seating.parent), after],
        "a vote less": [chain[0], NotarisedPage(page, votes[1:]), chain[2]],
        "a forged vote": [chain[0], NotarisedPage(page, (spoilt, *votes[1:])), chain[2]],
        "the votes of another page": [chain[0], NotarisedPage(page, chain[2].votes), chain[2]],
        "no votes": [chain[0], NotarisedPage(page, ()), chain[2]],
        "a page missing": [chain[0], chain[2]],
        "another order": [chain[1], chain[0], chain[2]],
        "a page twice": [chain[0], chain[0]],
        "pages of two councils": [*elsewhere[:1], *history().handovers[1]],
        **forged,
    }


@pytest.mark.parametrize("name", tampered())
def test_a_tampered_chain_is_refused(name):
    tree = WORLD.tree()
    before = summary(tree)
    assert isinstance(tree.offer_chain(tampered()[name]), Fault)
    assert summary(tree) == before
    assert tree.notarised() == []


def test_a_chain_that_shows_nothing_final_is_only_recent_pages():
    tree, late = WORLD.tree(), WORLD.tree()
    chain = chain_of(tree, [0, 1, 3, 4])
    assert late.offer_chain(chain[1:]) is True
    assert late.root.epoch == -1
    assert late.is_behind()
    assert late.offer_chain(chain[:1]) is True
    assert {node.digest for node in late.tips()} == {tree.tip().digest}


def test_a_chain_of_no_known_council_is_no_news():
    tree, late = history(), WORLD.tree()
    assert late.offer_chain([]) is False
    for chain in tree.handovers[1:]:
        assert late.offer_chain(chain) is False
    WORLD.run(tree, range(20, 24))
    assert late.offer_chain(tree.newest) is False
    assert late.council.number == 0


def test_a_change_in_the_middle_of_a_chain_of_recent_pages():
    """The rest of the chain belongs to the council that has ended: its votes are not misread."""
    source, tree = WORLD.tree(), WORLD.tree()
    nodes = WORLD.run(source, [0])
    nodes += WORLD.run(source, [1], removed=PEERS[1:4])
    nodes += WORLD.run(source, [2])
    page = WORLD.page(nodes[-1], 4)
    chain = [*(node.proof for node in nodes), WORLD.notarised(page, nodes[-1])]
    tree.offer_chain(chain[:1])
    assert tree.offer_chain(chain[1:]) is True
    assert tree.council.members == tuple(PEERS[:1])
    assert summary(tree) == summary(source)


# Bounds


def test_a_dishonest_member_fills_only_its_own_tables():
    tree = WORLD.tree()
    WORLD.run(tree, range(3))
    source = WORLD.tree()
    page = next(node.page for node in WORLD.run(source, range(4)) if node.epoch == 3)
    waiting = WORLD.page(source.tip(), 4)
    assert B not in {page.signer, waiting.signer}
    tree.offer_page(waiting)
    for epoch in range(3, 3 + 2 * VOTED_EPOCHS_MAX):
        for number in range(4):
            tree.offer_vote(vote_on(B, page, epoch=epoch, page=digest(b"%d" % number)))
            tree.offer_page(WORLD.page(tree.tip(), epoch, signer=B, parent=digest(b"%d" % epoch)))
        for parent in (tree.root, tree.tip()):
            if epoch > parent.epoch and tree.council.proposer(parent.beacon, epoch) == B:
                tree.offer_page(WORLD.page(parent, epoch))
    sizes = table_sizes(tree.tables)
    assert sizes["page_votes"] <= VOTED_EPOCHS_MAX + 3
    assert sizes["page_orphans"] == ORPHANS_MAX
    assert sizes["page_proposals"] == PROPOSALS_EACH_MAX
    assert all(size <= one.limit for one in tree.tables for size in [len(one)])
    assert list(tree.equivocations) == [B]
    for one in (A, C, D):
        assert tree.offer_vote(vote_on(one, page)) is True
    tree.offer_page(page)
    assert tree.get(page.digest).is_notarised
    assert tree.get(waiting.digest) is not None, "it was not evicted"


def test_a_dropped_proposal_comes_back_with_its_votes():
    tree = WORLD.tree()
    epochs = [one for one in range(200) if tree.council.proposer(tree.root.beacon, one) == A]
    page = WORLD.page(tree.root, epochs[0])
    assert offered(tree, page, vote_on(B, page), vote_on(C, page)) == [True] * 3
    for epoch in epochs[1 : PROPOSALS_EACH_MAX + 1]:
        assert tree.offer_page(WORLD.page(tree.root, epoch)) is True
    assert tree.get(page.digest) is None
    assert tree.offer_vote(vote_on(B, page)) is False, "its votes are kept"
    assert tree.offer_chain([WORLD.notarised(page, tree.root, (B, C, D))]) is True
    assert tree.get(page.digest).is_notarised
    assert tree.tips() == [tree.get(page.digest)]


def test_votes_of_old_epochs_go_first():
    tree = WORLD.tree()
    pages = [WORLD.page(tree.root, epoch) for epoch in range(VOTED_EPOCHS_MAX + 1)]
    assert offered(tree, *(vote_on(A, page) for page in pages)) == [True] * len(pages)
    assert len(tree.tables[0]) == VOTED_EPOCHS_MAX
    tree.offer_page(pages[0])
    tree.offer_page(pages[1])
    assert tree.get(pages[0].digest).votes == {}
    assert list(tree.get(pages[1].digest).votes) == [A]


def test_two_votes_for_unknown_pages_are_kept_of_each_member():
    tree = WORLD.tree()
    pages = [WORLD.page(tree.root, 0, silent=number) for number in range(4)]
    news = offered(tree, *(vote_on(A, page) for page in pages))
    assert news == [True] * VOTES_EACH_MAX + [False] * (4 - VOTES_EACH_MAX)


@given(st.permutations(range(12)), st.integers(0, 1))
def test_the_order_of_pages_and_votes_does_not_matter(order, changed):
    """With a handover too: what comes too early is offered again, as the network does."""
    source = WORLD.tree()
    nodes = WORLD.run(source, [0, 1])
    fields = {"joined": PEERS[4:5]} if changed else {}
    nodes += WORLD.run(source, [2], **fields)
    messages = [m for n in nodes for m in (n.page, *(vote_on(p, n.page) for p in (A, B, C)))]
    tree = WORLD.tree()
    for _ in range(3):
        offered(tree, *(messages[place] for place in order))
    assert summary(tree) == summary(source)
    assert {node.digest for node in tree.tips()} == {node.digest for node in source.tips()}
