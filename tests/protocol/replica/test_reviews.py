"""Reviews of final outcomes: what pages draw, objections, overturns, and what pages undo."""

from dataclasses import replace

import pytest

from protocol.consensus.member import Contents
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Topic, ValidationResult
from protocol.ledger.commits import CommitState
from protocol.messages import Objection
from protocol.replica.page_contents import PageContents
from protocol.replica.replica import Replica
from protocol.replica.reviews import Review
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import BookReplica, PageBook, fast_output, fast_verify

RULES = {"size": 3, "escalated_size": 4, "reexamine_share": 1.0}
WORLD = World(run_manifest(validators=12, committee=RULES))
GOOD, BAD = (WORLD.commit(one, epoch=0, tokens=7) for one in WORLD.workers[:2])
LISTED, DECIDED, DRAWING = 1, 5, 7
"""Epochs of the pages that list the commits, that decide them, and that draw them again."""

CONTENTS = {
    LISTED: Contents(commits=(GOOD.digest, BAD.digest)),
    DECIDED: Contents(certified=(GOOD.digest,), rejected=(BAD.digest,)),
}


def book(contents=CONTENTS, world=WORLD) -> PageBook:
    made = PageBook(world.manifest, world.validators, contents)
    world.book = made
    return made


BOOK = book()


def replica(last=11, made=BOOK, world=WORLD, commits=(GOOD, BAD)) -> Replica:
    """Return a replica that holds two decided commits, with the pages up to an epoch."""
    target = BookReplica(world.manifest, fast_verify, fast_output)
    made.show(target, last)
    world.refresh(target, 0)
    target.receive(world.genesis().envelope, world.at(0))
    for one in commits:
        target.restore(one.envelope)
    good, bad = commits
    target.restore(world.certificate(good).envelope)
    target.restore(world.certificate(bad, accepted=False, escalated=True).envelope)
    target.fix_counted()
    made.count(target)
    target.advance(world.at(last))
    return target


def review(target, commit, page=None) -> Review | Fault | None:
    page = BOOK.page(DRAWING).digest if page is None else page
    return target.reviews.review(commit.digest, page)


def objection(commit, reason, signer, page=None):
    page = BOOK.page(DRAWING).digest if page is None else page
    message = Objection(commit=commit.digest, page=page, reason=reason)
    return WORLD.sealed(message, WORLD.by_peer.get(signer, signer))


def object_to(target, commit, reason, count=None) -> None:
    """Let members of a panel object."""
    for peer in review(target, commit).panel.members[:count]:
        target.receive(objection(commit, reason, peer).envelope, WORLD.at(11))


def overturn(target, commit, reason, /, **changes):
    """Return the overturn of a commit, signed by its first member."""
    object_to(target, commit, reason)
    found = review(target, commit)
    made = target.reviews.assembled(found)
    return WORLD.sealed(made.model_copy(update=changes), WORLD.by_peer[found.panel.members[0]])


def received(target, signed):
    return target.receive(signed.envelope, WORLD.at(11), topic=Topic.CERTIFICATES)


# Draws of pages


def test_the_first_page_that_draws_after_its_ancestors_show_an_outcome_final_draws_it():
    target = replica()
    found = review(target, GOOD)
    assert (found.receipt.commit, found.receipt.reason) == (GOOD.digest, "accepted")
    committee = WORLD.committee(GOOD)
    assert not set(found.panel.members) & set(committee.escalated)
    assert len(found.panel.members) == 8
    assert {one.receipt.commit for one in target.reviews.due()} == {GOOD.digest, BAD.digest}
    for epoch in (DRAWING - 1, DRAWING + 1):
        other = review(target, GOOD, BOOK.page(epoch).digest)
        assert isinstance(other, Fault), epoch


def test_a_page_draws_nothing_before_it_is_final():
    assert review(replica(last=DRAWING), GOOD) is None
    assert review(replica(last=DRAWING + 1), GOOD) is not None


def test_an_outcome_that_this_node_cannot_confirm_is_not_reviewed():
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    BOOK.show(target, 11)
    assert review(target, GOOD) is None


