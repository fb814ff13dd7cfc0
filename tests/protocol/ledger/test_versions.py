"""Versions of a replica: the leader adds them, and the council's final pages decide."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.consensus.member import Contents
from protocol.core.containers import table_sizes
from protocol.core.crypto import digest
from protocol.core.types import ValidationResult
from protocol.ledger.chain import TERM_MAX, Lead
from protocol.replica.received import Received
from protocol.replica.replica import Replica
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook

ACCEPT, IGNORE = ValidationResult.ACCEPT, ValidationResult.IGNORE
WORLD = World(
    run_manifest(
        trainers=2,
        validators=7,
        grpo={"async_level": 7},  # all commits are to version 0
        shardcast={"versions_kept": 8},
    )
)
FIRST, STANDBY = WORLD.trainers
GENESIS = WORLD.genesis()
WORKER = WORLD.workers[0]
NOW = WORLD.at(1)
EXPIRE = WORLD.manifest.committee.expire_after_epochs


def take(target, *signed, now=NOW) -> ValidationResult:
    """Offer messages and return the result of the last one."""
    return [target.receive(one.envelope, now).result for one in signed][-1]


def chain(length, parent=GENESIS, trainer=0, batches=(), **changes) -> list:
    """Return ``length`` versions after ``parent``; ``batches`` belong to the first ones."""
    result = [parent]
    for number in range(length):
        batch = tuple(one.digest for one in batches[number]) if number < len(batches) else ()
        result.append(WORLD.checkpoint(result[-1], trainer, batch=batch, **changes))
    return result[1:]


def book(pages=(), **options) -> PageBook:
    """Return pages of the council; ``pages`` gives term and final version of some epochs."""
    contents = {epoch: Contents(term=term, head=head.digest) for epoch, (term, head) in pages}
    return PageBook(WORLD.manifest, WORLD.validators, contents, **options)


def led(target, term, head, epoch=3) -> list:
    """Let a final page state a term and a final version, and return what is accepted by it."""
    book([(epoch, (term, head))]).show(target, epoch + 1)
    assert target.lead == Lead(term, head.digest)
    return target.advance(NOW)


def replica(*versions) -> Replica:
    """Return a replica that has no page, at some versions."""
    target = WORLD.replica(pages_to=0)
    for one in versions:
        assert take(target, one) is ACCEPT
    return target


def versions_of(target) -> list:
    return [entry.manifest for entry in target.ledger.chain.checkpoints]


# Versions by the leader alone


def test_a_version_that_learned_from_made_up_commits_is_not_taken():
    target = replica()
    made_up = WORLD.checkpoint(
        GENESIS, batch=tuple(digest(b"%d" % n) for n in range(200)), reward_mean=10**6
    )
    child = WORLD.checkpoint(made_up)
    assert take(target, made_up, child) is IGNORE
    assert (target.ledger.chain.version, target.behind) == (0, True)
    target.advance(WORLD.at(EXPIRE))
    assert target.behind
    target.advance(WORLD.at(2 + EXPIRE))
    assert not target.behind, "it is dropped when no outcome can come any more"
    assert table_sizes(target.tables)["versions_waiting"] == 0


def test_a_version_is_taken_with_the_last_outcome_that_it_waited_for():
    target = replica()
    commits = WORLD.chain(WORKER, 2)
    version, child = chain(2, batches=[commits])
    first, last = map(WORLD.certificate, commits)
    assert take(target, version, child, *commits, first) is ACCEPT
    assert target.ledger.chain.version == 0
    received = target.receive(last.envelope, NOW)
    assert received == Received(ACCEPT, last, settled=(version, child))
    assert target.ledger.chain.head == child


def test_a_version_that_learned_from_a_rejected_commit_needs_a_final_page():
    """Its leader may have held an acceptance that the rejection has overturned."""
    target = replica()
    commit = WORLD.commit(WORKER)
    (version,) = chain(1, batches=[[commit]])
    rejection = WORLD.certificate(commit, accepted=False, escalated=True)
    assert take(target, version, commit, rejection) is ACCEPT
    assert target.ledger.chain.version == 0
    assert led(target, 0, version) == [version]
    assert [entry.commit for entry in target.ledger.commits.trained_on_rejected] == [commit]


# A new term


def test_a_standby_trainer_adds_nothing_before_a_final_page_begins_its_term():
    versions = chain(3)
    target = replica(*versions)
    following = WORLD.checkpoint(versions[-1], 1, term=1)
    assert take(target, following) is IGNORE
    pages = book([(4, (1, versions[-1]))])
    pages.show(target, 4)
    assert target.advance(NOW) == [], "the page is notarised, and may still lose"
    assert target.leader == FIRST.peer_id
    pages.show(target, 5)
    assert target.leader == STANDBY.peer_id
    assert target.advance(NOW) == [following]


def test_what_a_former_leader_published_after_the_final_version_is_dropped():
    versions = chain(4)
    target = replica(*versions)
    lead = versions[1]
    assert led(target, 1, lead) == []
    assert versions_of(target) == [GENESIS, *versions[:2]]
    assert not target.behind
    (successor,) = chain(1, lead, 1, term=1)
    assert take(target, successor) is ACCEPT


def test_no_version_of_a_former_leader_is_taken_any_more():
    versions = chain(4)
    target = replica(*versions[:2])
    led(target, 1, versions[1])
    for late in versions[2:]:
        assert take(target, late) is IGNORE
    target.advance(NOW)
    assert versions_of(target) == [GENESIS, *versions[:2]]
    later = WORLD.at(2 + EXPIRE)
    target.advance(later)
    assert not target.behind, "they do not wait for ever"
    (successor,) = chain(1, versions[1], 1, term=1)
    assert take(target, successor, versions[2], now=later) is IGNORE
    assert target.ledger.chain.head == successor


def test_a_version_of_the_new_leader_waits_for_the_page_and_for_the_drop():
    """It may arrive before either."""
    versions = chain(2)
    target = replica(*versions)
    successors = chain(2, versions[0], 1, term=1)
    assert take(target, *successors) is IGNORE
    book([(3, (1, versions[0]))]).show(target, 4)
    assert take(target, successors[0]) is IGNORE
    assert target.ledger.chain.head == versions[1]
    assert target.advance(NOW) == successors
    assert versions_of(target) == [GENESIS, versions[0], *successors]


def test_no_term_fences_the_others_out():
    versions = chain(2)
    target = replica(*versions)
    for term in (3, TERM_MAX - 1, TERM_MAX + 1, 2**53 - 1):
        assert take(target, WORLD.checkpoint(versions[-1], 1, term=term)) is not ACCEPT
    heads = [versions[-1]]
    for term in range(1, 5):
        heads.append(WORLD.checkpoint(heads[-1], term % 2, term=term))
    pages = book([(3 + term, (term, heads[term - 1])) for term in range(1, 5)])
    for term in range(1, 5):
        pages.show(target, 4 + term)
        assert target.lead == Lead(term, heads[term - 1].digest)
        assert take(target, heads[term]) is ACCEPT
    assert target.ledger.chain.head == heads[-1]


def test_a_run_whose_first_trainer_never_comes_begins_with_the_second():
    """The page that begins the term names no version yet."""
    target = WORLD.replica(pages_to=0, genesis=False)
    pages = PageBook(WORLD.manifest, WORLD.validators, {3: Contents(term=1)})
    pages.show(target, 4)
    assert take(target, GENESIS) is IGNORE
    own = WORLD.sealed(GENESIS.message.model_copy(update={"term": 1}), STANDBY)
    assert take(target, own) is ACCEPT
    assert target.advance(NOW) == []
    assert target.ledger.chain.head == own


# A node that joins late

OLD = [[WORLD.commit(WORKER, tokens=tokens)] for tokens in (3, 5, 7)]
"""Commits that every node has forgotten."""


def test_a_new_node_takes_the_versions_up_to_the_final_one_and_no_others():
    versions = chain(5, batches=[*OLD, [], [WORLD.commit(WORKER, tokens=9)]])
    target = replica()
    assert take(target, *versions) is IGNORE
    assert target.ledger.chain.version == 0
    assert led(target, 0, versions[2]) == versions[:4], "version 4 learned from nothing"
    assert (target.ledger.chain.head, target.behind) == (versions[3], True)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_the_final_version_itself_may_come_after_its_page(taken):
    versions = chain(3, batches=OLD)
    target = replica()
    led(target, 0, versions[-1])
    assert target.behind
    take(target, *versions[taken:], *versions[:taken])
    assert target.ledger.chain.version == 0
    assert target.advance(NOW) == versions
    assert not target.behind


def test_a_node_that_lacks_the_final_version_is_behind_until_it_comes():
    versions = chain(3)
    target = replica(*versions[:2])
    assert not target.behind
    assert led(target, 0, versions[2]) == []
    assert (target.behind, target.ledger.chain.head) == (True, versions[1])
    other = WORLD.checkpoint(versions[1], index_bytes=99)
    assert take(target, other) is IGNORE, "the final one may be another"
    take(target, versions[2])
    target.advance(NOW)
    assert (target.behind, target.ledger.chain.head) == (False, versions[2])


def test_a_chain_with_a_gap_waits_for_the_missing_link():
    versions = chain(4, batches=OLD)
    target = replica()
    take(target, *versions[:1], *versions[2:])
    assert led(target, 0, versions[-1]) == []
    assert target.forked
    assert target.behind
    take(target, versions[1])
    assert target.advance(NOW) == versions
    assert not target.forked


def test_a_final_version_takes_the_place_of_all_that_differs():
    """The node was apart with a former leader, which has gone on meanwhile."""
    commits = WORLD.chain(WORKER, 2)
    ours = chain(4, batches=[[commits[0]], [commits[1]]])
    target = replica(*commits, *map(WORLD.certificate, commits), *ours)
    theirs = chain(2, ours[0], 1, term=1, batches=[OLD[0]])
    take(target, *theirs)
    assert led(target, 1, theirs[0]) == theirs
    assert versions_of(target) == [GENESIS, ours[0], *theirs]
    entries = target.ledger.commits.entries
    assert [entries[one.digest].trained_in for one in commits] == [1, None]
    assert target.ledger.workers.totals.trained == 1


# A leader that signs two branches


def forks() -> tuple:
    """Return what a leader signed for two halves of the swarm after a common version."""
    (common,) = chain(1)
    return (
        common,
        chain(3, common),
        chain(3, common, policy=digest(b"another"), batches=[[WORLD.commit(WORKER)]]),
    )


@pytest.mark.parametrize("winner", [0, 1])
def test_the_final_version_decides_between_two_branches_of_the_leader(winner):
    common, *branches = forks()
    commit = WORLD.commit(WORKER)
    certificate = WORLD.certificate(commit)
    ends = []
    for ours, theirs in (branches, branches[::-1]):
        target = replica(common, commit, certificate, *ours)
        take(target, *theirs)
        target.advance(NOW)
        assert target.ledger.chain.head == ours[-1], "the first one stays until then"
        led(target, 0, branches[winner][1])
        take(target, *ours, *theirs)
        target.advance(NOW)
        ends.append(versions_of(target))
        trained_in = target.ledger.commits.entries[commit.digest].trained_in
        assert trained_in == (2 if winner else None)
    assert ends == [[GENESIS, common, *branches[winner]]] * 2


def test_a_node_shows_which_numbers_of_a_term_its_trainer_used_twice():
    common, ours, theirs = forks()
    target = replica(common, *ours)
    rivals = target.ledger.branches
    assert not rivals.has_rival(0, 0)
    take(target, WORLD.checkpoint(ours[-1], batch=(digest(b"never"),)))
    take(target, WORLD.checkpoint(common, 1, term=1))
    assert not rivals.has_rival(0, 0), "one waits for its batch, one is of another term"
    assert not rivals.has_rival(1, 0), "of which nothing is accepted"
    take(target, theirs[1])
    assert rivals.has_rival(0, 0)
    assert not rivals.has_rival(1, 0)
    assert rivals.has_rival(0, 2)
    assert not rivals.has_rival(0, 3), "it is of number 3"


# Two sides of a partition


def test_no_page_of_a_minority_is_final_so_it_keeps_its_term():
    """Its leader goes on; the others go on from the newest version that was final."""
    (common,) = chain(1)
    away = {one.peer_id for one in WORLD.validators[:2]}
    here = {one.peer_id for one in WORLD.validators[2:]}
    says = [(epoch, (1, common)) for epoch in range(4, 30)]
    few, many = book(says, absent=here), book(says, absent=away)
    ours, theirs = chain(3, common), chain(3, common, 1, term=1)
    minority, majority = replica(common), replica(common)
    for target, pages, versions in ((minority, few, ours), (majority, many, theirs)):
        pages.show(target, 30)
        assert take(target, *versions) is ACCEPT
        assert target.ledger.chain.head == versions[-1]
    assert (minority.lead, minority.leader) == (Lead(0, b""), FIRST.peer_id)
    assert (majority.lead, majority.leader) == (Lead(1, common.digest), STANDBY.peer_id)
    for target, versions in ((minority, theirs), (majority, ours)):
        take(target, *versions)
        many.show(target, 30)
        target.advance(NOW)
        assert versions_of(target) == [GENESIS, common, *theirs]
        assert target.advance(NOW) == []


# Bounds


def test_what_waits_is_bounded_and_a_flood_displaces_itself_alone(monkeypatch):
    target = replica()
    monkeypatch.setattr(target.ledger.branches, "limit", 8)
    versions = chain(4, batches=OLD)
    take(target, *versions)
    for number in range(50):
        take(target, WORLD.checkpoint(versions[number % 3], 1, term=1, index_bytes=number))
    assert table_sizes(target.tables)["versions_waiting"] == 8
    assert led(target, 0, versions[-1]) == versions


# Any order


def digest_only(name):
    return WORLD.commit(WORLD.workers[1], 7, body=digest(name))


def everything_said(seed) -> tuple:
    """Return all messages and pages of a run with three branches, and its newest version.

    The first leader signs two branches, a page ends its term, and another one names a version of
    the next leader. What that leader publishes later has clear outcomes, or none.
    """
    rng = random.Random(seed)
    commits = [WORLD.chain(worker, 3) for worker in WORLD.workers]
    flat = [commit for three in commits for commit in three]
    outcomes, last = [], flat[-1]
    for commit in flat[:-1]:
        kinds = rng.choice(["accepted", "rejected", "both"])
        if kinds != "rejected":
            outcomes.append(WORLD.certificate(commit))
        if kinds != "accepted":
            outcomes.append(WORLD.certificate(commit, accepted=False, escalated=True))
    is_accepted = rng.random() < 0.5
    outcomes.append(WORLD.certificate(last, accepted=is_accepted, escalated=not is_accepted))
    fork = rng.randrange(3)
    ours = chain(3, batches=[flat[0:2], flat[2:4], flat[4:6]])
    rivals = chain(2, [GENESIS, *ours][fork], policy=digest(b"rival"), batches=[flat[5:7]])
    old = rng.choice([[GENESIS, *ours], [GENESIS, *ours[:fork], *rivals]])
    first = rng.randrange(len(old))
    begun = rng.randrange(first, len(old))
    later = chain(
        4, old[begun], 1, term=1, batches=[[digest_only(b"never")], flat[7:8], [], [last]]
    )
    final = rng.randrange(2, 4)
    pages = book([(2, (0, old[first])), (4, (1, old[begun])), (6, (1, later[final - 1]))])
    expected = [*old[: begun + 1], *(later if is_accepted else later[:3])]
    return [GENESIS, *flat, *outcomes, *ours, *rivals, *later], pages, expected


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_the_same_messages_and_pages_in_any_order_lead_to_the_same_versions(seed, order):
    messages, pages, expected = everything_said(seed)
    said = [*messages, *order.sample(messages, len(messages) // 3), *range(1, 8)]
    order.shuffle(said)
    target = WORLD.replica(pages_to=0, genesis=False)
    for place, one in enumerate(said):
        if isinstance(one, int):
            pages.show(target, one, first=one)
        else:
            target.receive(one.envelope, WORLD.at(1) - 5)
        if place % 9 == 0:
            target.advance(WORLD.at(1))
    pages.show(target, 7)
    for signed in messages:  # as synchronisation repeats messages that were late or early
        target.receive(signed.envelope, WORLD.at(2))
    target.advance(WORLD.at(2))
    assert versions_of(target) == expected
    known = target.ledger.commits.entries
    learned = [commit for version in expected for commit in version.message.batch]
    assert target.ledger.workers.totals.trained == sum(one in known for one in learned)
    again = WORLD.restarted(target)
    assert (versions_of(again), again.lead) == (expected, target.lead)
