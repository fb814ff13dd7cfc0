"""Claim that a node leaves to a successor of its run, and its check of such a claim."""

import pytest

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.replica.replica import Replica
from protocol.replica.succession import NoSuccession, check_succession, predecessor_of
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

WORLD = World(run_manifest(validators=7))
COMMITS = WORLD.chain(WORLD.workers[0], 2, epoch=1, checkpoint=WORLD.genesis().digest)
VERSIONS = [WORLD.genesis()]
for _number in (1, 2):
    VERSIONS.append(WORLD.checkpoint(VERSIONS[-1], batch=(COMMITS[_number - 1].digest,)))
ONE, TWO = (Contents(head=VERSIONS[number].digest) for number in (1, 2))
LISTED = {
    2: Contents(commits=tuple(one.digest for one in COMMITS)),
    5: Contents(certified=(COMMITS[0].digest,)),
    6: ONE,
    14: TWO,
    15: Contents(certified=(COMMITS[1].digest,)),
}
WORLD.book = PageBook(WORLD.manifest, WORLD.validators, LISTED)
OTHER = PageBook(WORLD.manifest, WORLD.validators, {**LISTED, 7: TWO})
"""Another history, which leaves the first one with epoch 7."""


def node(last=10, first=1, versions=VERSIONS, *, with_work=True) -> Replica:
    """Return a node that received versions, and the pages of some epochs.

    The page before the last one is final. ``with_work``: another node has sent it their work.
    """
    replica = Replica(WORLD.manifest, fast_verify, fast_output)
    for one in (*COMMITS, *versions):
        replica.restore(one.envelope)
    if first > 1:
        replica.pages.offer_chain(WORLD.book.chain(first, last))
    else:
        WORLD.book.show(replica, last, with_work=with_work)
    replica.count_final()
    return replica


def successor(predecessor, policy=VERSIONS[1].message.policy, **genesis):
    fields = {"predecessor": predecessor, "policy": policy.hex()} | genesis
    return WORLD.manifest.model_copy(
        update={"genesis": WORLD.manifest.genesis.model_copy(update=fields)}
    )


def findings(replica, manifest=None, **claim) -> dict[str, bool | None]:
    """Return the findings on a claim of a node at epoch 10, with some fields replaced."""
    told = predecessor_of(node()).model_copy(update=claim)
    checked = check_succession(manifest or successor(told), replica)
    return {one.subject: one.holds for one in checked}


HOLDS = dict.fromkeys(("run", "creator", "page", "newest page", "version", "totals"), True)


def test_a_node_names_its_newest_final_page_and_the_version_in_it():
    told = predecessor_of(node())
    assert told.run_id == WORLD.run_id.hex()
    assert (told.page, told.epoch) == (WORLD.book.page(9).digest.hex(), 9)
    assert (told.head, told.version) == (VERSIONS[1].digest.hex(), 1), "2 is not final"
    assert (told.rollouts, told.tokens, told.is_complete) == (1, 10, True)
    later = predecessor_of(node(17))
    assert (later.version, later.rollouts, later.tokens) == (2, 2, 20)


@pytest.mark.parametrize("missing", [{"first": 4}, {"with_work": False}])
def test_a_node_says_that_it_does_not_know_all_work(missing):
    told = predecessor_of(node(**missing))
    assert not told.is_complete
    assert told.version == 1


def test_pages_that_are_not_counted_yet_make_the_totals_incomplete():
    replica = node()
    WORLD.book.show(replica, 12, first=11, with_work=False)
    told = predecessor_of(replica)
    assert told.epoch == 11
    assert not told.is_complete
    replica.count_final()
    assert predecessor_of(replica).is_complete, "pages without work"


def test_without_a_final_version_there_is_nothing_to_succeed():
    assert predecessor_of(node(2)) is NoSuccession.NO_PAGE
    assert predecessor_of(node(6)) is NoSuccession.NO_VERSION
    assert predecessor_of(node(versions=VERSIONS[:1])) is NoSuccession.UNKNOWN_VERSION


def test_another_node_of_the_run_confirms_a_claim():
    assert findings(node()) == HOLDS


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        ({"run_id": bytes(32).hex()}, {"run"}),
        ({"page": WORLD.book.page(10).digest.hex()}, {"page"}),
        ({"page": OTHER.page(9).digest.hex()}, {"page"}),
        ({"epoch": 8}, {"page", "newest page"}),
        ({"page": WORLD.book.page(8).digest.hex(), "epoch": 8}, {"newest page"}),
        ({"head": VERSIONS[2].digest.hex(), "version": 2}, {"version"}),
        ({"version": 2}, {"version"}),
        ({"rollouts": 2}, {"totals"}),
        ({"tokens": 9}, {"totals"}),
        ({"rollouts": 0, "tokens": 11, "is_complete": False}, {"totals"}),
    ],
)
def test_a_false_claim_is_contradicted(claim, wrong):
    found = findings(node(), **claim)
    assert {subject for subject, holds in found.items() if holds is False} == wrong


def test_another_policy_is_contradicted():
    manifest = successor(predecessor_of(node()), policy=digest(b"another"))
    assert findings(node(), manifest) == HOLDS | {"version": False}


def test_another_creator_is_named():
    manifest = successor(predecessor_of(node()), creator=WORLD.workers[0].peer_id)
    assert findings(node(), manifest) == HOLDS | {"creator": None}


def test_a_manifest_without_a_predecessor_succeeds_nothing():
    assert findings(node(), WORLD.manifest) == {"run": False}


def test_totals_that_are_lower_bounds_may_be_below_the_count():
    assert findings(node(), rollouts=0, tokens=0, is_complete=False) == HOLDS


@pytest.mark.parametrize("missing", [{"first": 4}, {"with_work": False}])
def test_a_node_that_has_not_counted_all_pages_cannot_tell_the_totals(missing):
    for claim in ({}, {"tokens": 9}, {"tokens": 9, "is_complete": False}):
        assert findings(node(**missing), **claim)["totals"] is None


def test_a_node_that_stopped_before_cannot_tell():
    expected = {"page": None, "newest page": None, "version": None, "totals": None}
    assert findings(node(8)) == HOLDS | expected
    assert findings(node(8), version=2)["version"] is False


def test_a_node_without_the_pages_in_between_cannot_tell():
    """Its newest final page is later, and it does not hold those before it."""
    replica = node(20, first=14)
    expected = {"page": None, "newest page": False, "version": None, "totals": None}
    assert findings(replica) == HOLDS | expected


def test_a_node_without_the_version_cannot_tell():
    assert findings(node(versions=VERSIONS[:1])) == HOLDS | {"version": None}
