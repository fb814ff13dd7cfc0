from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.committee import Committee, check_certificate, draw, outcome_rank
from protocol.consensus.council import Council
from protocol.consensus.member import Contents
from protocol.consensus.seals import ordered
from protocol.consensus.verdict_pool import VerdictPool
from protocol.core.faults import Fault
from protocol.messages import Certificate
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook

WORLD = World(run_manifest(validators=8))
COMMIT = WORLD.commit(WORLD.workers[0])
PAGE = WORLD.book.drawing(COMMIT)
COMMITTEE = WORLD.committee(COMMIT)
RANKED = [WORLD.by_peer[peer] for peer in COMMITTEE.ranking]


def tally(*votes) -> VerdictPool:
    """Return the tally of ``votes`` by rank: True, False, or None for no verdict."""
    result = VerdictPool()
    for signer, accept in zip(RANKED, votes, strict=False):
        if accept is not None:
            assert result.add(WORLD.verdict(signer, COMMIT, accept=accept)) is True
    return result


# Drawing


def test_ranks_follow_the_beacon_of_the_page_that_draws_the_commit_and_the_key():
    expected = sorted(
        (one.peer_id for one in WORLD.validators),
        key=lambda peer: blake3(PAGE.beacon + COMMIT.digest + peer.encode()).digest(),
    )
    assert list(COMMITTEE.ranking) == expected
    assert COMMITTEE.first == tuple(expected[:3])
    assert COMMITTEE.escalated == tuple(expected[:4])
    assert COMMITTEE.quorum == 3
    assert COMMITTEE.page is PAGE


def test_other_commits_and_epochs_draw_others():
    rankings = {
        WORLD.committee(WORLD.commit(WORLD.workers[0], **changes)).ranking
        for changes in ({}, {"tokens": 11}, {"epoch": 1}, {"body": bytes(32)})
    }
    assert len(rankings) == 4


def test_a_worker_never_judges_itself():
    commit = WORLD.commit(WORLD.validators[0])
    ranking = draw(WORLD.manifest, PAGE, commit).ranking
    assert len(ranking) == 7
    assert WORLD.validators[0].peer_id not in ranking


def test_a_worker_with_the_only_seat_has_no_committee():
    world = World(run_manifest(validators=1))
    assert world.committee(world.commit(world.validators[0])) is None
    assert world.committee(world.commit(world.workers[0])).first_size == 1


def commits(count):
    return [WORLD.commit(WORLD.workers[0], tokens=n) for n in range(count)]


def test_every_validator_is_drawn_about_equally_often():
    firsts = [draw(WORLD.manifest, PAGE, one).first for one in commits(400)]
    for validator in WORLD.validators:
        drawn = sum(validator.peer_id in first for first in firsts)
        assert abs(drawn - 150) < 48  # five standard deviations


def test_a_member_is_drawn_first_in_proportion_to_its_seats():
    peers = tuple(sorted(one.peer_id for one in WORLD.validators[:4]))
    page = replace(PAGE, council=Council(b"", peers, (1, 2, 3, 4)))
    firsts = [draw(WORLD.manifest, page, one).first[0] for one in commits(500)]
    for seats, peer in enumerate(peers, start=1):
        share = seats / 10
        deviation = (500 * share * (1 - share)) ** 0.5
        assert abs(firsts.count(peer) - 500 * share) < 5 * deviation


def listing_replica(first, last, roster_at=0):
    """Return a replica and two commits, of which pages 3 and 4 list one each."""
    one, other = (WORLD.commit(WORLD.workers[number]) for number in range(2))
    contents = {3: Contents(commits=(one.digest,)), 4: Contents(commits=(other.digest,))}
    book = PageBook(WORLD.manifest, WORLD.validators, contents)
    replica = WORLD.replica(pages_to=0, roster_at=roster_at)
    book.show(replica, last, first)
    return book, replica, one, other


def test_no_committee_is_drawn_before_its_page():
    book, replica, one, other = listing_replica(1, 3)
    assert replica.verdicts.committee(one) is None
    book.show(replica, 4, first=4)
    assert replica.verdicts.committee(one).page.digest == book.page(4).digest
    assert replica.verdicts.committee(other) is None
    book.show(replica, 5, first=5)
    drawn = replica.verdicts.committee(other)
    assert drawn == draw(WORLD.manifest, drawn.page, other)
    assert drawn.page.digest == book.page(5).digest
    assert replica.verdicts.committee(WORLD.commit(RANKED[0])) is None, "no page lists it"


