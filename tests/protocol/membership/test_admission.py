"""Proofs of work, and admission by them."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault, FaultCode
from protocol.membership import admission
from protocol.membership.admission import Admission, AdmittedKeys
from protocol.membership.proof_of_work import WORK_BYTES, is_solved, solve, work_proof
from protocol.messages import ADMISSION_BYTES_MAX, Invite, seal
from protocol.run.sections import AdmissionSection
from tests.worlds.messages import World, identity, run_manifest

WORK = {"rule": "open", "work_bits": 4, "work_kib": 8}
PROBATION = WORK | {"probation_epochs": 2, "settled_epochs": 20}
WORLD = World(run_manifest(admission=PROBATION))
RULES, RUN_ID = WORLD.manifest.admission, WORLD.run_id
WINDOW = 3  # 1 + ceil(20 s / 10 s)
ALICE, BOB = identity("alice"), identity("bob")
CREATOR = identity("creator")


def solved(peer, epoch, rules=RULES, run_id=RUN_ID):
    return solve(rules, run_id, peer.peer_id, epoch, count())


PROOFS = {epoch: solved(ALICE, epoch) for epoch in range(8)}


def keys(world=WORLD):
    return AdmittedKeys(world.manifest, verify)


def code(result):
    return result.code if isinstance(result, Fault) else result


# The proof of work


@given(epoch=st.sampled_from(sorted(PROOFS)), bits=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_proof_is_good_for_its_run_key_epoch_and_no_more_work_than_it_has(epoch, bits):
    proof, peer = PROOFS[epoch], ALICE.peer_id
    assert is_solved(RULES, RUN_ID, peer, proof)
    hashed = admitted_bits(proof, peer)
    harder = RULES.model_copy(update={"work_bits": bits})
    assert is_solved(harder, RUN_ID, peer, proof) == (hashed >= bits)


def admitted_bits(proof, peer):
    """Return the zero bits of a proof's hash, by requiring more and more."""
    asked = (RULES.model_copy(update={"work_bits": bits}) for bits in range(1, 41))
    return sum(is_solved(rules, RUN_ID, peer, proof) for rules in asked)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_work_for_anything_else_is_no_better_than_chance(data):
    """Of 64 valid proofs about one in 16 is valid elsewhere by chance."""
    change = data.draw(st.sampled_from(["run", "peer", "epoch", "memory", "passes"]))
    rules, run_id, peer = RULES, RUN_ID, ALICE
    if change == "run":
        run_id = digest(data.draw(st.binary(min_size=1, max_size=8)))
    elif change == "peer":
        peer = BOB
    elif change == "memory":
        rules = RULES.model_copy(update={"work_kib": data.draw(st.sampled_from([9, 16, 64]))})
    elif change == "passes":
        rules = RULES.model_copy(update={"work_passes": 2})
    moved = [
        work_proof(epoch + 100, int.from_bytes(proof[8:], "big")) if change == "epoch" else proof
        for epoch, proof in MANY.items()
    ]
    good = sum(is_solved(rules, run_id, peer.peer_id, proof) for proof in moved)
    assert good <= 20, "the hash does not depend on it"


MANY = {epoch: solved(ALICE, epoch) for epoch in range(64)}


def test_what_is_tried_is_what_was_given():
    nonce = int.from_bytes(PROOFS[3][8:], "big")
    assert solve(RULES, RUN_ID, ALICE.peer_id, 3, range(nonce)) is None
    assert solve(RULES, RUN_ID, ALICE.peer_id, 3, range(nonce, nonce + 1)) == PROOFS[3]


# Accepted records


def test_a_proof_admits_its_key_from_the_end_of_its_window_on():
    here = keys()
    assert not here.knows(ALICE.peer_id)
    assert here.offer(ALICE.peer_id, PROOFS[2], WORLD.at(2)) is True
    assert here.get(ALICE.peer_id) == Admission(PROOFS[2], 2 + WINDOW)
    assert here.knows(ALICE.peer_id)


@pytest.mark.parametrize("heard", range(1, 12))
def test_who_hears_in_time_agrees_and_who_hears_late_counts_from_then(heard):
    here = keys()
    assert here.offer(ALICE.peer_id, PROOFS[3], WORLD.at(heard)) is True
    assert here.get(ALICE.peer_id).since == max(3 + WINDOW, heard)


def test_a_date_too_far_ahead_is_nobody_elses_fault_and_costs_no_hash(monkeypatch):
    monkeypatch.setattr(admission, "is_solved", pytest.fail)
    fault = keys().offer(ALICE.peer_id, PROOFS[7], WORLD.at(4))
    assert code(fault) is FaultCode.FUTURE_EPOCH


@given(proof=st.binary(max_size=ADMISSION_BYTES_MAX))
@settings(max_examples=200, deadline=None)
def test_any_other_bytes_are_refused_and_leave_nothing(proof):
    here = keys()
    result = here.offer(ALICE.peer_id, proof, WORLD.at(4))
    assert isinstance(result, Fault) or (len(proof) == WORK_BYTES and result is True)
    if isinstance(result, Fault):
        assert not here.knows(ALICE.peer_id)
        assert not here.changes


