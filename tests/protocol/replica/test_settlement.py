"""Work of pages, as one node derives it from the commits, verdicts and versions that it holds."""

import pytest

from protocol.consensus.member import Contents
from protocol.core.types import ValidationResult
from protocol.ledger.receipts import STEPS_MAX, PageWork, Receipt, Step
from protocol.replica.replica import Replica
from protocol.replica.settlement import DecidedCommits
from tests.worlds.messages import World, round_of, run_manifest, verdict_of
from tests.worlds.page_book import BookReplica, PageBook, fast_output, fast_verify

WORLD = World(run_manifest(validators=7))
GENESIS = WORLD.genesis()
GOOD, BAD, OPEN = (WORLD.commit(one, epoch=2, tokens=7, slot=0) for one in WORLD.workers)
"""The pages of epoch 2 and later draw them on branches of their own."""

COMMITTEE = WORLD.committee(GOOD)
MEMBERS = [WORLD.by_peer[peer] for peer in COMMITTEE.escalated]
assert len(COMMITTEE.first) == 3
assert (len(MEMBERS), COMMITTEE.quorum) == (4, 3)


def holding(*messages, last=11) -> Replica:
    """Return a replica that holds some messages, and pages that name none of them."""
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    WORLD.book.show(target, last)
    for one in messages:
        target.restore(one.envelope)
    return target


def bits(*places) -> int:
    return sum(1 << place for place in places)


def receipts(target, certified=(), rejected=(), checkers=()) -> tuple[Receipt, ...] | None:
    """Return the receipts of commits; None if this node cannot give them."""
    commits = (tuple(one.digest for one in group) for group in (certified, rejected))
    work = target.settlement.work(DecidedCommits(*commits, tuple(checkers)), b"", b"")
    return None if work is None else work.receipts


def receipt_of(target, commit, *places, accepted=True) -> Receipt | None:
    """Return the receipt of a commit that some members of its committee have decided."""
    group = {"certified" if accepted else "rejected": [commit]}
    found = receipts(target, **group, checkers=[bits(*places)])
    return found and found[0]


def decided(target, certified=(), rejected=()) -> DecidedCommits:
    return target.settlement.decided(
        [one.digest for one in certified], [one.digest for one in rejected]
    )


def sealed_by(commit, *places, accept=True, reason="computation"):
    """Return the verdicts of some members of a commit's committee."""
    committee, reason = WORLD.committee(commit), "accepted" if accept else reason
    message = verdict_of(commit.digest, committee.page.digest, reason)
    signers = [WORLD.by_peer[committee.escalated[place]] for place in places]
    return [WORLD.sealed(message, one) for one in signers]


def certified_by(commit, *verdicts, accepted=True, escalated=True):
    envelopes = tuple(one.envelope for one in verdicts)
    return WORLD.certificate(commit, accepted=accepted, escalated=escalated, verdicts=envelopes)


def rejected_for(commit, *reasons):
    """Return a rejection by the first members of a committee, with a reason each."""
    verdicts = [
        one
        for place, reason in enumerate(reasons)
        for one in sealed_by(commit, place, accept=False, reason=reason)
    ]
    return certified_by(commit, *verdicts, accepted=False)


# Receipts


def test_the_first_committee_decides_by_all_of_its_members():
    target = holding(GOOD, WORLD.certificate(GOOD))
    assert decided(target, [GOOD]) == DecidedCommits((GOOD.digest,), (), (bits(0, 1, 2),))
    assert receipt_of(target, GOOD, 0, 1, 2) == Receipt(
        commit=GOOD.digest,
        worker=WORLD.workers[0].peer_id,
        version=0,
        slot=0,
        evaluation=False,
        tokens=7,
        reason="accepted",
        checkers=tuple(sorted(COMMITTEE.first)),
    )
    for places in ((), (0, 1), (1, 2), (0, 2)):
        assert receipt_of(target, GOOD, *places) is None


