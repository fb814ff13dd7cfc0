"""Draws of late re-examinations, and the statements that overturn an outcome."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.council import Council
from protocol.consensus.member import Contents
from protocol.consensus.reexamination import (
    AGAINST_ACCEPTANCE,
    Panel,
    check_overturn,
    is_drawn,
    may_overturn,
    newly_shown,
    overturn_of,
    overturned_before,
    panel_of,
)
from protocol.core.crypto import digest, verify
from protocol.messages import Objection, signature_of
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.page_book import PageBook

WORLD = World(run_manifest(validators=12))
COMMIT = digest(b"commit")
MANY = [identity(f"member {number}") for number in range(60)]


def node(members=MANY, seats=()):
    """Return a page of a council that draws."""
    council = Council(b"", tuple(sorted(one.peer_id for one in members)), seats)
    return replace(WORLD.book.drawing(WORLD.commit(WORLD.workers[0])), council=council)


def panel(members=MANY, committee=(), size=27, worker="", **options) -> Panel | None:
    return panel_of(node(members, **options), COMMIT, worker, committee, size)


# The lot


def test_the_lot_draws_its_share():
    beacon, commits = digest(b"beacon"), [digest(b"%d" % number) for number in range(4000)]
    for share in (0.05, 0.5):
        drawn = sum(is_drawn(beacon, one, share) for one in commits)
        assert abs(drawn - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5
    assert not any(is_drawn(beacon, one, 0.0) for one in commits)
    assert all(is_drawn(beacon, one, 1.0) for one in commits)


def test_another_beacon_draws_other_commits():
    commits = [digest(b"%d" % number) for number in range(200)]
    lots = [[is_drawn(digest(one), commit, 0.5) for commit in commits] for one in (b"1", b"2")]
    assert lots[0] != lots[1]


# Members


def test_the_members_are_drawn_from_the_others():
    committee, worker = tuple(one.peer_id for one in MANY[:7]), MANY[7].peer_id
    drawn = panel(committee=committee, worker=worker)
    assert len(drawn.seats) == len(drawn.members) == 27
    assert not set(drawn.members) & {worker, *committee}
    assert drawn.quorum == 18
    assert panel_of(node(), digest(b"other"), worker, committee, 27).members != drawn.members


def test_a_member_with_many_seats_counts_with_all_of_them():
    drawn = panel(MANY[:8], seats=(6,) * 8, size=12)
    assert 3 <= len(drawn.members) < len(drawn.seats) == 12
    by_seats = sorted(drawn.members, key=drawn.seats.count, reverse=True)
    needed = next(n for n in range(9) if sum(map(drawn.seats.count, by_seats[:n])) >= 8)
    assert drawn.is_quorum(by_seats[:needed])
    assert not drawn.is_quorum(by_seats[: needed - 1])


@pytest.mark.parametrize(
    ("members", "committee", "quorum"),
    [(6, 3, 3), (12, 7, 5), (12, 3, 6), (9, 6, None), (5, 3, None), (30, 7, 16), (34, 7, 18)],
)
def test_a_small_council_needs_more_than_a_third_of_all_seats(members, committee, quorum):
    """Two colluders of three drawn members would otherwise overturn what honest ones have found."""
    council = MANY[:members]
    drawn = panel(council, [one.peer_id for one in council[:committee]])
    assert (drawn and drawn.quorum) == quorum


# Objections and overturns


def objection(**changes) -> Objection:
    fields = {"commit": COMMIT, "page": digest(b"page"), "reason": "computation"}
    return Objection(**fields | changes)


def objecting(members, message=None) -> dict:
    """Return the signatures of members."""
    keys = {one.peer_id: one for one in MANY}
    return {
        peer: signature_of(WORLD.sealed(message or objection(), keys[peer])) for peer in members
    }


DRAWN = panel()


def test_two_thirds_of_the_seats_overturn():
    assert overturn_of(objection(), DRAWN, objecting(DRAWN.members[:17])) is None
    made = overturn_of(objection(), DRAWN, objecting(DRAWN.members[3:21]))
    assert made.members == sum(1 << place for place in range(3, 21))
    assert check_overturn(made, DRAWN, WORLD.run_id, verify) is None


@given(st.sets(st.integers(0, 26), min_size=18))
def test_any_quorum_convinces(places):
    members = [DRAWN.members[place] for place in places]
    made = overturn_of(objection(), DRAWN, objecting(members))
    assert check_overturn(made, DRAWN, WORLD.run_id, lambda *_: True) is None


MADE = overturn_of(objection(), DRAWN, objecting(DRAWN.members[:18]))
WRONG = {
    "too few members": {"members": (1 << 17) - 1, "signatures": MADE.signatures[:17]},
    "a member that is not drawn": {"members": MADE.members ^ 1 ^ 1 << 27},
    "another member's signature": {"members": MADE.members ^ 1 ^ 1 << 20},
    "another reason": {"reason": "format"},
    "another commit": {"commit": digest(b"other")},
    "another page": {"page": digest(b"other")},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_overturn_is_refused(name):
    other = MADE.model_copy(update=WRONG[name])
    assert check_overturn(other, DRAWN, WORLD.run_id, verify) is not None


def test_only_certain_reasons_and_rewards_overturn_an_acceptance():
    """On all others two honest validators may differ: a crafted rollout could frame one."""
    assert {"format", "termination", "computation", "reward"} == AGAINST_ACCEPTANCE
    for reason in ("statistics", "proofs", "logprobs", "sampling", "history", "accepted"):
        assert not may_overturn(reason, "accepted")
    assert all(may_overturn(reason, "accepted") for reason in AGAINST_ACCEPTANCE)


def test_only_a_rejection_that_slashes_is_overturned():
    assert may_overturn("accepted", "computation")
    assert may_overturn("accepted", "history")
    for decided in ("reward", "statistics", "logprobs"):
        assert not may_overturn("accepted", decided)
    assert not may_overturn("format", "computation")


# Pages


def book(contents=None, **options) -> PageBook:
    return PageBook(WORLD.manifest, WORLD.validators, contents or {}, **options)


def pages_of(made: PageBook, last: int):
    """Return the notarised pages of a book by digest, and by epoch."""
    target = WORLD.replica(pages_to=0, roster_at=None, genesis=False)
    made.show(target, last)
    nodes = {one.epoch: one for one in target.pages.notarised() if one.page is not None}
    return target.pages.page, nodes


def test_each_page_draws_what_its_ancestors_newly_show_final():
    page_of, nodes = pages_of(book(), 12)
    for epoch in range(5, 12):
        shown = newly_shown(nodes[epoch], page_of)
        assert [one.epoch for one in shown] == [nodes[epoch].page.message.final_epoch]


def test_pages_without_a_draw_leave_their_commits_to_the_next_one():
    page_of, nodes = pages_of(book(), 12)
    shown = {}
    for epoch in sorted({*range(4, 12)} - QUIET):
        for one in newly_shown(nodes[epoch], lambda one: quieted(page_of(one))):
            shown.setdefault(one.epoch, []).append(epoch)
    assert all(len(by) == 1 for by in shown.values()), shown
    assert [one for one, by in shown.items() if by == [9]] == [7, 6, 5]


QUIET = {7, 8}


def quieted(one):
    return replace(one, draws=False) if one is not None and one.epoch in QUIET else one


def test_without_a_page_in_between_nothing_is_known():
    page_of, nodes = pages_of(book(), 12)
    missing = nodes[7].digest
    assert newly_shown(nodes[8], lambda one: None if one == missing else page_of(one)) is None


def test_overturned_commits_are_those_of_a_page_and_of_some_before_it():
    commit = WORLD.commit(WORLD.workers[0], epoch=1)
    contents = {
        1: Contents(commits=(commit.digest,)),
        4: Contents(certified=(commit.digest,)),
        8: Contents(overturned=(commit.digest,)),
    }
    page_of, nodes = pages_of(book(contents), 12)
    assert overturned_before(nodes[8], page_of, 1) == {commit.digest}
    assert overturned_before(nodes[10], page_of, 3) == {commit.digest}
    assert overturned_before(nodes[10], page_of, 2) == set()
    assert overturned_before(nodes[7], page_of, 20) == set()