def test_a_proof_of_other_length_costs_no_hash(monkeypatch):
    monkeypatch.setattr(admission, "is_solved", pytest.fail)
    for proof in (b"", PROOFS[2] + b"\0", PROOFS[2][:-1]):
        assert code(keys().offer(ALICE.peer_id, proof, WORLD.at(2))) is FaultCode.NOT_ADMITTED


def test_the_proof_of_another_key_admits_nobody():
    bad = next(
        proof for proof in PROOFS.values() if not is_solved(RULES, RUN_ID, BOB.peer_id, proof)
    )
    assert code(keys().offer(BOB.peer_id, bad, WORLD.at(7))) is FaultCode.NOT_ADMITTED


def test_a_refresh_is_not_hashed_again_and_a_later_proof_does_not_move_the_date(monkeypatch):
    here = keys()
    here.offer(ALICE.peer_id, PROOFS[2], WORLD.at(2))
    with monkeypatch.context() as patch:
        patch.setattr(admission, "is_solved", pytest.fail)
        assert here.offer(ALICE.peer_id, PROOFS[2], WORLD.at(90)) is True
    assert here.offer(ALICE.peer_id, PROOFS[7], WORLD.at(90)) is True
    assert here.get(ALICE.peer_id) == Admission(PROOFS[7], 2 + WINDOW)


def test_after_a_wrong_proof_no_other_one_of_that_key_is_looked_at_for_a_while():
    here, now = keys(), WORLD.at(4)
    wrong = next(
        proof
        for proof in (work_proof(4, nonce) for nonce in count())
        if not is_solved(RULES, RUN_ID, ALICE.peer_id, proof)
    )
    assert code(here.offer(ALICE.peer_id, wrong, now)) is FaultCode.NOT_ADMITTED
    assert here.offer(ALICE.peer_id, PROOFS[4], now + 9.9) is False
    assert here.offer(BOB.peer_id, solved(BOB, 4), now + 9.9) is True
    assert here.offer(ALICE.peer_id, PROOFS[4], now + 10) is True


def test_so_much_work_is_checked_a_second_and_no_more(monkeypatch):
    monkeypatch.setattr(admission, "CHECKED_KIB_PER_SECOND", 10 * RULES.work_kib)
    here, now = keys(), WORLD.at(4)
    untrusted = [identity(f"untrusted {n}") for n in range(25)]
    proofs = {one.peer_id: solved(one, 4) for one in untrusted}
    taken = [here.offer(peer, proof, now) for peer, proof in proofs.items()]
    assert taken == [True] * 10 + [False] * 15
    assert not here.can_check(now)
    taken = [here.offer(peer, proof, now + 0.5) for peer, proof in proofs.items()]
    assert taken == [True] * 15 + [False] * 10, "those that are known cost nothing"
    assert here.offer(untrusted[20].peer_id, proofs[untrusted[20].peer_id], now - 9) is False
    assert WORLD.validators[0].peer_id not in proofs
    assert here.offer(WORLD.validators[0].peer_id, b"", now + 0.5) is True


def test_so_many_keys_are_remembered(monkeypatch):
    monkeypatch.setattr(admission, "KEYS_MAX", 3)
    here = keys()
    crowd = [identity(f"untrusted {n}") for n in range(4)]
    for one in crowd[:3]:
        here.offer(one.peer_id, solved(one, 4), WORLD.at(4))
    first = crowd[0].peer_id
    assert here.offer(first, here.get(first).proof, WORLD.at(5)) is True  # the last used one now
    here.offer(crowd[3].peer_id, solved(crowd[3], 4), WORLD.at(5))
    assert [here.knows(one.peer_id) for one in crowd] == [True, False, True, True]
    assert here.changes[crowd[1].peer_id] is None


@pytest.mark.parametrize("one", [CREATOR, *WORLD.validators[:1], *WORLD.trainers])
def test_the_genesis_needs_no_admission(one):
    here = keys()
    assert here.offer(one.peer_id, b"anything", WORLD.at(0)) is True
    assert here.knows(one.peer_id)
    assert here.counts(one.peer_id, 0, 0)


def test_where_nothing_is_asked_every_key_counts_at_once():
    here = keys(World(run_manifest()))
    assert here.offer(ALICE.peer_id, b"", WORLD.at(0)) is True
    assert here.counts(ALICE.peer_id, 0, 0)


# Probation


@given(heard=st.integers(0, 30), made=st.integers(0, 60), epoch=st.integers(0, 60))
def test_a_key_counts_for_what_was_made_after_its_probation_or_when_it_has_settled(
    heard, made, epoch
):
    here = keys()
    here.admit(ALICE.peer_id, Admission(b"", heard))
    expected = made >= heard + 2 or epoch >= heard + 20
    assert here.counts(ALICE.peer_id, made, epoch) is expected


