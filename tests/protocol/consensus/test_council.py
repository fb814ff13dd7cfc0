import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.council import (
    CHAIN_BYTES_MAX,
    NOTARISED_BYTES_MAX,
    CheckedPage,
    Council,
    NotarisedPage,
    check_page,
    decode_notarised,
)
from protocol.consensus.page_node import OFFERED_MAX
from protocol.core.codec import decode, encode
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault
from protocol.core.types import RunId
from protocol.messages import (
    COUNCIL_MAX,
    ENVELOPE_BYTES_MAX,
    LISTED_MAX,
    OPENED_MAX,
    REVEALERS_MAX,
    VERDICTS_MAX,
    Opened,
)
from tests.protocol.consensus.councils import (
    KEYS,
    PEERS,
    RUN,
    Councils,
    fast_proof,
    key_of,
    vote_on,
)

WORLD = Councils(size=4)
TREE = WORLD.tree()
ROOT = TREE.root
COUNCIL = TREE.council
OUTSIDER = PEERS[4]


@pytest.mark.parametrize(
    ("seats", "quorum", "recovery"),
    [(1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 3, 3), (6, 5, 4), (7, 5, 4), (9, 7, 5), (100, 67, 51)],
)
def test_the_quorums(seats, quorum, recovery):
    council = Council(b"", tuple(map(str, range(seats))))
    assert (council.quorum, council.recovery_quorum) == (quorum, recovery)


@given(st.integers(1, 200))
def test_two_quorums_share_more_than_a_third(seats):
    council = Council(b"", tuple(map(str, range(seats))))
    assert 3 * (2 * council.quorum - seats) > seats
    assert 3 * (council.quorum - 1) <= 2 * seats, "dishonest members of a third stop nothing less"
    assert 2 * council.recovery_quorum > seats >= 2 * (council.recovery_quorum - 1)


def test_each_member_proposes_and_reveals_about_equally_often():
    council = TREE.council
    proposed = [council.proposers(ROOT.beacon, epoch)[0] for epoch in range(400)]
    assert [council.proposer(ROOT.beacon, epoch) for epoch in range(400)] == proposed
    assert all(60 < proposed.count(peer) < 140 for peer in council.members)
    drawn = [council.revealers(ROOT.beacon, epoch, 2) for epoch in range(400)]
    assert all(140 < sum(peer in one for one in drawn) < 260 for peer in council.members)
    assert all(len(set(one)) == 2 for one in drawn)
    other = WORLD.extend(WORLD.tree(), 0).beacon
    assert [council.proposers(other, epoch)[0] for epoch in range(400)] != proposed
    assert [one[0] for one in drawn] != proposed, "the lots are independent"


def checked(page, council=COUNCIL, world=WORLD):
    return check_page(page, council, world.rules, world.output)


def test_a_valid_page_of_real_proofs():
    world = Councils(size=4, is_real=True)
    root = world.tree().root
    result = checked(world.page(root, 0), world=world)
    assert isinstance(result, CheckedPage)
    assert result.draws
    fewer = checked(world.page(root, 0, silent=1), world=world)
    assert fewer.draws
    assert not checked(world.page(root, 0, silent=3), world=world).draws
    assert len({result.beacon, fewer.beacon, root.beacon}) == 3
    forged = (WORLD.proofs(root, 0)[0], *world.proofs(root, 0)[1:])
    assert checked(world.page(root, 0, reveals=forged), world=world).code == "bad-reveal"


def test_the_beacon_depends_on_parent_epoch_and_every_reveal():
    pages = [
        WORLD.page(ROOT, 0),
        WORLD.page(ROOT, 1),
        *(WORLD.page(ROOT, 0, silent=number) for number in range(1, 5)),
        WORLD.page(dataclasses.replace(ROOT, beacon=KEYS[OUTSIDER].public_key), 0),
    ]
    pages = [page for page in pages if page.message.reveals]
    beacons = [checked(page) for page in pages]
    assert all(isinstance(one, CheckedPage) for one in beacons)
    assert len({one.beacon for one in beacons}) == len(pages)


