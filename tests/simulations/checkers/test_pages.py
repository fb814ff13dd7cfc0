"""Rules of pages: one final chain, one vote, and the councils, beacons and quorums of a page."""

from dataclasses import replace

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core import vrf
from protocol.core.crypto import Identity
from simulations.checkers.finality import MARGIN_EPOCHS
from simulations.checkers.outputs import output_of
from tests.simulations.trace_examples import PATIENCE, TraceExample

FOUR = {"relay": ("relay",), "guest": ("validator",), "trainer": ("trainer",)}
FOUR |= {f"validator-{number}": ("validator",) for number in range(4)}
RECOVERY_EPOCHS = 10
MEMBERS = [f"validator-{number}" for number in range(4)]


class Council(TraceExample):
    """A run whose genesis has four validators, and a guest that has no seat."""

    def __init__(self, **options):
        super().__init__(FOUR, recovery_epochs=RECOVERY_EPOCHS, **options)
        self.up()

    def _of(self, role):
        names = [name for name in self.roles if name.startswith(f"{role}")]
        return [self.peers[name] for name in names]

    def key(self, name):
        return base58.b58decode(self.peers[name])[6:]

    def peers_of(self, *names):
        return sorted(self.peers[name] for name in names)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=40))
def test_the_output_of_a_proof_is_that_of_the_protocol(seed, alpha):
    key = Identity(seed)
    proof = key.prove(alpha)
    assert output_of(proof) == vrf.output(key.public_key, alpha, proof)


def test_a_proof_that_is_no_point_has_no_output():
    assert output_of((2).to_bytes(80, "little")) == b""


# Finality


def final_epoch(run):
    return run.pages.newest_final_epoch


def test_the_second_of_three_consecutive_pages_is_final():
    run = Council()
    _first, second = run.chain(2, epoch=1)
    assert final_epoch(run) == -1
    run.voted(run.page(second))
    assert final_epoch(run) == 2
    assert run.violations == []


@pytest.mark.parametrize(("epochs", "final"), [((1, 2, 4), -1), ((1, 3, 4), -1), ((1, 3, 4, 5), 4)])
def test_a_missing_epoch_makes_nothing_final(epochs, final):
    run, page = Council(), b""
    for epoch in epochs:
        page = run.voted(run.page(page, epoch))
    assert final_epoch(run) == final


def test_a_page_below_the_quorum_makes_nothing_final():
    run = Council()
    first = run.page(epoch=1)
    second = run.page(first)
    third = run.page(second)
    for page in (third, second):
        run.voted(page, *MEMBERS)
    run.voted(first, *MEMBERS[:2])
    assert final_epoch(run) == -1
    run.voted(first, MEMBERS[2])  # the last vote may be for the first page
    assert final_epoch(run) == 2


def test_votes_may_arrive_before_their_page():
    run = Council()
    pages = run.chain(2, epoch=1)
    third = run.page(pages[-1])
    other = Council()
    other.dishonest(*MEMBERS)  # their votes may arrive anywhere first
    for page in [*pages, third]:
        other.voted(page, *MEMBERS)
    assert final_epoch(other) == -1
    for page in (pages[1], third, pages[0]):
        other.stored(page, "relay")
    assert final_epoch(other) == 2


def test_two_final_chains_are_reported():
    run = Council()
    run.dishonest(*MEMBERS)
    run.chain(3, epoch=1)
    run.chain(2, epoch=4)
    assert run.violations == []
    run.chain(3, epoch=7)
    assert run.rules_broken == ["one-final-chain"]
    assert run.pages.conflicting == 1


def test_two_final_chains_after_a_common_page_are_reported():
    run = Council()
    run.dishonest(*MEMBERS)
    common = run.chain(3, epoch=1)
    run.chain(3, common[1], epoch=7)
    assert run.violations == []  # epoch 3 is not final
    run.chain(1, common[2])
    assert run.rules_broken == ["one-final-chain"]


# One vote and one page


@pytest.mark.parametrize("honest", [True, False])
def test_an_honest_member_votes_once_in_an_epoch(honest):
    run = Council()
    if not honest:
        run.dishonest("validator-0")
    page = run.page(epoch=1)
    run.stored(run.vote("validator-0", page), "validator-0")
    run.stored(run.vote("validator-0", page), "relay")
    run.stored(run.vote("validator-0", page, epoch=2), "validator-0")
    assert run.violations == []
    run.stored(run.vote("validator-0", page, page=bytes(32)), "validator-0")
    assert run.rules_broken == (["one-vote"] if honest else [])


