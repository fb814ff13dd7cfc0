"""Rules for the leader and the final version in a page, given its parent."""

from dataclasses import asdict

import pytest

from protocol.consensus.council import NotarisedPage
from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from tests.protocol.consensus.councils import (
    PEERS,
    Councils,
    commit,
    copied,
    drawn_council,
    first_voters,
    key_of,
    vote_on,
)

WORLD = Councils(size=4, era_epochs=2)
HEAD, OTHER = digest(b"a version"), digest(b"another version")
LED = {"term": 4, "head": HEAD}


def refused(tree, epoch, parent=None, **fields) -> FaultCode:
    """Offer a page that must not get into the tree, and return its fault."""
    page = WORLD.page(parent or tree.tip(), epoch, **fields)
    fault = tree.offer_page(page)
    assert isinstance(fault, Fault), fault
    assert tree.get(page.digest) is None
    return fault.code


def test_a_page_without_pages_before_it_begins_with_the_first_trainer_and_no_version():
    root = WORLD.tree().root
    assert (root.term, root.head) == (0, b"")


def test_a_term_never_falls():
    tree = WORLD.tree()
    WORLD.extend(tree, 0, **LED)
    assert refused(tree, 1, term=3) == FaultCode.OLD_TERM
    assert refused(tree, 1, term=0, head=b"") == FaultCode.OLD_TERM
    for epoch, term in ((1, 4), (2, 5), (3, 9)):
        assert WORLD.extend(tree, epoch, term=term).term == term
    assert refused(tree, 4, term=8) == FaultCode.OLD_TERM


def test_pages_do_not_know_the_order_of_versions():
    """Members refuse an older version: only they know the chain."""
    tree = WORLD.tree()
    for epoch, head in enumerate((HEAD, OTHER, HEAD, b"")):
        assert WORLD.extend(tree, epoch, head=head).head == head


LEADS = [{"term": 5}, {"head": OTHER}, {"head": b""}, {"term": 5, "head": OTHER}]
CHANGES = {
    "joined": {"joined": PEERS[5:6]},
    "removed": {"removed": PEERS[:1]},
    "drawn": {"draw": {PEERS[1]: 2, PEERS[7]: 1}},
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize(
    "lead", [{"term": 5}, {"head": OTHER}, {"head": b""}, {"term": 5, "head": OTHER}]
)
def test_a_page_that_changes_the_council_repeats_leader_and_version(change, lead):
    """A council that is about to end decides nothing else."""
    tree = WORLD.tree()
    WORLD.extend(tree, 0, **LED)
    fields = {**LED, **lead}
    assert refused(tree, 2, **CHANGES[change], **fields) == FaultCode.WRONG_COUNCIL
    seating = WORLD.extend(tree, 2, **CHANGES[change])
    assert (seating.term, seating.head) == (4, HEAD)


@pytest.mark.parametrize("lead", LEADS)
def test_pages_that_close_a_council_repeat_them_too(lead):
    tree = WORLD.tree()
    WORLD.extend(tree, 0, **LED)
    WORLD.extend(tree, 2, joined=PEERS[5:6])
    fields = {**LED, **lead}
    assert refused(tree, 3, **fields) == FaultCode.WRONG_COUNCIL
    closing = WORLD.extend(tree, 3)
    assert (closing.is_closing, closing.term, closing.head) == (True, 4, HEAD)
    assert refused(tree, 4, **fields) == FaultCode.WRONG_COUNCIL


def test_a_new_council_goes_on_with_leader_and_version_of_the_one_before():
    tree = WORLD.tree()
    WORLD.extend(tree, 0, **LED)
    WORLD.extend(tree, 1, joined=PEERS[5:6])
    WORLD.extend(tree, 2)
    WORLD.extend(tree, 3)
    assert tree.council.number == 1
    assert (tree.root.epoch, tree.root.term, tree.root.head) == (1, 4, HEAD)
    assert refused(tree, 4, term=3) == FaultCode.OLD_TERM
    first = WORLD.extend(tree, 4, term=6, head=OTHER)
    assert (first.term, first.head) == (6, OTHER)


def test_a_late_joiner_learns_leader_and_version_of_the_newest_final_page():
    tree = WORLD.tree()
    WORLD.run(tree, range(3))
    WORLD.extend(tree, 3, **LED)
    assert (tree.root.epoch, tree.root.term, tree.root.head) == (2, 0, b""), (
        "the newest is not final"
    )
    WORLD.run(tree, range(4, 6))
    late = WORLD.tree()
    copied(tree, late)
    for one in (tree, late):
        assert (one.root.epoch, one.root.term, one.root.head) == (4, 4, HEAD)


def chain_of(*leads) -> list[NotarisedPage]:
    """Return notarised pages with these terms and versions, of consecutive epochs."""
    tree = WORLD.tree()
    chain, node = [], tree.root
    for epoch, lead in enumerate(leads):
        page = WORLD.page(node, epoch, **lead)
        voters = first_voters(tree.council, tree.council.quorum)
        chain.append(NotarisedPage.of(page, [vote_on(peer, page) for peer in voters], tree.council))
        assert tree.offer_page(page) is True or epoch == len(leads) - 1
        for peer in voters:
            tree.offer_vote(vote_on(peer, page))
        node = tree.get(page.digest) or node
    return chain


def test_a_chain_in_which_a_term_falls_is_refused():
    right, wrong = chain_of(LED, LED), chain_of(LED, {**LED, "term": 3})
    assert WORLD.tree().offer_chain(right) is True
    fault = WORLD.tree().offer_chain(wrong)
    assert isinstance(fault, Fault)
    assert fault.code == FaultCode.OLD_TERM


def test_what_contents_leave_open_is_that_of_the_parent():
    tree = WORLD.tree()
    parent = WORLD.extend(tree, 0, **LED)
    fields = Contents(commits=(commit(1),)).fields(parent)
    assert (fields["term"], fields["head"], fields["commits"]) == (4, HEAD, (commit(1),))
    assert Contents(term=5).fields(parent).items() >= {"term": 5, "head": HEAD}.items()
    assert Contents(head=b"").fields(parent).items() >= {"term": 4, "head": b""}.items()
    drawn = Contents(joined=(key_of(PEERS[5]),), **drawn_council({PEERS[1]: 1}))
    assert drawn.fields(parent) == {**asdict(drawn), **LED}