EPOCH = 3
DRAWN = COUNCIL.revealers(ROOT.beacon, EPOCH, 8)
PROOFS = WORLD.proofs(ROOT, EPOCH)
PROPOSERS = COUNCIL.proposers(ROOT.beacon, EPOCH)
FLAWED = {
    "another council": ({"council": bytes(32)}, "wrong-council"),
    "no proposer": (
        {"signer": next(peer for peer in COUNCIL.members if peer not in PROPOSERS)},
        "not-proposer",
    ),
    "not a member": ({"signer": OUTSIDER}, "not-proposer"),
    "a final page of its own epoch": ({"final_epoch": EPOCH}, "wrong-epoch"),
    "too few reveals": ({"reveals": PROOFS[:-1]}, "bad-reveal"),
    "too many reveals": ({"reveals": (*PROOFS, b"")}, "bad-reveal"),
    "reveals in another order": ({"reveals": PROOFS[::-1]}, "bad-reveal"),
    "a reveal for another epoch": (
        {"reveals": (WORLD.proofs(ROOT, 4)[0], *PROOFS[1:])},
        "bad-reveal",
    ),
    "a reveal of another run": (
        {"reveals": (fast_proof(DRAWN[0], b"another run"), *PROOFS[1:])},
        "bad-reveal",
    ),
    "a key joins twice": ({"joined": (OUTSIDER, OUTSIDER)}, "wrong-council"),
    "a key leaves twice": ({"removed": (PEERS[0], PEERS[0])}, "wrong-council"),
    "a member joins": ({"joined": (PEERS[0],)}, "wrong-council"),
    "a member joins and leaves": (
        {"joined": (PEERS[0],), "removed": (PEERS[0],)},
        "wrong-council",
    ),
    "an outsider leaves": ({"removed": (OUTSIDER,)}, "wrong-council"),
    "nobody stays": ({"removed": PEERS[:4]}, "wrong-council"),
    "too many join": ({"joined": PEERS[4:13]}, "wrong-council"),
    "a change after a change": ({"joined": (OUTSIDER,), "reveals": ()}, "wrong-council"),
    "a change beside a commit": (
        {"joined": (OUTSIDER,), "commits": (bytes(32),)},
        "wrong-council",
    ),
    "a removal beside an acceptance": (
        {"removed": (PEERS[0],), "certified": (bytes(32),), "checkers": (1,)},
        "wrong-council",
    ),
    "a removal beside a rejection": (
        {"removed": (PEERS[0],), "rejected": (bytes(32),), "checkers": (1,)},
        "wrong-council",
    ),
    "a removal beside work": ({"removed": (PEERS[0],), "work": bytes(32)}, "wrong-council"),
    "work after a change": ({"reveals": (), "commits": (), "work": bytes(32)}, "wrong-council"),
    "accounts after a change": (
        {"reveals": (), "commits": (), "ledger": bytes(32)},
        "wrong-council",
    ),
    "a draw after a change": ({"draw": {OUTSIDER: 1}, "reveals": ()}, "wrong-council"),
}


def test_the_page_of_each_proposer_has_the_same_beacon():
    pages = [checked(WORLD.page(ROOT, EPOCH, signer=peer)) for peer in PROPOSERS]
    assert len({page.page.digest for page in pages}) == 3
    assert {page.beacon for page in pages} == {checked(WORLD.page(ROOT, EPOCH)).beacon}


@pytest.mark.parametrize("name", FLAWED)
def test_a_page_with_one_flaw_is_refused(name):
    changes, code = FLAWED[name]
    result = checked(WORLD.page(ROOT, EPOCH, **changes))
    assert isinstance(result, Fault)
    assert result.code == code


# Draws of a council

ERAS = Councils(size=4, era_epochs=10)
ERA_ROOT = ERAS.tree().root
KEY_A, KEY_B = sorted(map(key_of, PEERS[4:6]))
BAD_DRAWS = {
    "in the first era": (9, {"drawn": (KEY_A,), "seats": (1,)}),
    "with keys out of order": (10, {"drawn": (KEY_B, KEY_A), "seats": (1, 1)}),
    "with a key twice": (10, {"drawn": (KEY_A, KEY_A), "seats": (1, 1)}),
    "with a key without seats": (10, {"drawn": (KEY_A, KEY_B), "seats": (1,)}),
    "with seats without a key": (10, {"drawn": (KEY_A,), "seats": (1, 1)}),
    "with seats of no key": (10, {"drawn": (), "seats": (1,)}),
    "with too many seats": (10, {"drawn": (KEY_A, KEY_B), "seats": (6, 7)}),
    "with a key that joins": (10, {"drawn": (KEY_A,), "seats": (1,), "joined": (PEERS[5],)}),
    "beside a commit": (10, {"drawn": (KEY_A,), "seats": (1,), "commits": (bytes(32),)}),
    "with a key that leaves": (10, {"drawn": (KEY_A,), "seats": (1,), "removed": PEERS[:1]}),
}