@given(date=st.integers(0, 7), heard=st.integers(0, 40), made=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_however_it_is_dated_no_key_counts_for_a_version_from_before_it_was_heard_of(
    date, heard, made
):
    """The key cannot be older than ``heard``; only settling permits an earlier date."""
    here = keys()
    if here.offer(ALICE.peer_id, PROOFS[date], WORLD.at(heard)) is not True:
        return
    if here.counts(ALICE.peer_id, made, 0):
        assert made > heard


def test_probation_may_be_nothing_but_work_may_not_be_skipped():
    here = keys(World(run_manifest(admission=WORK)))
    assert not here.counts(ALICE.peer_id, 9, 9)
    run_id = World(run_manifest(admission=WORK)).run_id
    proof = solved(ALICE, 5, RULES, run_id)
    assert here.offer(ALICE.peer_id, proof, WORLD.at(5)) is True
    assert here.counts(ALICE.peer_id, 0, 5)


def test_probation_without_work_asks_for_a_date():
    world = World(run_manifest(admission=PROBATION | {"work_bits": 0}))
    assert code(keys(world).offer(ALICE.peer_id, b"", world.at(0))) is FaultCode.NOT_ADMITTED
    assert keys(world).offer(ALICE.peer_id, work_proof(0, 0), world.at(0)) is True


# Invites

MEMBER = identity("member")
INVITED = World(run_manifest(admission={"rule": "invite", "inviters": {MEMBER.peer_id: 2}}))


def invite(guest=ALICE, inviter=CREATOR, world=INVITED, **changes):
    fields = {"key": guest.public_key, "number": 0, "epoch": 4, "until": 50} | changes
    return seal(Invite(**fields), world.run_id, inviter).envelope


def test_an_invite_of_the_creator_or_of_a_member_within_its_quota_admits():
    here = keys(INVITED)
    assert here.offer(ALICE.peer_id, invite(number=2**40), INVITED.at(4)) is True
    assert here.offer(BOB.peer_id, invite(BOB, MEMBER, number=1), INVITED.at(4)) is True
    assert here.counts(BOB.peer_id, 0, 4)


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        invite(BOB),
        invite(inviter=BOB),
        invite(inviter=ALICE),
        invite(inviter=MEMBER, number=2),
        invite(inviter=WORLD.validators[0]),
        invite(world=WORLD),
        invite()[:-1],
        invite() + b"\0",
        PROOFS[4],
    ],
)
def test_any_other_invite_is_refused(proof):
    here = keys(INVITED)
    assert code(here.offer(ALICE.peer_id, proof, INVITED.at(4))) is FaultCode.NOT_ADMITTED
    assert not here.knows(ALICE.peer_id)


@given(at=st.integers(0, 400), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_an_invite_with_a_bit_changed_admits_nobody(at, bit):
    changed = bytearray(invite())
    changed[at % len(changed)] ^= 1 << bit
    assert isinstance(keys(INVITED).offer(ALICE.peer_id, bytes(changed), INVITED.at(4)), Fault)


def test_an_invite_counts_until_it_ends_and_may_be_renewed_under_its_number():
    here, peer = keys(INVITED), ALICE.peer_id
    assert here.offer(peer, invite(), INVITED.at(4)) is True
    assert here.counts(peer, 50, 50)
    assert not here.counts(peer, 51, 51)
    assert code(here.offer(peer, invite(), INVITED.at(51))) is FaultCode.OLD_DATE
    assert here.offer(peer, invite(epoch=51, until=90), INVITED.at(51)) is True
    assert here.get(peer).since == 4 + WINDOW
    assert here.counts(peer, 51, 51)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_two_invites_of_one_number_admit_neither_in_whatever_order_they_come(order):
    here, guests = keys(INVITED), [ALICE, BOB, identity("carol")]
    results = [
        code(here.offer(guests[n].peer_id, invite(guests[n], MEMBER), INVITED.at(4))) for n in order
    ]
    assert results == [True, True, FaultCode.INVITED_TWICE], "the second travels, so all learn"
    assert not any(here.counts(guest.peer_id, 9, 9) for guest in guests)
    other = identity("dave")
    assert here.offer(other.peer_id, invite(other, MEMBER, number=1), INVITED.at(4)) is True
    assert here.counts(other.peer_id, 9, 9)


# Bounds in a manifest


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": "stake"},
        {"work_bits": 41},
        {"work_bits": -1},
        {"work_kib": 7},
        {"work_kib": 8193},
        {"work_kib": 8192, "work_passes": 2},
        {"work_passes": 17},
        {"probation_epochs": 5, "settled_epochs": 5},
        {"rule": "allowlist", "probation_epochs": 1, "settled_epochs": 9},
        {"rule": "allowlist", "work_bits": 1},
        {"rule": "invite", "work_bits": 1},
        {"inviters": {MEMBER.peer_id: 1}},
        {"rule": "invite", "inviters": {"nobody": 1}},
        {"rule": "invite", "inviters": {MEMBER.peer_id: 1001}},
        {"rule": "invite", "inviters": {identity(f"{n}").peer_id: 1 for n in range(65)}},
        {"workers": (ALICE.peer_id,)},
    ],
)
def test_an_admission_section_that_cannot_be(wrong):
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's own words
        AdmissionSection(**{"rule": "open"} | wrong)