def test_an_honest_member_votes_once_over_all_councils():
    run = Council()
    page = run.voted(run.page(epoch=1), "validator-0")
    run.stored(run.vote("validator-0", page, page=bytes(32), council=bytes(32)), "validator-0")
    assert run.rules_broken == ["one-vote"]


def test_an_honest_member_proposes_once_in_an_epoch():
    run = Council()
    run.page(epoch=1)
    run.page(epoch=1, reveals=[b"", b""])
    assert run.rules_broken == ["one-vote"]
    assert "a second page" in run.violations[0].what


# Valid pages


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"seed": bytes(32)}, "misstates its ancestors"),
        ({"final_epoch": 2}, "misstates its ancestors"),
        ({"author": "relay"}, "no proposer"),
        ({"reveals": [b""]}, "another number of reveals"),
        ({"reveals": [b""] * 3}, "another number of reveals"),
        ({"epoch": 1}, "not of a later epoch"),
        ({"removed": ["guest"]}, "removes a key that is none"),
        ({"joined": ["validator-0"]}, "adds a member"),
        ({"removed": MEMBERS}, "seats 0 members"),
    ],
)
def test_honest_members_vote_for_valid_pages_only(changes, flaw):
    run = Council()
    for kind in ("joined", "removed"):
        if kind in changes:
            changes = {**changes, kind: [run.key(name) for name in changes[kind]]}
    second = run.chain(2, epoch=2)[-1]
    run.dishonest(*MEMBERS)
    page = run.voted(run.page(second, **changes), "validator-0")
    assert run.violations == []
    run.honest("validator-1")
    run.voted(page, "validator-1")
    assert run.rules_broken == ["valid-pages"]
    assert flaw in run.violations[0].what


@pytest.mark.parametrize(("place", "broken"), [(1, []), (2, []), (3, ["valid-pages"])])
def test_the_first_three_of_a_ranking_may_propose(place, broken):
    run = Council()
    second = run.chain(2, epoch=2)[-1]
    before = run.states[run.digest(second)]
    number = (before.epoch + 1).to_bytes(8, "big")
    peer = run.ranked(b"prime-node/proposer" + before.beacon + number)[place]
    author = next(name for name, one in run.peers.items() if one == peer)
    run.dishonest(author)
    voter = next(name for name in MEMBERS if name != author)
    run.voted(run.page(second, author=author), voter)
    assert run.rules_broken == broken


# Councils


def seated(run, **changes):
    """Make a page that changes the council final; return it, and its closing page."""
    keys = {kind: [run.key(name) for name in names] for kind, names in changes.items()}
    pages = run.chain(1, epoch=1, voters=MEMBERS)
    seating = run.voted(run.page(pages[0], **keys), *MEMBERS)
    closing = run.chain(2, seating, voters=MEMBERS)
    return seating, closing[0]


def test_a_final_page_seats_the_next_council():
    run = Council()
    seating, _closing = seated(run, joined=["guest"], removed=["validator-0"])
    council = run.peers_of("guest", *MEMBERS[1:])
    page = run.page(seating, 5, council=council, seated=seating)
    run.voted(page, "guest", "validator-1")
    assert not run.pages.council(b"")
    assert run.pages.council(run.digest(page)) == tuple(council)
    run.voted(page, "validator-0")  # it has no seat any more
    run.chain(
        2, page, voters=["guest", "validator-2", "validator-3"], council=council, seated=seating
    )
    assert final_epoch(run) == 2  # the page of epoch 5 has two votes
    run.voted(page, "validator-3")
    assert final_epoch(run) == 6
    assert run.violations == []


def test_a_council_is_seated_by_a_final_page_only():
    run = Council()
    keys = [run.key("guest")]
    seating = run.chain(1, epoch=1, voters=MEMBERS, joined=keys)[0]
    run.chain(1, seating, voters=MEMBERS)
    page = run.page(seating, 5, council=run.peers_of("guest", *MEMBERS), seated=seating)
    run.voted(page, "guest")
    assert run.rules_broken == ["valid-pages"]
    assert "of an unknown council" in run.violations[0].what


def test_a_council_that_has_ended_changes_nothing_more():
    run = Council()
    _seating, closing = seated(run, joined=["guest"])
    page = run.page(closing, 9, removed=[run.key("validator-0")])
    run.voted(page, "validator-1")
    assert "its council has ended" in run.violations[0].what