@pytest.mark.parametrize("name", BAD_DRAWS)
def test_a_draw_with_one_flaw_is_refused(name):
    epoch, fields = BAD_DRAWS[name]
    result = checked(ERAS.page(ERA_ROOT, epoch, **fields), world=ERAS)
    assert isinstance(result, Fault)
    assert result.code == "wrong-council"


@pytest.mark.parametrize("epoch", [10, 19, 20, 35])
def test_a_draw_seats_its_keys_and_no_others(epoch):
    seats = {PEERS[2]: 3, PEERS[5]: 1, PEERS[7]: 8}
    page = ERAS.page(ERA_ROOT, epoch, draw=seats)
    assert isinstance(checked(page, world=ERAS), CheckedPage), "as many seats as there are"
    council = COUNCIL.after(page, 10)
    expected = tuple(sorted(seats)), tuple(seats[peer] for peer in sorted(seats))
    assert (council.members, council.seats) == expected
    assert (council.seat, council.number, council.since) == (page.digest, 1, epoch)
    assert council.era == epoch // 10


def test_a_council_is_drawn_once_in_an_era_and_only_a_draw_seats_members():
    drawn = COUNCIL.after(ERAS.page(ERA_ROOT, 10, draw=dict.fromkeys(PEERS[:4], 2)), 10)
    root = dataclasses.replace(ERA_ROOT, digest=drawn.seat, council=drawn, epoch=10)
    for epoch, valid in ((19, False), (20, True)):
        result = checked(ERAS.page(root, epoch, draw={OUTSIDER: 1}), drawn, ERAS)
        assert isinstance(result, CheckedPage) is valid
    assert isinstance(checked(ERAS.page(root, 12, joined=(OUTSIDER,)), drawn, ERAS), Fault)
    removal = ERAS.page(root, 12, removed=PEERS[:1])
    assert isinstance(checked(removal, drawn, ERAS), CheckedPage)
    left = drawn.after(removal, 10)
    assert (left.members, left.seats, left.era) == (tuple(PEERS[1:4]), (2, 2, 2), 1)


def test_a_draw_needs_the_usual_quorum_however_late_it_is():
    rules = dataclasses.replace(ERAS.rules, recovery_epochs=5)
    assert not rules.begins_recovery(ERAS.page(ERA_ROOT, 30, draw={OUTSIDER: 1}).message)


def seated(*seats) -> Council:
    return Council(b"", tuple(PEERS[: len(seats)]), seats)


@pytest.mark.parametrize(
    ("seats", "voters", "quorum", "recovery"),
    [
        ((4, 1, 1), [0, 1], True, True),
        ((4, 1, 1), [0], False, True),
        ((4, 1, 1), [1, 2], False, False),
        ((5, 1, 1), [0], True, True),
        ((3, 1, 1, 1), [0], False, False),
        ((3, 1, 1, 1), [0, 1], False, True),
        ((3, 1, 1, 1), [1, 2, 3], False, False),
        ((3, 1, 1, 1), [0, 1, 2], True, True),
        ((1, 1, 1, 1), [0, 1, 2], True, True),
        ((1, 1, 1, 1), [0, 1], False, False),
    ],
)
def test_votes_count_by_seats(seats, voters, quorum, recovery):
    council = seated(*seats)
    peers = [PEERS[place] for place in voters]
    count = sum(seats[place] for place in voters)
    assert council.seats_total == sum(seats)
    assert council.seats_of([*peers, PEERS[9]]) == count, "an outsider has none"
    page = WORLD.page(dataclasses.replace(ROOT, council=council), 3)
    one = NotarisedPage.of(page, [vote_on(peer, page) for peer in peers], council)
    for is_recovery, valid in ((False, quorum), (True, recovery)):
        fault = one.verified(council, WORLD.rules, verify, is_recovery=is_recovery)
        assert (fault is None) is valid


