from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.committee import VIEW_SLACK, Committee, VerdictPool, check_certificate, draw
from protocol.core.faults import Fault
from protocol.messages import Certificate
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(validators=8))
REPLICA = WORLD.replica()
COMMIT = WORLD.commit(WORLD.workers[0])
COMMITTEE = REPLICA.verdicts.committee(COMMIT)
RANKED = [WORLD.by_peer[peer] for peer in COMMITTEE.ranking]


def tally(*votes) -> VerdictPool:
    """Return the tally of ``votes`` by rank: True, False, or None for no verdict."""
    result = VerdictPool()
    for signer, accept in zip(RANKED, votes, strict=False):
        if accept is not None:
            assert result.add(WORLD.verdict(signer, COMMIT, accept=accept)) is True
    return result


# Drawing


def test_ranks_follow_the_beacon_the_commit_and_the_key():
    beacon = blake3(b"prime-node/beacon" + WORLD.run_id + (1).to_bytes(8, "big")).digest()
    expected = sorted(
        (one.peer_id for one in WORLD.validators),
        key=lambda peer: blake3(beacon + COMMIT.digest + peer.encode()).digest(),
    )
    assert list(COMMITTEE.ranking) == expected
    assert COMMITTEE.first == tuple(expected[:3])
    assert COMMITTEE.escalated == tuple(expected[:4])
    assert COMMITTEE.quorum == 3


def test_other_commits_and_epochs_draw_others():
    rankings = {
        REPLICA.verdicts.committee(WORLD.commit(WORLD.workers[0], **changes)).ranking
        for changes in ({}, {"tokens": 11}, {"epoch": 1}, {"body": bytes(32)})
    }
    assert len(rankings) == 4


def test_a_worker_never_judges_itself():
    commit = WORLD.commit(WORLD.validators[0])
    assert WORLD.validators[0].peer_id not in REPLICA.verdicts.committee(commit).ranking
    assert len(REPLICA.verdicts.committee(commit).ranking) == 7


def test_every_validator_is_drawn_about_equally_often():
    firsts = [
        REPLICA.verdicts.committee(WORLD.commit(WORLD.workers[0], tokens=n)).first
        for n in range(400)
    ]
    for validator in WORLD.validators:
        drawn = sum(validator.peer_id in first for first in firsts)
        assert abs(drawn - 150) < 48  # five standard deviations


def test_too_few_live_validators_make_no_committee():
    replica = WORLD.replica(roster_at=None)
    for one in WORLD.validators[:2]:
        replica.receive(WORLD.record(one, ("validator",)).envelope, WORLD.at(0))
    assert draw(WORLD.manifest, replica.verdicts.electorate, COMMIT) is None
    WORLD.refresh(replica, 0)
    assert draw(WORLD.manifest, replica.verdicts.electorate, COMMIT) == COMMITTEE


def test_a_committee_is_no_larger_than_the_roster():
    world = World(run_manifest(validators=3))
    committee = world.replica().verdicts.committee(world.commit(world.workers[0]))
    assert (committee.first_size, committee.escalated_size, committee.quorum) == (3, 3, 2)


@given(st.integers(1, 200))
def test_the_quorum_is_two_thirds_and_two_quorums_share_a_member(size):
    quorum = Committee((), 1, size, WORLD.workers[0].peer_id, b"").quorum
    assert 3 * quorum >= 2 * size > 3 * (quorum - 1)
    assert size == 1 or 2 * quorum > size


# Tallies


def test_a_second_look_is_no_news_and_a_contradiction_is_recorded_once():
    result = tally(True)
    first = result.verdicts[RANKED[0].peer_id]
    assert result.add(first) is False
    reworded = WORLD.verdict(RANKED[0], COMMIT, detail="the same again")
    assert result.add(reworded) is False
    liar = WORLD.verdict(RANKED[0], COMMIT, accept=False)
    for contradiction in (liar, WORLD.verdict(RANKED[0], COMMIT, accept=False, detail="and again")):
        fault = result.add(contradiction)
        assert isinstance(fault, Fault)
        assert fault.code == "equivocation"
    assert result.equivocations == {RANKED[0].peer_id: (first, liar)}
    assert result.verdicts == {RANKED[0].peer_id: first}


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ((), None),
        ((True, True), None),
        ((True, True, True), (True, False)),
        ((True, True, None, True), (True, True)),  # three of four, one of the first is silent
        ((True, True, False), None),
        ((True, True, False, True), (True, True)),
        ((False, False), None),
        ((False, False, False), (False, True)),
        ((True, False, False, False), (False, True)),
        ((True, True, False, False), None),
        ((None, None, None, None, True, True, True, True), None),  # not of the committee
    ],
)
def test_what_verdicts_add_up_to(votes, expected):
    outcome = tally(*votes).outcome(COMMITTEE)
    assert expected == (outcome and (outcome.accepted, outcome.escalated))
    if outcome is not None:
        assert all(verdict.message.accept is outcome.accepted for verdict in outcome.verdicts)
        certificate = outcome.certificate(COMMIT.digest)
        assert check_certificate(certificate, outcome.verdicts, COMMITTEE) is None