def test_the_larger_committee_decides_by_two_thirds():
    verdicts = sealed_by(GOOD, 0, 2, 3)
    target = holding(GOOD, certified_by(GOOD, *verdicts))
    assert decided(target, [GOOD]).checkers == (bits(0, 2, 3),)
    found = receipt_of(target, GOOD, 0, 2, 3)
    assert found.checkers == tuple(sorted(one.signer for one in verdicts))
    assert receipt_of(target, GOOD, 0, 2) is None, "too few"


def test_a_checker_whose_verdict_is_not_here_counts_as_none():
    """A page that names it may be true, but this node cannot confirm it."""
    target = holding(GOOD, WORLD.certificate(GOOD))
    assert receipt_of(target, GOOD, 0, 1, 3) is None
    assert receipt_of(target, GOOD, 0, 1, 2, 3) is None
    target.verdicts.add(sealed_by(GOOD, 3)[0], GOOD)
    assert len(receipt_of(target, GOOD, 0, 1, 2, 3).checkers) == 4
    assert receipt_of(target, GOOD, 0, 1, 3) is not None, "two thirds of the larger committee"
    assert receipt_of(target, GOOD, 0, 1, 2, 4) is None, "the committee has no such member"
    assert receipt_of(target, GOOD, 0, 1, 2, 60) is None


def test_a_verdict_against_the_outcome_is_no_check():
    target = holding(GOOD, WORLD.certificate(GOOD))
    target.verdicts.add(sealed_by(GOOD, 3, accept=False)[0], GOOD)
    assert receipt_of(target, GOOD, 0, 1, 2, 3) is None


def test_a_rejection_has_the_reason_that_most_of_its_checkers_give():
    target = holding(BAD, rejected_for(BAD, "encoding", "computation", "computation"))
    assert decided(target, [], [BAD]) == DecidedCommits((), (BAD.digest,), (bits(0, 1, 2),))
    found = receipt_of(target, BAD, 0, 1, 2, accepted=False)
    assert (found.reason, found.tokens) == ("computation", 7)
    assert receipt_of(target, BAD, 0, 1, accepted=False) is None, "too few"
    target.verdicts.add(sealed_by(BAD, 3, accept=False, reason="encoding")[0], BAD)
    for places, reason in (((0, 1, 2), "computation"), ((0, 2, 3), "encoding")):
        assert receipt_of(target, BAD, *places, accepted=False).reason == reason, "its checkers"


def test_the_first_committee_cannot_reject():
    """Unless it is two thirds of the larger one."""
    world = World(run_manifest(validators=7, committee={"size": 2, "escalated_size": 5}))
    commit = world.commit(world.workers[0], epoch=2)
    committee = world.committee(commit)
    assert committee.quorum == 4
    target = BookReplica(world.manifest, fast_verify, fast_output)
    world.book.show(target, 11)
    rejection = world.certificate(commit, accepted=False, escalated=True)
    for one in (commit, rejection):
        target.restore(one.envelope)
    for places in ((0, 1), (0, 1, 2)):
        assert receipt_of(target, commit, *places, accepted=False) is None
    assert receipt_of(target, commit, 0, 1, 2, 3, accepted=False) is not None


def test_a_page_with_another_outcome_than_this_nodes_is_not_confirmed():
    target = holding(GOOD, BAD, WORLD.certificate(GOOD), rejected_for(BAD, *["computation"] * 3))
    assert receipt_of(target, GOOD, 0, 1, 2, accepted=False) is None
    assert receipt_of(target, BAD, 0, 1, 2) is None
    assert decided(target, [BAD], [GOOD]).checkers == ()


def test_members_that_also_signed_the_contrary_decide_no_other_outcome():
    """Two of three that accepted reject too, with a fourth one."""
    target = holding(GOOD, WORLD.certificate(GOOD))
    for one in sealed_by(GOOD, 0, 1, 3, accept=False):
        target.verdicts.add(one, GOOD)
    assert receipt_of(target, GOOD, 0, 1, 3, accepted=False) is None
    assert receipt_of(target, GOOD, 0, 1, 2) is not None


