"""Attacks by a few keys of the genesis, each tried on a replica that refuses it."""

import pytest

from protocol.consensus.committee import draw
from protocol.consensus.member import Contents
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.types import ValidationResult
from protocol.ledger.chain import Lead
from protocol.ledger.commits import CommitState
from protocol.messages import LISTED_MAX, Certificate, Invite
from protocol.replica.replica import Replica
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

ACCEPT, IGNORE, REJECT = ValidationResult.ACCEPT, ValidationResult.IGNORE, ValidationResult.REJECT


def take(target, *signed, now) -> ValidationResult:
    """Offer messages and return the result of the last one."""
    return [target.receive(one.envelope, now).result for one in signed][-1]


# Versions: a standby trainer, and the leader itself

TWO = World(run_manifest(trainers=2))
FIRST, STANDBY = TWO.trainers
NOW = TWO.at(1)


def led(versions=3):
    """Return a replica at a version of a live leader, with a live standby trainer."""
    target = TWO.replica()
    take(target, *(TWO.record(one, ("trainer",), 1) for one in TWO.trainers), now=NOW)
    for _ in range(versions):
        take(target, TWO.checkpoint(target.ledger.chain.head), now=NOW)
    return target


def test_a_standby_trainer_takes_no_lead_by_a_version_of_its_own():
    target = led()
    own = TWO.checkpoint(target.ledger.chain.head, 1, term=1, policy=digest(b"of nothing"))
    assert take(target, own, now=NOW) is IGNORE
    target.advance(NOW)
    assert (target.ledger.chain.version, target.leader) == (3, FIRST.peer_id)


def test_a_standby_trainer_does_not_end_the_run_by_a_chain_of_its_own():
    target = led()
    before, version = target.ledger.chain.head, target.ledger.chain.head
    while version.message.version < TWO.manifest.grpo.steps:
        version = TWO.checkpoint(version, 1, term=1)
        take(target, version, now=NOW)
    target.advance(NOW)
    assert target.ledger.chain.head == before
    assert target.ledger.backpressure.wanted(1) > 0
    assert take(target, TWO.checkpoint(before), now=NOW) is ACCEPT


def test_a_leader_cannot_learn_from_a_rejected_rollout():
    target, commit = led(1), TWO.commit(TWO.workers[0])
    take(target, commit, TWO.certificate(commit, accepted=False, escalated=True), now=NOW)
    assert target.ledger.workers.is_slashed(commit.signer)
    version = TWO.checkpoint(target.ledger.chain.head, batch=(commit.digest,))
    assert take(target, version, now=NOW) is IGNORE
    assert target.advance(NOW) == []


def test_a_date_ahead_makes_no_key_old_enough():
    world = World(
        run_manifest(admission={"rule": "invite", "probation_epochs": 2, "settled_epochs": 60})
    )
    target, now, guest = world.replica(), world.at(100), world.workers[0]
    proof = invite(world, identity("creator"), guest, 100)
    take(target, world.record(guest, ("inference",), 100, admission=proof), now=now)
    dated = {"honest": round(now * 1000), "ahead": 2**52}
    versions = {
        name: world.checkpoint(world.genesis(), created_at=at) for name, at in dated.items()
    }
    assert take(target, versions["ahead"], now=now) is IGNORE
    assert target.ledger.chain.version == 0
    assert take(target, versions["honest"], now=now) is ACCEPT
    assert not target.counts(guest.peer_id, 1, 100)


# Outcomes: colluding validators