def test_a_reject_among_the_first_is_a_dispute_and_one_elsewhere_is_not():
    assert not tally(True, None, True).disputed(COMMITTEE)
    assert tally(True, False).disputed(COMMITTEE)
    assert not tally(True, True, None, False).disputed(COMMITTEE)


# Certificates


def checked(signers, *, accepted=True, escalated=False, accept=None, commit=COMMIT):
    accept = accepted if accept is None else accept
    verdicts = [WORLD.verdict(signer, commit, accept=accept) for signer in signers]
    certificate = Certificate(
        commit=COMMIT.digest,
        escalated=escalated,
        accepted=accepted,
        verdicts=tuple(verdict.envelope for verdict in verdicts),
    )
    fault = check_certificate(certificate, verdicts, COMMITTEE)
    return fault and fault.code


def test_certificates_that_hold():
    assert checked(RANKED[:3]) is None
    assert checked(RANKED[1:4]) is None, "views may differ by one rank"
    assert checked(RANKED[:8]) is None, "more than needed"
    assert checked(RANKED[:3], escalated=True) is None
    assert checked(RANKED[2:5], escalated=True, accepted=False) is None


@pytest.mark.parametrize(
    ("signers", "options", "fault"),
    [
        (RANKED[:2], {}, "other-committee"),
        (RANKED[2:5], {}, "other-committee"),
        (RANKED[5:8], {}, "other-committee"),
        (RANKED[3:8], {"escalated": True}, "other-committee"),
        (RANKED[:2], {"escalated": True, "accepted": False}, "other-committee"),
        ([RANKED[0]] * 3, {}, "bad-certificate"),
        ([*RANKED[:2], RANKED[0]], {"escalated": True, "accepted": False}, "bad-certificate"),
        (RANKED[:3], {"accepted": False}, "bad-certificate"),
        (RANKED[:4], {"accept": False}, "bad-certificate"),
        (RANKED[:4], {"accepted": False, "escalated": True, "accept": True}, "bad-certificate"),
        (RANKED[:3], {"commit": WORLD.commit(WORLD.workers[1])}, "bad-certificate"),
        ([WORLD.workers[0], *RANKED[:2]], {}, "other-committee"),  # the worker itself
    ],
)
def test_certificates_that_do_not(signers, options, fault):
    assert checked(signers, **options) == fault


@given(st.lists(st.sampled_from(range(8)), min_size=1, unique=True), st.booleans(), st.booleans())
def test_no_certificate_holds_without_its_quorum(ranks, escalated, accepted):
    fault = checked([RANKED[rank] for rank in ranks], escalated=escalated, accepted=accepted)
    of_committee = sum(rank < (4 if escalated else 3) + VIEW_SLACK for rank in ranks)
    holds = of_committee >= 3 and (accepted or escalated)
    assert (fault is None) == holds


def test_who_was_on_the_signers_roster_counts_at_its_rank():
    """A late node may not see a member on the old roster that has been away since."""
    absent = {RANKED[0].peer_id, RANKED[6].peer_id}
    live = [one for one in WORLD.validators if one.peer_id not in absent]
    replica = WORLD.replica(roster_at=None)
    for one in live:
        replica.receive(WORLD.record(one, ("validator",)).envelope, WORLD.at(0))
    late = replica.verdicts.committee(COMMIT)
    assert [WORLD.by_peer[peer] for peer in late.ranking] == [
        one for one in RANKED if one.peer_id not in absent
    ]

    def fault(signers):
        verdicts = [WORLD.verdict(signer, COMMIT) for signer in signers]
        certificate = Certificate(
            commit=COMMIT.digest,
            escalated=False,
            accepted=True,
            verdicts=tuple(verdict.envelope for verdict in verdicts),
        )
        found = check_certificate(certificate, verdicts, late)
        return found and found.code

    assert fault(RANKED[:3]) is None
    assert fault([*RANKED[1:3], RANKED[6]]) == "other-committee", "its rank is too low"


def test_a_worker_that_is_a_validator_does_not_count_for_its_own_commit():
    """This holds with its key at the first rank, and with its verdict as an additional one."""
    worker = WORLD.validators[0]
    commits = [WORLD.commit(worker, tokens=tokens) for tokens in range(1, 33)]
    committee = next(
        drawn
        for drawn in map(REPLICA.verdicts.committee, commits)
        if replace(drawn, worker=WORLD.workers[0].peer_id).ranking_with([worker.peer_id])[0]
        == worker.peer_id
    )
    assert committee.ranking_with([worker.peer_id]) == committee.ranking
    excluded = replace(committee, worker=WORLD.workers[0].peer_id, excluded=(worker.peer_id,))
    assert excluded.ranking_with([worker.peer_id]) == committee.ranking