def test_two_quorums_of_seats_share_more_than_a_third():
    rng = random.Random(5)
    for _ in range(200):
        council = seated(*(rng.randint(1, 20) for _ in range(rng.randint(1, 12))))
        assert 3 * (2 * council.quorum - council.seats_total) > council.seats_total
        assert 3 * (council.quorum - 1) <= 2 * council.seats_total


def test_members_are_ranked_first_in_proportion_to_their_seats():
    seats = (1, 2, 3, 10)
    council = seated(*seats)
    lots = [digest(b"lot %d" % number) for number in range(1600)]
    firsts = [council.ranked(lot)[0] for lot in lots]
    proposers = [council.proposers(lot, 4)[0] for lot in lots]
    for peer, count in zip(PEERS, seats, strict=False):
        share = count / 16
        for chosen in (firsts, proposers):
            deviation = (1600 * share * (1 - share)) ** 0.5
            assert abs(chosen.count(peer) - 1600 * share) < 4 * deviation
    for lot in lots[:50]:
        assert sorted(council.ranked(lot)) == sorted(council.members), "each once"
        assert council.ranked(lot, PEERS[3]) == tuple(
            peer for peer in council.ranked(lot) if peer != PEERS[3]
        )


def test_three_members_may_propose_however_many_seats_they_have():
    council = seated(50, 1, 1, 1, 1)
    for lot in (digest(b"lot %d" % number) for number in range(100)):
        ranking = council.ranked(b"prime-node/proposer" + lot + (4).to_bytes(8, "big"))
        assert council.proposers(lot, 4) == ranking[:3]
    two = seated(1, 1)
    assert sorted(two.proposers(lot, 4)) == sorted(two.members)


def test_each_group_of_keys_has_its_share_of_the_first_seats():
    """However few keys the honest members have: two thirds of the first seats are theirs."""
    council = seated(33, 33, *(1,) * 10, 23)
    lots = [digest(b"lot %d" % number) for number in range(300)]
    for count in (3, 7, 8):
        heavy = 0
        for lot in lots:
            first = council.ranked_seats(lot)[:count]
            heavy += sum(peer in PEERS[:2] for peer in first)
        share = heavy / (300 * count)
        assert abs(share - 66 / 99) < 4 * (2 / 9 / (300 * count)) ** 0.5
    assert len(council.ranked_seats(lots[0])) == 99
    assert council.ranked(lots[0]) == tuple(dict.fromkeys(council.ranked_seats(lots[0])))
    assert PEERS[0] not in council.ranked_seats(lots[0], PEERS[0])


def test_the_seats_of_those_that_reveal_decide_whether_a_page_draws():
    council = seated(20, 4, 1)
    root = dataclasses.replace(ROOT, council=council)
    for epoch in range(30):
        seats = council.reveal_seats(root.beacon, epoch, 8)
        peers = council.revealers(root.beacon, epoch, 8)
        assert (len(seats), peers) == (8, tuple(dict.fromkeys(seats)))
        for missing in range(2 ** len(peers)):
            silent = [peer for place, peer in enumerate(peers) if missing >> place & 1]
            proofs = WORLD.proofs(root, epoch, silent)
            result = checked(WORLD.page(root, epoch, reveals=proofs), council)
            assert result.draws is (sum(peer not in silent for peer in seats) >= 4)


def test_a_member_with_one_seat_has_the_rank_that_it_had_before_seats():
    lot = digest(b"a lot")
    plain, equal = (Council(b"", tuple(PEERS[:9]), seats) for seats in ((), (1,) * 9))
    by_hash = sorted(PEERS[:9], key=lambda peer: digest(lot + peer.encode()))
    assert list(plain.ranked(lot)) == list(equal.ranked(lot)) == by_hash
    heavy = Council(b"", tuple(PEERS[:9]), (1,) * 8 + (200,))
    rest = [peer for peer in by_hash if peer != PEERS[8]]
    assert [peer for peer in heavy.ranked(lot) if peer != PEERS[8]] == rest