@pytest.mark.parametrize(
    ("size", "escalated", "colluders"), [(2, 3, 2), (3, 7, 2), (3, 7, 4)], ids=str
)
def test_a_coalition_outside_the_committee_overturns_no_certificate(size, escalated, colluders):
    """Neither while the commit is held nor when it is old, of 200 honest workers."""
    world = World(
        run_manifest(validators=10, committee={"size": size, "escalated_size": escalated})
    )
    here, late = world.replica(), world.replica()
    evil, tried = world.validators[:colluders], 0
    keys, old = {one.peer_id for one in evil}, world.at(100)
    workers = [identity(f"honest {number}") for number in range(LISTED_MAX)]
    commits = [world.commit(honest) for honest in workers]
    world.book.drawing(*commits)
    for honest, commit in zip(workers, commits, strict=True):
        take(here, world.record(honest, ("inference",)), commit, now=world.at(0))
        committee = world.committee(commit)
        able = [world.by_peer[peer] for peer in committee.escalated if peer in keys]
        if len(able) >= committee.quorum:
            continue  # two of three: the committee has decided
        tried += 1
        take(here, world.certificate(commit), now=world.at(1))
        late.receive(commit.envelope, old, anti_entropy=True)
        for signers in filter(None, (evil, able)):
            rejection = signed_by(world, commit, signers, accepted=False)
            received = here.receive(rejection.envelope, world.at(9))
            assert received.fault is not None
            assert received.fault.code == "bad-certificate"
            late.receive(rejection.envelope, old, anti_entropy=True)
        assert here.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED
        for target in (here, late):
            assert not target.ledger.workers.is_slashed(honest.peer_id)
    assert tried >= 180


def test_a_quorum_of_the_others_overturns_no_acceptance_of_the_first_committee():
    """In a committee of 3 and 9 the other six are a quorum, and nobody asked them."""
    world = World(run_manifest(validators=12, committee={"size": 3, "escalated_size": 9}))
    target, tried = world.replica(), 0
    commits = [world.commit(identity(f"honest {number}")) for number in range(30)]
    world.book.drawing(*commits)
    for commit in commits:
        take(target, commit, now=world.at(0))
        committee = world.committee(commit)
        others = [world.by_peer[peer] for peer in committee.escalated[3:]]
        assert len(others) == committee.quorum
        rejection = signed_by(world, commit, others, accepted=False)
        tried += take(target, rejection, now=world.at(1)) is ACCEPT
        assert take(target, world.certificate(commit), now=world.at(1)) is ACCEPT
        assert take(target, rejection, now=world.at(9)) is IGNORE
        assert target.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED
        assert not target.ledger.workers.is_slashed(commit.signer)
    assert tried == 30, "each was valid"


def signed_by(world, commit, signers, *, accepted, page=None):
    """Return a certificate with verdicts of ``signers``, a rejection by the larger committee."""
    page = page or world.committee(commit).page.digest
    verdicts = tuple(
        world.verdict(one, commit, accept=accepted, page=page).envelope for one in signers
    )
    message = Certificate(
        commit=commit.digest,
        page=page,
        escalated=not accepted,
        accepted=accepted,
        verdicts=verdicts,
    )
    return world.sealed(message, signers[0])


SEVEN = World(
    run_manifest(
        trainers=2,
        validators=10,
        committee={"size": 3, "escalated_size": 7},
    )
)


def drawn_by(page, friends, epoch):
    """Return a commit, found by trial of bodies, for which a page would draw ``friends`` first."""
    keys = {one.peer_id for one in friends}
    commits = (
        SEVEN.commit(SEVEN.workers[0], body=digest(b"%d" % number), epoch=epoch)
        for number in range(10_000)
    )
    return next(one for one in commits if set(draw(SEVEN.manifest, page, one).first) == keys)