def shared(share, *, slash=True) -> set[bytes]:
    """Return the commits that a run with another share draws again."""
    rules = RULES | {"reexamine_share": share}
    manifest = run_manifest(validators=12, committee=rules, credit={"slash": slash})
    world = World(manifest)
    commits = [world.commit(one, epoch=0, tokens=7) for one in world.workers[:2]]
    good, bad = (one.digest for one in commits)
    contents = {
        LISTED: Contents(commits=(good, bad)),
        DECIDED: Contents(certified=(good,), rejected=(bad,)),
    }
    target = replica(made=book(contents, world), world=world, commits=commits)
    places = {good: "accepted", bad: "rejected"}
    return {places[one.receipt.commit] for one in target.reviews.due()}


def test_a_rejection_that_slashes_is_always_drawn():
    assert shared(0.0) == {"rejected"}
    assert shared(0.0, slash=False) == set()
    assert shared(1.0, slash=False) == {"accepted", "rejected"}


def test_a_body_stays_until_its_review_is_over():
    lifetime = WORLD.manifest.committee.expire_after_epochs
    awaits = []
    for last in (DECIDED - 1, DECIDED + 2, DRAWING + 1, DRAWING + lifetime, DRAWING + lifetime + 2):
        target = replica(last=last)
        awaits.append(target.reviews.awaits(target.ledger.commits.entries[GOOD.digest]))
    assert awaits == [True, True, True, True, False]


def test_a_body_that_nobody_draws_goes_at_once():
    rules = RULES | {"reexamine_share": 0.0}
    world = World(run_manifest(validators=12, committee=rules, credit={"slash": False}))
    commits = [world.commit(one, epoch=0, tokens=7) for one in world.workers[:2]]
    listed = Contents(commits=tuple(one.digest for one in commits))
    contents = {LISTED: listed, DECIDED: Contents(certified=(commits[0].digest,))}
    made = book(contents, world)
    target = replica(last=DRAWING, made=made, world=world, commits=commits)
    entry = target.ledger.commits.entries[commits[0].digest]
    assert target.reviews.awaits(entry), "no final page could draw it yet"
    target = replica(last=DRAWING + 1, made=made, world=world, commits=commits)
    assert not target.reviews.awaits(target.ledger.commits.entries[commits[0].digest])


# Objections


def test_only_drawn_members_object():
    target = replica()
    member, *_ = review(target, GOOD).panel.members
    outside = WORLD.committee(GOOD).first[0]
    wrong = received_directly(target, objection(GOOD, "computation", outside))
    assert wrong.fault.code is FaultCode.NOT_A_VALIDATOR
    right = objection(GOOD, "computation", member)
    assert received_directly(target, right).result is ValidationResult.ACCEPT
    assert received_directly(target, right).result is ValidationResult.IGNORE


@pytest.mark.parametrize(
    ("commit", "reason"), [(GOOD, "statistics"), (GOOD, "accepted"), (BAD, "computation")]
)
def test_an_objection_that_overturns_nothing_is_ignored(commit, reason):
    target = replica()
    member, *_ = review(target, commit).panel.members
    found = received_directly(target, objection(commit, reason, member))
    assert found.result is ValidationResult.IGNORE
    assert target.reviews.assembled(review(target, commit)) is None


def received_directly(target, signed):
    return target.receive(signed.envelope, WORLD.at(11))


def test_an_objection_is_never_gossiped():
    target = replica()
    member, *_ = review(target, GOOD).panel.members
    envelope = objection(GOOD, "computation", member).envelope
    found = target.receive(envelope, WORLD.at(11), topic=Topic.CERTIFICATES)
    assert found.fault.code is FaultCode.WRONG_TOPIC


def test_a_quorum_of_objections_forms_an_overturn():
    target = replica()
    found = review(target, GOOD)
    object_to(target, GOOD, "computation", found.panel.quorum - 1)
    object_to(target, GOOD, "format", 1)
    assert target.reviews.assembled(found) is None
    object_to(target, GOOD, "computation", found.panel.quorum)
    made = target.reviews.assembled(found)
    assert made.reason == "computation"
    assert len(made.signatures) == found.panel.quorum


def test_a_member_with_a_reason_of_its_own_holds_no_overturn_up():
    """Its reason comes first in the alphabet."""
    target = replica()
    found = review(target, GOOD)
    object_to(target, GOOD, "computation", 1)
    object_to(target, GOOD, "format", found.panel.quorum)
    made = target.reviews.assembled(found)
    assert made.reason == "format"
    assert len(made.signatures) == found.panel.quorum


# Overturns