def test_the_roster_does_not_matter():
    unseen, seen = (listing_replica(1, 6, roster_at)[1:3] for roster_at in (None, 0))
    assert len(unseen[0].roster) == 0
    rankings = [replica.verdicts.committee(one).ranking for replica, one in (unseen, seen)]
    assert rankings[0] == rankings[1]


def test_a_committee_is_no_larger_than_the_council():
    world = World(run_manifest(validators=3))
    committee = world.committee(world.commit(world.workers[0]))
    assert (committee.first_size, committee.escalated_size, committee.quorum) == (3, 3, 2)


@given(st.integers(1, 200))
def test_the_quorum_is_two_thirds_and_two_quorums_share_a_member(size):
    quorum = Committee((), 1, size, PAGE, COMMITTEE.agreement).quorum
    assert 3 * quorum >= 2 * size > 3 * (quorum - 1)
    assert size == 1 or 2 * quorum > size


# Tallies


def heavy(*seats) -> Committee:
    """Return a committee of 3 and 7 seats, of members by rank."""
    peers = tuple(RANKED[place].peer_id for place in seats)
    return Committee(peers, 3, 7, PAGE, COMMITTEE.agreement)


@pytest.mark.parametrize(
    ("seats", "votes", "expected"),
    [
        ((0, 0, 0, 1, 2, 3, 4), (True,), (True, False)),  # one key has the first three seats
        ((0, 1, 0, 2, 3, 4, 5), (True,), None),
        ((0, 1, 0, 2, 3, 4, 5), (True, True), (True, False)),
        ((0, 1, 0, 0, 2, 0, 0), (False,), (False, True)),  # five of seven seats
        ((0, 1, 0, 0, 2, 0, 3), (False,), None),
        ((0, 1, 0, 0, 2, 0, 3), (False, True, False), (False, True)),
        ((0, 1, 0, 2, 3, 4, 4), (None, True, True, True), None),  # three of seven
        ((0, 0, 0, 1, 2, 3, 4, 5, 5), (None, False, False, False, False, False), None),
    ],
)
def test_verdicts_count_by_the_seats_of_a_committee(seats, votes, expected):
    committee, pool = heavy(*seats), tally(*votes)
    outcome = pool.outcome(committee)
    assert expected == (outcome and (outcome.accepted, outcome.escalated))
    for accepted in {accept for accept in votes if accept is not None}:
        signers = [RANKED[place] for place, accept in enumerate(votes) if accept is accepted]
        options = {"accepted": accepted, "escalated": not accepted}
        is_valid = checked(signers, committee=committee, **options) is None
        assert is_valid is (expected == (accepted, not accepted))


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
    assert result.equivocations == {RANKED[0].peer_id: ordered(first, liar)}
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
        certificate = outcome.certificate(COMMIT.digest, COMMITTEE)
        assert certificate.page == PAGE.digest
        opened = (*outcome.verdicts, *outcome.dissents)
        assert check_certificate(certificate, opened, COMMITTEE) is None


def test_a_reject_among_the_first_is_a_dispute_and_one_elsewhere_is_not():
    assert not tally(True, None, True).disputed(COMMITTEE)
    assert tally(True, False).disputed(COMMITTEE)
    assert not tally(True, True, None, False).disputed(COMMITTEE)


# Certificates


def certified(signers, *, accepted=True, escalated=False, accept=None, commit=COMMIT, page=PAGE):
    """Return a certificate on ``COMMIT`` and its verdicts, which may contradict it."""
    accept = accepted if accept is None else accept
    verdicts = [
        WORLD.verdict(signer, commit, accept=accept, page=page.digest) for signer in signers
    ]
    certificate = Certificate(
        commit=COMMIT.digest,
        page=page.digest,
        escalated=escalated,
        accepted=accepted,
        verdicts=tuple(verdict.envelope for verdict in verdicts),
    )
    return certificate, verdicts


def checked(signers, *, committee=COMMITTEE, **options):
    fault = check_certificate(*certified(signers, **options), committee)
    return fault and fault.code


def test_certificates_that_hold():
    assert checked(RANKED[:3]) is None
    assert checked(RANKED[:3], escalated=True) is None
    assert checked(RANKED[1:4], escalated=True, accepted=False) is None
    assert checked(RANKED[:4], escalated=True, accepted=False) is None, "more than needed"