@pytest.mark.parametrize("dated", range(6))
@pytest.mark.parametrize("anti_entropy", [False, True])
def test_a_commit_dated_back_waits_for_a_page_to_list_it_and_a_later_one_to_draw(
    dated, anti_entropy
):
    """Its author knows all pages so far, and has tried bodies until one of them draws friends.

    Whatever epoch it states, and however it sends the commit: the page that draws is made later.
    """
    friends, target = SEVEN.validators[:3], SEVEN.replica(pages_to=5)
    book = PageBook(SEVEN.manifest, SEVEN.validators)  # the same pages up to epoch 6
    known = target.pages.page(SEVEN.book.page(max(1, dated)).digest)
    commit, now = drawn_by(known, friends, dated), SEVEN.at(5)
    received = target.receive(commit.envelope, now, anti_entropy=anti_entropy)
    if received.result is not ACCEPT:
        assert (received.fault.code, anti_entropy, dated < 3) == ("old-date", False, True)
        assert target.receive(commit.envelope, now, anti_entropy=True).result is ACCEPT
    assert target.verdicts.committee(commit) is None
    made_up = signed_by(SEVEN, commit, friends, accepted=True, page=digest(b"a page"))
    assert take(target, made_up, now=now) is IGNORE
    book.list_in(7, commit)
    for epoch in range(6, 9):
        for page in range(1, epoch):
            guess = book.page(page).digest
            early = signed_by(SEVEN, commit, friends, accepted=True, page=guess)
            received = target.receive(early.envelope, SEVEN.at(epoch))
            assert received.fault.code == "bad-certificate"
        assert target.verdicts.committee(commit) is None
        target.advance(SEVEN.at(epoch))
        assert target.ledger.commits.entries[commit.digest].certificate is None
        book.show(target, epoch, first=epoch)
    committee = target.verdicts.committee(commit)
    assert committee.page.digest == book.page(8).digest
    assert set(committee.first) != {one.peer_id for one in friends}
    drawn = [SEVEN.by_peer[peer] for peer in committee.first]
    for signers, result in ((friends, REJECT), (drawn, ACCEPT)):
        late = signed_by(SEVEN, commit, signers, accepted=True, page=committee.page.digest)
        assert take(target, late, now=SEVEN.at(9)) is result


def test_no_certificate_overturns_a_final_acceptance():
    """Not even one that a page before it in another branch drew, which outranks it."""
    commit = SEVEN.commit(SEVEN.workers[0])
    book = PageBook(SEVEN.manifest, SEVEN.validators, {5: Contents(certified=(commit.digest,))})
    book.list_in(3, commit)
    target = SEVEN.replica(pages_to=0)
    take(target, commit, now=SEVEN.at(0))
    book.show(target, 5)
    committee = target.verdicts.committee(commit)
    drawn = [SEVEN.by_peer[peer] for peer in committee.first]
    acceptance = signed_by(SEVEN, commit, drawn, accepted=True, page=committee.page.digest)
    earlier = SEVEN.certificate(commit, accepted=False, escalated=True)
    assert SEVEN.committee(commit).page.epoch < committee.page.epoch
    for final in (False, True):
        target = SEVEN.replica(pages_to=0)
        take(target, commit, now=SEVEN.at(0))
        book.show(target, 4)
        assert take(target, acceptance, now=SEVEN.at(4)) is ACCEPT
        for page in (book.page(5), *([book.page(6)] if final else [])):
            votes = book.votes(page.message.epoch)
            take(target, page, *votes, now=SEVEN.at(page.message.epoch))
        assert target.pages.root.epoch == (5 if final else 4)
        assert take(target, earlier, now=SEVEN.at(7)) is (IGNORE if final else ACCEPT)
        state = target.ledger.commits.entries[commit.digest].state
        assert (state is CommitState.CERTIFIED) is final
        assert target.ledger.workers.is_slashed(commit.signer) is not final


def test_no_certificate_is_taken_before_the_page_that_draws_its_committee():
    target = Replica(SEVEN.manifest, fast_verify, fast_output)
    commit = SEVEN.commit(SEVEN.workers[0])
    take(target, SEVEN.genesis(), now=SEVEN.at(0))
    friends = [SEVEN.by_peer[peer] for peer in SEVEN.committee(commit).first]
    take(target, commit, now=SEVEN.at(0))
    certificate = signed_by(SEVEN, commit, friends, accepted=True)
    assert take(target, certificate, now=SEVEN.at(0)) is IGNORE
    target.advance(SEVEN.at(0))
    assert target.ledger.commits.entries[commit.digest].state is CommitState.COMMITTED