def test_an_overturn_convinces_a_node_without_objections():
    signed, target = overturn(replica(), GOOD, "computation"), replica()
    assert received(target, signed).result is ValidationResult.ACCEPT
    assert received(target, signed).result is ValidationResult.IGNORE
    assert target.reviews.reason(GOOD.digest) == "computation"
    assert target.ledger.commits.entries[GOOD.digest].state is CommitState.CERTIFIED, "no page yet"


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "accepted"},
        {"reason": "format"},
        {"members": 0b111, "signatures": (bytes(64),) * 3},
        {"page": WORLD.book.page(DRAWING + 1).digest},
        {"commit": BAD.digest},
    ],
)
def test_a_wrong_overturn_is_refused(changes):
    target = replica()
    found = received(target, overturn(target, GOOD, "computation", **changes))
    assert found.fault.code is FaultCode.BAD_OVERTURN
    assert not list(target.reviews.overturns())


def test_an_overturn_waits_for_its_page():
    signed, target = overturn(replica(), GOOD, "computation"), replica(last=DRAWING)
    assert received(target, signed).result is ValidationResult.IGNORE
    assert target.is_waiting(signed.digest)
    BOOK.show(target, 11)
    assert signed in target.advance(WORLD.at(11))
    assert target.reviews.reason(GOOD.digest) == "computation"


def test_of_two_reasons_all_nodes_choose_the_same():
    first, second = (overturn(replica(), GOOD, one) for one in ("format", "computation"))
    for order in ((first, second), (second, first)):
        target = replica()
        for one in order:
            assert received(target, one).result is ValidationResult.ACCEPT
        assert target.reviews.reason(GOOD.digest) == "computation"


def test_an_overturn_is_offered_while_others_accept_it():
    target = replica()
    signed = overturn(target, GOOD, "computation")
    received(target, signed)
    assert list(target.reviews.current()) == [signed]
    late = replica(last=DRAWING + WORLD.manifest.committee.expire_after_epochs + 2)
    late.reviews.restore(signed)
    assert list(late.reviews.current()) == []


# Pages


LISTS = 12
"""Epoch of a page that may say what honest views may refuse."""


def proposed(target, epoch=LISTS) -> Contents:
    judgement = PageContents(target, WORLD.validators[0].peer_id, epoch, held=lambda: -1)
    return judgement.contents(target.pages.tip(epoch), epoch)


def approves(target, contents, epoch=LISTS) -> bool:
    tip = target.pages.tip(epoch)
    page = BOOK.page(11).message.model_copy(
        update={"epoch": epoch, "ledger": contents.ledger, **contents.fields(tip)}
    )
    judgement = PageContents(target, WORLD.validators[0].peer_id, epoch, held=lambda: -1)
    return judgement.approves(page, tip)


def overturned_here(*commits) -> Replica:
    """Return a replica that has held the overturns of commits for some epochs."""
    target = replica()
    for commit, reason in commits:
        target.reviews.restore(overturn(replica(), commit, reason))
    return target


def test_a_member_proposes_what_it_has_held_for_some_epochs():
    target = overturned_here((GOOD, "computation"))
    contents = proposed(target)
    assert contents.overturned == (GOOD.digest,)
    assert approves(target, contents)
    late = replica()
    received(late, overturn(replica(), GOOD, "computation"))
    assert proposed(late).overturned == (), "other members may not have it yet"
    assert approves(late, contents)


def test_a_member_approves_no_overturn_that_it_does_not_hold():
    contents = proposed(overturned_here((GOOD, "computation")))
    assert not approves(replica(), contents)
    assert not approves(overturned_here((GOOD, "format")), contents), "another reason"
    twice = overturned_here((GOOD, "computation"))
    assert not approves(twice, replace(contents, overturned=2 * contents.overturned))


def test_an_overturn_is_listed_within_the_lifetime_of_a_commit():
    lifetime = WORLD.manifest.committee.expire_after_epochs
    for age, is_listed in ((lifetime, True), (lifetime + 1, False)):
        target = overturned_here((GOOD, "computation"))
        parent = target.pages.tip(LISTS)
        found = target.reviews.listable(parent, DRAWING + age, 0)
        assert found == [GOOD.digest] * is_listed


OVERTURNED = CONTENTS | {LISTS: Contents(overturned=(GOOD.digest, BAD.digest))}