def test_a_reveal_of_another_run_is_refused():
    other = Councils(size=4)
    other.rules = dataclasses.replace(other.rules, run_id=RunId(digest(b"another run")))
    page = WORLD.page(ROOT, EPOCH, reveals=other.proofs(ROOT, EPOCH))
    assert checked(page).code == "bad-reveal"


def test_changes_at_the_limits_are_valid():
    full = WORLD.page(ROOT, EPOCH, joined=PEERS[4:12])
    one = WORLD.page(ROOT, EPOCH, removed=PEERS[:3])
    turnover = WORLD.page(ROOT, EPOCH, removed=PEERS[:4], joined=PEERS[4:8])
    for page, members in ((full, PEERS[:12]), (one, PEERS[3:4]), (turnover, PEERS[4:8])):
        assert isinstance(checked(page), CheckedPage)
        council = COUNCIL.after(page, 10)
        assert council == Council(page.digest, tuple(sorted(members)), (), 1, EPOCH)


def test_a_recovery_only_removes_and_only_after_its_epochs():
    rules = WORLD.rules
    for epoch, final_epoch, is_recovery in ((9, -1, True), (8, -1, False), (15, 5, True)):
        for joined in ((), (OUTSIDER,)):
            page = WORLD.page(
                ROOT, epoch, removed=PEERS[:1], joined=joined, final_epoch=final_epoch
            )
            assert rules.begins_recovery(page.message) is is_recovery
            assert isinstance(checked(page), Fault) is (is_recovery and bool(joined))
    page = WORLD.page(ROOT, 30, joined=(OUTSIDER,))
    assert not rules.begins_recovery(page.message), "nobody leaves: the usual quorum"
    assert isinstance(checked(page), CheckedPage)


def notarised(voters=PEERS[:3], **fields) -> NotarisedPage:
    page = WORLD.page(ROOT, EPOCH, **fields)
    return NotarisedPage.of(page, [vote_on(peer, page) for peer in voters], COUNCIL)


def decoded(data: bytes) -> NotarisedPage | Fault:
    return decode_notarised(data, RUN, verify, Opened(OPENED_MAX))


@pytest.mark.parametrize("voters", [PEERS[:3], PEERS[1:4], PEERS[:4], PEERS[:1]])
def test_a_notarised_page_is_decoded_as_it_was(voters):
    one = notarised(voters[::-1])
    again = decoded(one.encoded())
    assert again == one
    assert again.encoded() == one.encoded()
    fault = again.verified(COUNCIL, WORLD.rules, verify, is_recovery=False)
    assert (fault is None) is (len(voters) >= 3)
    votes = again.opened_votes(COUNCIL, RUN)
    assert votes == [vote_on(peer, one.page) for peer in voters]


def test_the_quorum_of_a_recovery_is_more_than_half():
    world = Councils(size=7)
    council = world.tree().council
    page = world.page(world.tree().root, 20, removed=PEERS[:1])
    for count, recovery, usual in ((3, False, False), (4, True, False), (5, True, True)):
        one = NotarisedPage.of(page, [vote_on(peer, page) for peer in PEERS[:count]], council)
        for is_recovery, valid in ((True, recovery), (False, usual)):
            fault = one.verified(council, world.rules, verify, is_recovery=is_recovery)
            assert (fault is None) is valid


def fields_of(one: NotarisedPage) -> dict:
    return decode(one.encoded(), bytes_max=NOTARISED_BYTES_MAX)