def test_keys_that_a_page_removed_certify_nothing():
    """Keys of the genesis that were never on line leave the council for their silence."""
    retired = SEVEN.validators[7:]
    target = Replica(SEVEN.manifest, fast_verify, fast_output)
    removal = Contents(removed=tuple(one.public_key for one in retired))
    book = PageBook(SEVEN.manifest, SEVEN.validators, {1: removal})
    book.show(target, 3)
    assert len(target.pages.council.members) == 7
    take(target, SEVEN.genesis(), now=NOW)
    commit = drawn_by(target.pages.page(book.page(1).digest), retired, 4)
    book.list_in(4, commit)
    book.show(target, 8)
    assert take(target, commit, now=SEVEN.at(5)) is ACCEPT
    for page, fault in ((5, "not-a-validator"), (1, "bad-certificate")):
        name = book.page(page).digest
        certificate = signed_by(SEVEN, commit, retired, accepted=True, page=name)
        received = target.receive(certificate.envelope, SEVEN.at(6))
        assert (received.result, received.fault.code) == (REJECT, fault)


def test_other_records_for_each_half_of_the_swarm_split_no_outcome():
    """Committees follow from pages alone, so no certificate of one half is refused by the other."""
    one, other = SEVEN.replica(), SEVEN.replica(roster_at=None)
    for validator in SEVEN.validators[:4]:
        take(other, SEVEN.record(validator, ("relay",)), now=SEVEN.at(0))
    for number in range(60):
        commit = SEVEN.commit(identity(f"honest {number}"))
        accepted = number % 2 == 0
        certificate = SEVEN.certificate(commit, accepted=accepted, escalated=not accepted)
        for target in (one, other):
            take(target, commit, now=SEVEN.at(0))
            assert take(target, certificate, now=SEVEN.at(2)) is ACCEPT


# Members that are gone for good

GONE = World(
    run_manifest(
        validators=7,
        committee={"size": 3, "escalated_size": 7},
        council={"silent_epochs": 3, "recovery_epochs": 6},
    )
)


@pytest.mark.parametrize(("gone", "recovers"), [(2, True), (3, True), (4, False)])
def test_committees_return_unless_half_of_the_council_is_gone(gone, recovers):
    """More than a third stops all pages, until the recovery removes them."""
    absent = GONE.validators[:gone]
    removal = Contents(removed=tuple(one.public_key for one in absent))
    peers = {one.peer_id for one in absent}
    changes = dict.fromkeys(range(7, 60), removal) if gone > 2 else {}
    commit = GONE.commit(GONE.workers[0], epoch=50)
    lists = dict.fromkeys(range(60, 64), Contents(commits=(commit.digest,)))
    book = PageBook(GONE.manifest, GONE.validators, changes | lists, absent=peers)
    target = Replica(GONE.manifest, fast_verify, fast_output)
    book.show(target, 80)
    committee = target.verdicts.committee(commit)
    assert (committee is not None) is recovers
    if gone == 3:
        assert not peers & set(committee.ranking)
        assert len(committee.ranking) == 4


# Final versions: an eclipsed node, and a coalition of validators


def made_up(world, length, parent=None):
    """Return a chain of the standby trainer that begins with a commit that never existed."""
    parent = parent or world.genesis()
    chain = [world.checkpoint(parent, 1, term=1, batch=(digest(b"never"),))]
    while len(chain) < length:
        chain.append(world.checkpoint(chain[-1], 1))
    return chain


COALITION = World(run_manifest(trainers=2, validators=7))
LAST = 40


def colluding(members, final, term=1):
    """Return the pages of some members alone, which name a final version in every epoch."""
    absent = {one.peer_id for one in COALITION.validators} - {one.peer_id for one in members}
    says = dict.fromkeys(range(1, LAST + 1), Contents(term=term, head=final.digest))
    return PageBook(COALITION.manifest, COALITION.validators, says, absent=absent)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_fewer_validators_than_a_quorum_lead_no_eclipsed_node(count):
    """Not even with the keys of all trainers, and with no honest peer in sight."""
    colluders = COALITION.validators[:count]
    chain = made_up(COALITION, 30)
    pages = colluding(colluders, chain[-1])
    target = COALITION.replica(pages_to=0, roster_at=None)
    for epoch in range(1, LAST + 1):
        now = COALITION.at(epoch)
        records = [
            COALITION.record(one, ("validator",), epoch, checkpoint=chain[-1].digest)
            for one in colluders
        ]
        take(target, *records, *chain, now=now)
        pages.show(target, epoch, first=epoch)
        target.advance(now)
    led_astray = count == 5
    assert (target.ledger.chain.head == chain[-1]) is led_astray
    assert (target.leader == COALITION.trainers[1].peer_id) is led_astray
    assert (target.pages.root.epoch > 0) is led_astray