def after(last=15, *, overturns=True) -> tuple[Replica, PageBook]:
    """Return a replica that follows a chain that overturns both commits."""
    before = [overturn(replica(), GOOD, "computation"), overturn(replica(), BAD, "accepted")]
    made = PageBook(WORLD.manifest, WORLD.validators, OVERTURNED)
    target = replica(last=11, made=made)
    for one in before if overturns else ():
        assert received(target, one).result is ValidationResult.ACCEPT
    made.show(target, last, first=12, with_work=False)
    return target, made


def test_a_final_page_undoes_both_outcomes_everywhere():
    target, made = after()
    target.count_final()
    assert target.intake.accounts.root == made.roots[LISTS + 2]
    workers, accounts = target.ledger.workers, target.intake.accounts
    good, bad = (target.ledger.commits.entries[one.digest] for one in (GOOD, BAD))
    assert (good.state, good.reason) == (CommitState.REJECTED, "computation")
    assert (bad.state, bad.reason) == (CommitState.CERTIFIED, "accepted")
    liar, honest = GOOD.signer, BAD.signer
    assert workers.is_slashed(liar)
    assert not workers.is_slashed(honest)
    assert (workers.counts[liar].certified, workers.counts[liar].rejected) == (0, 1)
    assert (workers.counts[honest].certified, workers.counts[honest].rejected) == (1, 0)
    rejecting = WORLD.committee(BAD)
    signers, rejecters = WORLD.committee(GOOD).first, rejecting.escalated[: rejecting.quorum]
    guilty = {*signers, *rejecters}
    assert all(accounts.has_lied(peer) for peer in guilty)
    only_once = next(peer for peer in signers if peer not in rejecters)
    assert target.reviews.reversed_by(only_once) == GOOD.digest
    assert target.reviews.reversed_by(WORLD.workers[2].peer_id) is None
    judgement = PageContents(target, "", 0, held=lambda: -1)
    assert all(judgement.is_guilty(peer) for peer in guilty)


def test_before_its_overturn_the_slash_stands():
    target = replica()
    assert target.ledger.workers.is_slashed(BAD.signer)
    assert not target.ledger.workers.is_slashed(GOOD.signer)


def test_a_restart_keeps_overturned_outcomes_and_roots():
    target, _ = after()
    target.count_final()
    again = WORLD.restarted(target)
    assert again.intake.accounts.root == target.intake.accounts.root
    for one in (GOOD, BAD):
        found = again.ledger.commits.entries[one.digest]
        assert found.status == target.ledger.commits.entries[one.digest].status
    assert not again.ledger.workers.is_slashed(BAD.signer)


def test_a_node_without_the_overturns_receives_the_work():
    target, made = after(overturns=False)
    target.count_final()
    assert target.intake.ledger.is_behind
    made.count(target)
    target.count_final()
    assert target.intake.accounts.root == made.roots[LISTS + 2]
    assert target.ledger.commits.entries[GOOD.digest].state is CommitState.REJECTED
    assert not target.ledger.workers.is_slashed(BAD.signer)


def test_an_old_certificate_does_not_undo_an_overturn():
    target, _ = after()
    target.count_final()
    certificate = WORLD.certificate(BAD, accepted=False, escalated=True)
    found = target.receive(certificate.envelope, WORLD.at(16))
    assert found.result is ValidationResult.IGNORE
    assert not target.ledger.workers.is_slashed(BAD.signer)


def test_a_node_that_learns_of_the_certificate_last_reaches_the_same_outcome():
    _, made = after()
    late = BookReplica(WORLD.manifest, fast_verify, fast_output)
    made.show(late, 15)
    WORLD.refresh(late, 0)
    late.receive(WORLD.genesis().envelope, WORLD.at(0))
    for one in (GOOD, BAD):
        late.restore(one.envelope)
    late.restore(WORLD.certificate(BAD, accepted=False, escalated=True).envelope)
    assert late.ledger.commits.entries[BAD.digest].state is CommitState.CERTIFIED
    assert not late.ledger.workers.is_slashed(BAD.signer)


def test_an_overturned_commit_is_listed_once():
    target, _ = after()
    target.count_final()
    tip = target.pages.tip(16)
    assert target.reviews.listable(tip, 16, 0) == []
    decided = target.settlement.decided([], [], [GOOD.digest])
    work = target.settlement.work(decided, tip.head, tip.head, tip.digest)
    ledger = target.intake.ledger.root(tip.shown_epoch)
    assert approves(target, Contents(ledger=ledger), 16)
    again = Contents(overturned=(GOOD.digest,), work=work.digest, ledger=ledger)
    assert not approves(target, again, 16)