ONE = notarised()
FIELDS = fields_of(ONE)
OTHER_VOTE = vote_on(PEERS[0], ONE.page)
MALFORMED = {
    "no map": encode([1, 2]),
    "nothing": b"",
    "a field more": encode({**FIELDS, "more": 1}),
    "a field less": encode({"page": FIELDS["page"], "voters": FIELDS["voters"]}),
    "voters that are no bytes": encode({**FIELDS, "voters": 7}),
    "a signature less": encode({**FIELDS, "signatures": FIELDS["signatures"][64:]}),
    "a signature more": encode({**FIELDS, "signatures": FIELDS["signatures"] + bytes(64)}),
    "part of a signature": encode({**FIELDS, "signatures": FIELDS["signatures"][:-1]}),
    "a voter more": encode({**FIELDS, "voters": b"\x0f"}),
    "padded voters": encode({**FIELDS, "voters": FIELDS["voters"] + b"\x00"}),
    "more voters than seats": encode({**FIELDS, "signatures": b"", "voters": b"\x01" * 26}),
    "another message": encode({**FIELDS, "page": OTHER_VOTE.envelope}),
    "a forged page": encode({**FIELDS, "page": FIELDS["page"][:-1] + b"x"}),
    "too large": encode({**FIELDS, "signatures": bytes(NOTARISED_BYTES_MAX)}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_are_refused(name):
    assert isinstance(decoded(MALFORMED[name]), Fault)


def test_many_voters_are_refused_before_they_are_counted():
    """A bit each: the places of 30,000 bytes would take seconds."""
    data = encode({**FIELDS, "signatures": b"", "voters": b"\x01" * 30_000})
    assert decoded(data) == Fault("bad-fields", "too many voters")


@given(st.data())
def test_changed_bytes_are_refused_or_mean_the_same(data):
    text = bytearray(ONE.encoded())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.integers(0, 255))
    result = decoded(bytes(text))
    if isinstance(result, Fault):
        return
    assert result.encoded() == bytes(text), "one form only"
    fault = result.verified(COUNCIL, WORLD.rules, verify, is_recovery=False)
    assert fault is not None or result == ONE


@given(st.binary(max_size=300))
def test_no_bytes_raise(data):
    assert isinstance(decoded(data), Fault)


def test_votes_that_do_not_notarise_a_page():
    others = [vote_on(peer, ONE.page, page=bytes(32)) for peer in PEERS[:3]]
    valid = [vote_on(peer, ONE.page) for peer in PEERS[:3]]
    for votes in (
        [*valid[:2], others[2]],
        [*valid[:2], vote_on(PEERS[2], ONE.page, epoch=EPOCH + 1)],
        [*valid[:2], vote_on(PEERS[2], ONE.page, council=bytes(32))],
        [*valid[:2], vote_on(PEERS[2], ONE.page, parent=bytes(32))],
    ):
        one = NotarisedPage.of(ONE.page, votes, COUNCIL)
        fault = one.verified(COUNCIL, WORLD.rules, verify, is_recovery=False)
        assert fault.code == "bad-signature"
    swapped = NotarisedPage(ONE.page, tuple((3 - place, text) for place, text in ONE.votes)[::-1])
    fault = swapped.verified(COUNCIL, WORLD.rules, verify, is_recovery=False)
    assert fault.code == "bad-signature"
    beyond = NotarisedPage(ONE.page, (*ONE.votes, (4, ONE.votes[0][1])))
    fault = beyond.verified(COUNCIL, WORLD.rules, verify, is_recovery=False)
    assert fault.code == "wrong-council"


def test_the_largest_pages_fit_into_a_message_and_into_a_chain():
    world = Councils(size=4, council_max=COUNCIL_MAX, era_epochs=10)
    keys = tuple(sorted(digest(b"key %d" % number) for number in range(COUNCIL_MAX)))
    listed, certified = (
        tuple(digest(b"%s %d" % (name, number)) for number in range(LISTED_MAX))
        for name in (b"listed", b"certified")
    )
    proofs = {"reveals": (bytes(80),) * REVEALERS_MAX, "final_epoch": 2**40, "epoch": 2**40 + 1}
    redraw = world.page(ROOT, 10, drawn=keys, seats=(1,) * COUNCIL_MAX, **proofs)
    decided = {"certified": certified, "checkers": (2**VERDICTS_MAX - 1,) * LISTED_MAX}
    stated = {"work": bytes(32), "ledger": bytes(32)}
    full = world.page(ROOT, 10, commits=listed, **decided, **stated, **proofs)
    for page in (redraw, full):
        assert len(page.envelope) <= ENVELOPE_BYTES_MAX
        signature = ONE.votes[0][1]
        votes = tuple((place, signature) for place in range(COUNCIL_MAX))
        data = NotarisedPage(page, votes).encoded()
        assert len(data) <= NOTARISED_BYTES_MAX
        assert OFFERED_MAX * len(data) <= CHAIN_BYTES_MAX