def test_a_council_that_has_ended_draws_nothing():
    run = Council()
    commit = run.commit("relay")
    run.stored(commit, "relay")
    page = run.chain(1, epoch=1, reveals=[b"", b""], voters=MEMBERS, joined=[run.key("guest")])[0]
    closing = run.voted(run.page(page), *MEMBERS)
    run.stored(run.certificate(MEMBERS[:2], commit, page=closing), *MEMBERS[:2])
    assert "draws no committee" in run.violations[0].what


def test_a_page_after_the_end_of_its_council_has_no_reveals():
    run = Council()
    _, closing = seated(run, joined=["guest"])
    page = run.page(closing, 9, reveals=[bytes(80)] * 2)
    run.voted(page, "validator-1")
    assert "another number of reveals" in run.violations[0].what


def test_a_page_of_the_next_council_follows_the_seating_page_and_not_a_closing_one():
    run = Council()
    seating, closing = seated(run, joined=["guest"])
    page = run.page(closing, 9, council=run.peers_of("guest", *MEMBERS), seated=seating)
    run.voted(page, "validator-1")
    assert "of an unknown council" in run.violations[0].what


# Recovery


def recovery(run, epochs, **changes):
    """Return a page that removes two members, ``epochs`` after the last final one."""
    first = run.chain(3, epoch=1, voters=MEMBERS)[-1]
    changes = {kind: [run.key(name) for name in names] for kind, names in changes.items()}
    return run.page(first, 2 + epochs, **changes)


@pytest.mark.parametrize(
    ("epochs", "voters", "final"),
    [(RECOVERY_EPOCHS, 3, True), (RECOVERY_EPOCHS - 1, 3, False), (RECOVERY_EPOCHS, 2, False)],
)
def test_more_than_half_may_remove_silent_members_when_nothing_is_final(epochs, voters, final):
    roles = {f"validator-{number}": ("validator",) for number in range(5)}
    run = TraceExample({"trainer": ("trainer",), **roles}, recovery_epochs=RECOVERY_EPOCHS)
    run.up()
    first = run.chain(3, epoch=1)[-1]
    silent = [base58.b58decode(run.peers[name])[6:] for name in ("validator-3", "validator-4")]
    page = run.page(first, 2 + epochs, removed=silent)
    names = [f"validator-{number}" for number in range(voters)]
    run.voted(page, *names)
    run.chain(2, page, voters=names)
    assert (run.pages.newest_final_epoch > 2 + epochs) is False
    assert (run.pages.newest_final_epoch == 2 + epochs) is final


def test_a_recovery_adds_no_member():
    run = Council()
    page = recovery(run, RECOVERY_EPOCHS, joined=["guest"], removed=["validator-0"])
    run.voted(page, "validator-1")
    assert "a recovery adds members" in run.violations[0].what


# Pages go on


LIMIT_EPOCHS = RECOVERY_EPOCHS + MARGIN_EPOCHS


def waiting(*, gone=(), calm=True, epochs=LIMIT_EPOCHS + 2):
    """Let ``epochs`` pass after a final page while some members are gone; return the rules."""
    run = Council(patience=replace(PATIENCE, progress_epochs=1000))
    if calm:
        run.emit("world", "calm")
    run.chain(3, epoch=1, voters=MEMBERS)
    for name in gone:
        run.down(name)
    run.wait(epochs)
    return run.rules_broken


@pytest.mark.parametrize(
    ("epochs", "broken"), [(LIMIT_EPOCHS + 1, []), (LIMIT_EPOCHS + 2, ["final-pages"])]
)
def test_pages_become_final_within_the_time_of_a_recovery(epochs, broken):
    assert waiting(epochs=epochs) == broken


@pytest.mark.parametrize(("gone", "broken"), [(MEMBERS[:1], ["final-pages"]), (MEMBERS[:2], [])])
def test_more_than_half_of_the_council_makes_pages_final(gone, broken):
    assert waiting(gone=gone) == broken


def test_nothing_need_become_final_during_faults():
    assert waiting(calm=False) == []


def test_the_next_council_makes_pages_final():
    run = Council(patience=replace(PATIENCE, progress_epochs=1000))
    run.emit("world", "calm")
    seated(run, removed=MEMBERS[:3])
    for name in MEMBERS[:3]:
        run.down(name)
    run.wait(LIMIT_EPOCHS + 2)
    assert run.rules_broken == ["final-pages"]