def test_a_commit_without_its_messages_is_left_out_and_takes_no_other_with_it():
    others = {
        "unknown": WORLD.commit(WORLD.workers[2], epoch=2, slot=9),
        "without a certificate": OPEN,
        "without its page": BAD,
    }
    target = holding(GOOD, WORLD.certificate(GOOD), OPEN, BAD)
    late = WORLD.commit(WORLD.workers[1], epoch=3)
    target.restore(late.envelope)
    target.restore(WORLD.certificate(late).envelope)
    target.verdicts.retain([GOOD.digest])
    others["without verdicts"] = late
    for name, one in others.items():
        assert decided(target, [one, GOOD]).certified == (GOOD.digest,), name
        assert receipt_of(target, one, 0, 1, 2) is None, name
        pair = [bits(0, 1, 2)] * 2
        assert receipts(target, [GOOD, one], checkers=pair) is None, name
    assert receipts(target, [GOOD], checkers=pair[:1]) is not None


def test_receipts_are_in_the_order_of_the_page():
    rejection = rejected_for(BAD, *["computation"] * 3)
    target = holding(GOOD, BAD, OPEN, *map(WORLD.certificate, (GOOD, OPEN)), rejection)
    for certified in ([GOOD, OPEN], [OPEN, GOOD]):
        found = receipts(target, certified, [BAD], [bits(0, 1, 2)] * 3)
        assert [one.commit for one in found] == [one.digest for one in (*certified, BAD)]
        assert decided(target, certified, [BAD]).certified == tuple(c.digest for c in certified)


def test_a_page_that_names_a_commit_twice_is_not_confirmed():
    target = holding(GOOD, BAD, WORLD.certificate(GOOD), rejected_for(BAD, *["computation"] * 3))
    checkers = [bits(0, 1, 2)] * 2
    assert receipts(target, [GOOD], [BAD], checkers) is not None
    assert receipts(target, [GOOD, GOOD], [], checkers) is None
    assert receipts(target, [], [BAD, BAD], checkers) is None
    assert receipts(target, [GOOD], [GOOD], checkers) is None


@pytest.mark.parametrize("accepted", [True, False])
def test_two_verdicts_of_a_checker_do_not_stop_the_settlement(accepted):
    """It sends one to all nodes, and puts the other one into the certificate."""
    (lie,) = sealed_by(GOOD, 1, accept=not accepted)
    verdicts = sealed_by(GOOD, 0, 1, 2, accept=accepted)
    target = holding(GOOD)
    assert target.verdicts.add(lie, GOOD) is True
    target.restore(certified_by(GOOD, *verdicts, accepted=accepted).envelope)
    commits = {"certified" if accepted else "rejected": [GOOD]}
    assert decided(target, **commits).checkers == (bits(0, 1, 2),)
    found = receipt_of(target, GOOD, 0, 1, 2, accepted=accepted)
    assert MEMBERS[1].peer_id in found.checkers
    assert found.reason == ("accepted" if accepted else "computation")


# Versions

LEARNED = [
    WORLD.commit(worker, slot, epoch=2, tokens=10 + slot)
    for worker, slot in zip([*WORLD.workers, WORLD.workers[1]], (0, 0, 0, 1), strict=True)
]
VERSIONS = [GENESIS]
for _batch in ((0, 1, 3), (2,)):
    VERSIONS.append(
        WORLD.checkpoint(VERSIONS[-1], batch=tuple(LEARNED[one].digest for one in _batch))
    )
ONE, TWO = VERSIONS[1:]


def steps(target, before, after) -> tuple[Step, ...] | None:
    before, after = (one.digest if one else b"" for one in (before, after))
    work = target.settlement.work(DecidedCommits((), (), ()), before, after)
    return None if work is None else work.steps


