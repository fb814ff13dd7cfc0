"""Verdicts that do not agree, dissents, and the rule of lazy members as a whole."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.consensus.committee import Committee, check_certificate, outcome_rank
from protocol.consensus.dissents import DISSENTS_MAX, VERDICTS_COUNTED, DissentTable
from protocol.consensus.verdict_pool import VerdictPool
from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.messages import Signed
from protocol.rollout.agreement import Agreement
from tests.worlds.messages import World, run_manifest, verdict_of

WORLD = World(run_manifest(validators=10))
COMMIT = WORLD.commit(WORLD.workers[0])
LIMITS = Agreement(witness_sum_max=800, replays_max=2)
DRAWN = WORLD.committee(COMMIT)
RANKED = [WORLD.by_peer[peer] for peer in DRAWN.ranking]
COMMITTEE = replace(DRAWN, first_size=3, escalated_size=7, agreement=LIMITS)


def verdict(place, off=0, replays=0, reason="accepted", **fields):
    """Return the verdict of a member; ``off`` is the difference of its values in total."""
    known = verdict_of(bytes(32), bytes(32), reason)
    if known.witness:
        fields["witness"] = (known.witness[0] + off, *known.witness[1:])
        fields["replays"] = tuple(one + (at < replays) for at, one in enumerate(known.replays))
    accept = reason == "accepted"
    return WORLD.verdict(RANKED[place], COMMIT, accept=accept, reason=reason, **fields)


def pool(*verdicts):
    result = VerdictPool()
    for one in verdicts:
        assert result.add(one) is True
    return result


def signers(verdicts):
    return [RANKED.index(WORLD.by_peer[one.signer]) for one in verdicts]


def checked(outcome, committee=COMMITTEE):
    certificate = outcome.certificate(COMMIT.digest, committee)
    return check_certificate(certificate, (*outcome.verdicts, *outcome.dissents), committee)


# Agreement


def test_a_first_committee_that_does_not_agree_is_in_dispute():
    agreeing = pool(verdict(0), verdict(1, off=800), verdict(2, replays=2))
    assert agreeing.outcome(COMMITTEE).escalated is False
    assert not agreeing.disputed(COMMITTEE)
    for third in (verdict(2, off=801), verdict(2, replays=3)):
        split = pool(verdict(0), verdict(1), third)
        assert split.outcome(COMMITTEE) is None
        assert split.disputed(COMMITTEE)
    assert pool(verdict(0), verdict(2, off=801)).disputed(COMMITTEE), "before the last one is here"
    assert not pool(verdict(0), verdict(2)).disputed(COMMITTEE)


def test_the_larger_committee_decides_and_names_who_contradicts_it():
    liar = verdict(1, off=5000)
    every = pool(verdict(0), liar, verdict(2), verdict(3), verdict(4), verdict(5))
    outcome = every.outcome(COMMITTEE)
    assert (outcome.accepted, outcome.escalated) == (True, True)
    assert signers(outcome.verdicts) == [0, 2, 3, 4, 5]
    assert outcome.dissents == (liar,)
    assert checked(outcome) is None


def test_of_sets_that_agree_the_largest_one_counts_and_not_the_first():
    """A first member at the edge of agreement takes no honest member out of the certificate."""
    edge = verdict(0, off=700)
    honest = [verdict(place, off=-100 * (place % 2)) for place in range(1, 7)]
    outcome = pool(edge, *honest).outcome(COMMITTEE)
    assert (signers(outcome.verdicts), outcome.escalated) == ([0, 1, 2], False)
    edge = verdict(0, off=750)
    outcome = pool(edge, *honest).outcome(COMMITTEE)
    assert signers(outcome.verdicts) == [1, 2, 3, 4, 5, 6]
    assert outcome.dissents == (), "it contradicts three of six"


def test_of_equal_sets_that_of_the_lowest_rank_counts():
    middle = [verdict(place, off=500) for place in range(2, 6)]
    outcome = pool(verdict(0), verdict(1, off=1000), *middle).outcome(COMMITTEE)
    assert signers(outcome.verdicts) == [0, 2, 3, 4, 5]


def test_too_few_that_agree_decide_nothing():
    split = [verdict(place, off=2000 * (place % 2)) for place in range(7)]
    assert pool(*split).outcome(COMMITTEE) is None
    others = [verdict(place, reason="format" if place % 2 else "proofs") for place in range(7)]
    assert pool(*others).outcome(COMMITTEE) is None
    reasons = ("reward", "reward-history")
    shared = [verdict(place, reason=reasons[place % 2]) for place in range(7)]
    assert pool(*shared).outcome(COMMITTEE).accepted is False


def test_a_rejection_without_certainty_is_no_dissent():
    honest = [verdict(place) for place in range(1, 7)]
    for reason, is_dissent in (("statistics", False), ("history", False), ("computation", True)):
        rejecting = verdict(0, reason=reason)
        outcome = pool(rejecting, *honest).outcome(COMMITTEE)
        assert outcome.accepted
        assert outcome.dissents == ((rejecting,) if is_dissent else ())


def test_an_acceptance_of_what_is_surely_false_is_a_dissent():
    lie = verdict(1)
    rejecting = [verdict(place, reason="format") for place in (0, *range(2, 7))]
    outcome = pool(lie, *rejecting).outcome(COMMITTEE)
    assert not outcome.accepted
    assert outcome.dissents == (lie,)


# Certificates


def certificate(deciding, dissents=(), *, escalated=True, accepted=True, committee=COMMITTEE):
    outcome = pool(*deciding).outcome(committee)
    made = replace(
        outcome or pool(*map(verdict, range(7))).outcome(committee),
        verdicts=tuple(deciding),
        dissents=tuple(dissents),
        escalated=escalated,
        accepted=accepted,
    ).certificate(COMMIT.digest, committee)
    return made, (*deciding, *dissents)


def fault_of(deciding, dissents=(), **options):
    made, opened = certificate(deciding, dissents, **options)
    fault = check_certificate(made, opened, COMMITTEE)
    return fault and str(fault)


FIVE = [verdict(place) for place in range(5)]


def test_a_certificate_needs_verdicts_that_agree_with_the_first_one():
    assert fault_of(FIVE) is None
    assert fault_of([*FIVE[:4], verdict(4, off=800)]) is None
    assert "do not agree" in fault_of([*FIVE[:4], verdict(4, off=801)])
    assert "do not agree" in fault_of([verdict(4, off=801), *FIVE[:4]]), "in any order"
    spread = [verdict(0), *(verdict(place, off=800 * (-1) ** place) for place in range(1, 5))]
    assert fault_of(spread) is None, "with the first one only"
    assert fault_of(spread[::-1]) is None, "of the ranking"
    three = [verdict(place) for place in range(2)] + [verdict(2, replays=3)]
    assert "do not agree" in fault_of(three, escalated=False)


@pytest.mark.parametrize(
    ("dissents", "wrong"),
    [
        ([verdict(5, off=801)], ""),
        ([verdict(5, reason="format"), verdict(6, replays=3)], ""),
        ([verdict(5)], "contradicts nothing"),
        ([verdict(5, reason="statistics")], "contradicts nothing"),
        ([verdict(8, off=801)], "contradicts nothing"),
        ([verdict(4, off=801)], "counted twice"),
        ([verdict(5, off=801, page=bytes(32))], "another commit or page"),
    ],
)
def test_dissents_are_of_other_members_and_contradict(dissents, wrong):
    fault = fault_of(FIVE, dissents)
    assert (wrong in fault) if wrong else fault is None


def test_a_first_committee_has_no_dissents():
    assert fault_of(FIVE[:3], escalated=False) is None
    assert "no dissents" in fault_of(FIVE[:3], [verdict(5, off=801)], escalated=False)


def test_less_than_a_third_at_the_edge_cannot_make_an_honest_verdict_a_dissent():
    """Two of seven that agree with the honest ones, but not with one of them."""
    edge = [verdict(place, off=780) for place in (0, 1)]
    honest, framed = [verdict(place) for place in (2, 3, 4)], verdict(5, off=-30)
    assert not COMMITTEE.agrees(framed, edge[0])
    assert "contradicts nothing" in fault_of([*edge, *honest], [framed])


def test_a_dissent_contradicts_by_seats():
    peers = tuple(one.peer_id for one in RANKED)
    seats = Committee((peers[0],) * 3 + peers[1:5], 3, 7, COMMITTEE.page, LIMITS)
    leading, others = verdict(0, off=500), [verdict(place) for place in (1, 2)]
    dissent = verdict(3, off=-350)
    assert seats.is_dissent(dissent, [leading, *others])
    assert not COMMITTEE.is_dissent(dissent, [leading, *others])


def test_of_equal_certificates_the_one_with_more_dissents_wins():
    dissents = [verdict(5, off=801), verdict(6, off=801)]
    ranks = [
        outcome_rank(*certificate(FIVE, some), COMMITTEE)
        for some in (dissents, dissents[:1], dissents[1:], [])
    ]
    assert ranks[0] < min(ranks[1:3]) < max(ranks[1:3]) < ranks[3]
    assert len(ranks[0]) == 44


# Seals


def test_a_verdict_that_does_not_fit_its_seal_is_refused_and_evidence():
    honest, copied = verdict(0), verdict(0, off=1)
    seal = WORLD.verdict_seal(honest)
    for first, second in ((seal, copied), (copied, seal)):
        result = VerdictPool()
        assert result.add(first) is True
        fault = result.add(second)
        assert isinstance(fault, Fault)
        assert fault.code == "equivocation"
        assert set(map(id, result.equivocations[RANKED[0].peer_id])) == {id(first), id(second)}
        assert (RANKED[0].peer_id in result.verdicts) is (first is copied)


def test_seals_are_kept_once():
    seal = WORLD.verdict_seal(verdict(0))
    result = VerdictPool()
    assert result.add(seal) is True
    assert result.add(seal) is False
    assert result.add(verdict(0)) is True
    assert result.add(seal) is False
    assert result.equivocations == {}
    assert isinstance(result.add(WORLD.verdict_seal(verdict(0, off=1))), Fault)
    assert result.seals == {RANKED[0].peer_id: seal}


def test_a_seal_of_a_first_member_calls_the_others():
    result = VerdictPool()
    for place, calls in ((3, False), (6, False), (2, True)):
        result.add(WORLD.verdict_seal(verdict(place)))
        assert result.calls(COMMITTEE) is calls


# Lazy members


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_lazy_member_is_named_and_no_honest_one_is(data):
    """Random seats with less than a third of lazy ones, which the assembler cannot shield."""
    seats = data.draw(st.lists(st.integers(1, 5), min_size=7, max_size=10))
    members = RANKED[: len(seats)]
    order = data.draw(st.permutations(range(len(seats))))
    lazy: dict[int, None] = {}
    for place in order:
        held = sum(seats[one] for one in (*lazy, place))
        if 3 * held < sum(seats):
            lazy[place] = None
    rng = Rng(data.draw(st.binary(min_size=4, max_size=4)))
    table, rounds = DissentTable(), 0
    drawn = dict.fromkeys(lazy, 0)
    while min(drawn.values(), default=VERDICTS_COUNTED) < VERDICTS_COUNTED and rounds < 4000:
        rounds += 1
        ranking = [one for one, count in enumerate(seats) for _ in range(count)]
        peers = tuple(members[one].peer_id for one in rng.shuffled(ranking))
        committee = Committee(peers, min(3, len(peers)), len(peers), COMMITTEE.page, LIMITS)
        held = VerdictPool()
        for place, one in enumerate(members):
            off = 10**6 + rng.below(10**9) if place in lazy else rng.below(120)
            known = verdict_of(COMMIT.digest, COMMITTEE.page.digest)
            own = known.model_copy(update={"witness": (off, *known.witness[1:])})
            held.add(Signed(one.peer_id, own, digest(one.peer_id.encode()), b""))
        outcome = held.outcome(committee)
        if outcome is None or not outcome.escalated:
            for place in lazy:
                drawn[place] += outcome is not None and members[place].peer_id in committee.first
            continue
        opened = (*outcome.verdicts, *outcome.dissents)
        made = outcome.certificate(COMMIT.digest, committee)
        assert check_certificate(made, opened, committee) is None
        agreeing = [one.signer for one in outcome.verdicts]
        dissenting = [one.signer for one in outcome.dissents]
        table.count(rounds, digest(rounds.to_bytes(4, "big")), agreeing, dissenting)
        for place in lazy:
            drawn[place] += 1
    named = {place for place, one in enumerate(members) if one.peer_id in table.named}
    assert named == set(lazy)
    for place in lazy:
        _, dissents = table.verdicts_of(members[place].peer_id)
        assert dissents > DISSENTS_MAX