def with_a_final_version():
    """Return versions, and a replica that holds them and for which the second one is final."""
    honest = [COALITION.genesis()]
    for _ in range(4):
        honest.append(COALITION.checkpoint(honest[-1]))
    target = COALITION.replica(pages_to=0)
    take(target, *honest[1:], now=NOW)
    says = {3: Contents(head=honest[2].digest)}
    PageBook(COALITION.manifest, COALITION.validators, says).show(target, 5)
    target.advance(NOW)
    assert target.lead == Lead(0, honest[2].digest)
    return honest, says, target


@pytest.mark.parametrize(("count", "begins"), [(4, False), (5, True)])
def test_a_majority_below_the_quorum_ends_no_term(count, begins):
    honest, says, target = with_a_final_version()
    colluders = {one.peer_id for one in COALITION.validators[:count]}
    lies = dict.fromkeys(range(6, 12), Contents(term=1, head=honest[2].digest))
    pages = PageBook(COALITION.manifest, COALITION.validators, says | lies)
    (successor,) = made_up(COALITION, 1, honest[2])
    for epoch in range(6, 12):
        votes = [one for one in pages.votes(epoch) if one.signer in colluders]
        take(target, pages.page(epoch), *votes, successor, now=COALITION.at(epoch))
        target.advance(COALITION.at(epoch))
    assert (target.lead.term == 1) is begins
    assert (target.ledger.chain.head == honest[-1]) is not begins


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("back_to", [0, 1, 2])
def test_not_even_the_whole_council_takes_a_final_version_back(back_to, is_restarted):
    """Neither for a branch of its own nor by naming an older version in a new term."""
    honest, says, target = with_a_final_version()
    if is_restarted:
        target = COALITION.restarted(target)
        target.advance(NOW)
    theirs = made_up(COALITION, 6, honest[back_to])
    lies = {6: Contents(term=1, head=honest[back_to].digest)}
    lies |= {12: Contents(term=1, head=theirs[-1].digest)}
    pages = PageBook(COALITION.manifest, COALITION.validators, says | lies)
    for last in (7, 13):
        pages.show(target, last, first=6)
        assert target.lead.term == 1
        for _ in range(2):
            take(target, *theirs, now=NOW)
            target.advance(NOW)
    after_final = theirs if back_to == 2 else honest[3:]
    versions = [one.manifest for one in target.ledger.chain.checkpoints]
    assert versions == [*honest[:3], *after_final]
    assert target.behind is (back_to < 2), "it waits for a person"


# Invites: the creator voids a number


def invite(world, creator, guest, epoch):
    """Return an invite with number 7."""
    key = public_key_from_peer_id(guest.peer_id)
    return world.sealed(Invite(key=key, number=7, epoch=epoch, until=10**6), creator).envelope


@pytest.mark.parametrize("judged", [True, False])
def test_an_inviter_voids_no_guest_with_certified_work(judged):
    world = World(run_manifest(admission={"rule": "invite", "probation_epochs": 0}))
    creator, (guest, decoy) = identity("creator"), world.workers[:2]
    target, commit = world.replica(), world.commit(guest)
    proof = invite(world, creator, guest, 0)
    take(target, world.record(guest, ("inference",), admission=proof), now=world.at(0))
    take(target, commit, now=world.at(1))
    if judged:
        take(target, world.certificate(commit), now=world.at(2))
        assert target.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED
    again = invite(world, creator, decoy, 5000)
    take(target, world.record(decoy, ("relay",), 5000, admission=again), now=world.at(5000))
    assert target.counts(guest.peer_id, 1, 5001) is judged