def expected_step(version, *shares) -> Step:
    trainer = WORLD.trainers[0].peer_id
    return Step(version.message.version, version.digest, trainer, tuple(sorted(shares)))


def test_a_version_that_becomes_final_is_a_step_with_the_work_that_it_learned_from():
    target = holding(*LEARNED, *VERSIONS)
    first, second, third = (one.peer_id for one in WORLD.workers)
    one = expected_step(ONE, (first, 1, 10), (second, 2, 21))
    two = expected_step(TWO, (third, 1, 10))
    for before in (None, GENESIS):
        assert steps(target, before, TWO) == (one, two)
        assert steps(target, before, ONE) == (one,)
    assert steps(target, ONE, TWO) == (two,)
    for before, after in ((None, None), (None, GENESIS), (GENESIS, GENESIS), (TWO, TWO)):
        assert steps(target, before, after) == ()


def test_versions_and_rollouts_that_are_not_here_are_not_confirmed():
    target = holding(*LEARNED, GENESIS, ONE)
    assert steps(target, ONE, TWO) is None
    assert steps(target, TWO, ONE) is None
    target = holding(*LEARNED[:2], LEARNED[3], *VERSIONS)
    assert steps(target, None, ONE) is not None
    assert steps(target, ONE, TWO) is None, "its batch"
    assert steps(target, None, TWO) is None


def test_a_page_makes_only_so_many_versions_final():
    versions = [GENESIS]
    for _ in range(STEPS_MAX + 1):
        versions.append(WORLD.checkpoint(versions[-1]))
    target = holding(*versions)
    assert len(steps(target, versions[0], versions[-2])) == STEPS_MAX
    assert steps(target, versions[0], versions[-1]) is None
    assert steps(target, versions[1], versions[-1]) is not None


def test_a_version_of_a_round_has_its_other_trainers_as_partners():
    outer = {"outer": {"trainers": 3}}
    world = World(run_manifest(trainers=4, grpo=outer))
    peers = [one.peer_id for one in world.trainers]
    versions = [world.genesis()]
    for places in ((0, 2, 3), (3,), (0,)):
        plan = world.round_plan(versions[-1], (0, 2, 3))
        made = round_of(plan, {place: world.round_result(plan, place) for place in places})
        versions.append(world.checkpoint(versions[-1], round=made))
    replica = world.replica(pages_to=0, genesis=False)
    for version in versions:
        assert replica.receive(version.envelope, world.at(1)).result is ValidationResult.ACCEPT
    work = replica.settlement.work(DecidedCommits((), (), ()), b"", versions[-1].digest)
    expected = [sorted(peers[place] for place in places) for places in ((2, 3), (3,), ())]
    assert [list(one.partners) for one in work.steps] == expected
    assert {one.trainer for one in work.steps} == {peers[0]}


# Pages


def test_a_node_confirms_what_the_pages_of_an_honest_council_state():
    contents = {
        8: Contents(certified=(GOOD.digest,), rejected=(BAD.digest,), head=ONE.digest),
        9: Contents(head=TWO.digest),
        10: Contents(),
    }
    book = PageBook(WORLD.manifest, WORLD.validators, contents)
    rejection = WORLD.certificate(BAD, accepted=False, escalated=True)
    target = holding(GOOD, BAD, WORLD.certificate(GOOD), rejection, *LEARNED, *VERSIONS)
    heads = {8: b"", 9: ONE.digest, 10: TWO.digest}
    sizes = {}
    for epoch, head in heads.items():
        page = book.page(epoch).message
        work = target.settlement.work_of(page, head)
        assert work.digest == page.work
        sizes[epoch] = len(work.receipts), len(work.steps)
    assert sizes == {8: (2, 1), 9: (0, 1), 10: (0, 0)}
    assert target.settlement.work_of(book.page(9).message, b"") != PageWork()
    assert target.settlement.work_of(book.page(9).message, b"").digest != book.page(9).message.work