@pytest.mark.parametrize(
    ("signers", "options"),
    [
        (RANKED[:2], {}),
        (RANKED[1:4], {}),  # the next in rank is not the committee
        (RANKED[:4], {}),  # nor is one of them too many
        (RANKED[5:8], {}),
        (RANKED[2:5], {"escalated": True}),
        (RANKED[:2], {"escalated": True, "accepted": False}),
        (RANKED[:5], {"escalated": True, "accepted": False}),
        ([RANKED[0]] * 3, {}),
        ([*RANKED[:2], RANKED[0]], {"escalated": True, "accepted": False}),
        (RANKED[:3], {"accepted": False}),
        (RANKED[:3], {"accept": False}),
        (RANKED[:3], {"accepted": False, "escalated": True, "accept": True}),
        (RANKED[:3], {"commit": WORLD.commit(WORLD.workers[1])}),
        ([WORLD.workers[0], *RANKED[:2]], {}),  # the worker itself
        (RANKED[:3], {"committee": None}),
    ],
)
def test_certificates_that_do_not(signers, options):
    assert checked(signers, **options) == "bad-certificate"


@given(st.lists(st.sampled_from(range(8)), min_size=1, unique=True), st.booleans(), st.booleans())
def test_no_certificate_holds_without_its_quorum_or_with_another_signer(ranks, escalated, accepted):
    fault = checked([RANKED[rank] for rank in ranks], escalated=escalated, accepted=accepted)
    of_committee = max(ranks) < (4 if escalated else 3)
    holds = of_committee and len(ranks) >= 3 and (accepted or escalated)
    assert (fault is None) == holds


def ranked_by(replica, certificate, verdicts, page, commit=COMMIT):
    return replica.verdicts.rank(certificate, verdicts, commit, page)


def test_a_certificate_names_the_page_that_draws_the_commit():
    replica = WORLD.replica(pages_to=0)
    certificate, verdicts = certified(RANKED[:3])
    expected = outcome_rank(certificate, verdicts, COMMITTEE)
    assert ranked_by(replica, certificate, verdicts, PAGE) == expected
    listing = PAGE.parent
    assert COMMIT.digest in listing.page.message.commits
    for page in (listing, WORLD.book.drawing(WORLD.commit(WORLD.workers[1])), listing.parent):
        fault = ranked_by(replica, certificate, verdicts, page)
        assert "draws no committee" in str(fault)


def test_a_certificate_of_another_committee_has_no_rank():
    replica = WORLD.replica(pages_to=0)
    assert isinstance(ranked_by(replica, *certified(RANKED[1:4]), PAGE), Fault)
    alone = World(run_manifest(validators=1))
    own = alone.commit(alone.validators[0])
    page = alone.book.drawing(own)
    certificate, verdicts = certified(RANKED[:1], page=page)
    assert isinstance(ranked_by(alone.replica(), certificate, verdicts, page, own), Fault)


# Contradicting certificates


def rank(places, *, page=PAGE, accepted=True, escalated=False) -> bytes:
    signers = [RANKED[place] for place in places]
    committee = replace(COMMITTEE, page=page)
    options = {"accepted": accepted, "escalated": escalated, "page": page}
    return outcome_rank(*certified(signers, **options), committee)


def rejection(*places, page=PAGE) -> bytes:
    return rank(places, accepted=False, escalated=True, page=page)


def test_a_rejection_without_a_member_of_the_first_committee_overturns_nothing():
    assert rank([0, 1, 2]) < rejection(3, 4, 5)


def test_a_rejection_with_a_member_of_the_first_committee_wins():
    assert rejection(0, 3, 4) < rank([0, 1, 2])
    assert rejection(2, 3, 4) < rank([0, 1, 2]), "the member has signed both"


def test_an_acceptance_by_the_larger_committee_loses_to_both():
    late = rank([0, 1, 2], escalated=True)
    assert rank([0, 1, 2]) < late
    assert rejection(2, 3, 4) < late
    assert rejection(3) < late


def test_certificates_of_other_verdicts_never_rank_equal():
    assert rejection(0, 1, 2) != rejection(0, 1, 3)
    assert rejection(0, 1, 2) == rejection(2, 1, 0)


def test_a_committee_of_an_earlier_page_wins():
    """The outcome of the earlier page is the one that most nodes have seen first."""
    pages = [replace(PAGE, epoch=epoch) for epoch in (1, 2, 255, 256)]
    worst = [rank([0, 1, 2], escalated=True, page=page) for page in pages]
    best = [min(rejection(place, page=page) for place in range(8)) for page in pages]
    for earlier, later in zip(worst, best[1:], strict=False):
        assert earlier < later
