"""Ledger of final pages: order, missing work, walks back, snapshots, and restarts."""

from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import Identity, digest
from protocol.core.faults import Blame, Fault, FaultCode
from protocol.core.types import Digest, RunId
from protocol.ledger import final_ledger
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.final_ledger import (
    HISTORY_EPOCHS_MAX,
    PAGES_AT_ONCE,
    RECENT_STATES,
    CountedPage,
    FinalLedger,
    Missing,
)
from protocol.ledger.receipts import PageWork, Receipt, Step
from protocol.messages import Page, Signed, seal

RUN = RunId(digest(b"run"))
PROPOSER, WORKER, CHECKER = (Identity(digest(name)) for name in (b"p", b"w", b"c"))
RULES = CreditRules(
    per_token=5,
    per_checked_token=2,
    per_learned_token=1,
    lock_epochs=9,
    slash=True,
    gap_max=5,
    era_epochs=16,
)
LENGTH = 40


def work_of(number: int) -> PageWork:
    """Return the work of a page: every third one has none, every fifth one a new version."""
    if number % 3 == 2:
        return PageWork()
    commit = digest(b"commit %d" % number)
    peers = WORKER.peer_id, (CHECKER.peer_id,)
    receipt = Receipt(commit, peers[0], 1, number, False, 10 + number, "accepted", peers[1])
    learned = ((WORKER.peer_id, 1, 10),)
    step = Step(number, digest(b"version %d" % number), CHECKER.peer_id, learned)
    return PageWork((receipt,), (step,) if number % 5 == 0 else ())


def epoch_of(number: int) -> int:
    """Return the epoch of a page: some epochs have none."""
    return number + number // 4


@dataclass(frozen=True)
class Final:
    """A final page, its beacon and its work, with all accounts after it."""

    page: Signed[Page]
    beacon: Digest
    work: PageWork
    leaves: tuple[bytes, ...]
    root: Digest

    @property
    def epoch(self) -> int:
        return self.page.message.epoch


def made_chain() -> list[Final]:
    """Return final pages that follow each other, counted by ``Accounts`` alone."""
    accounts, chain, head = Accounts(RULES), [], b""
    for number in range(LENGTH):
        work, beacon = work_of(number), digest(b"beacon %d" % number)
        head = work.steps[-1].manifest if work.steps else head
        page = seal(
            Page(
                epoch=epoch_of(number),
                council=b"",
                parent=chain[-1].page.digest if chain else b"",
                seed=chain[-1].beacon if chain else digest(b"seed"),
                final_epoch=chain[-1].epoch if chain else -1,
                reveals=(),
                head=head,
                work=work.digest,
                ledger=accounts.root,
            ),
            RUN,
            PROPOSER,
        )
        accounts.apply(page.digest, page.message.epoch, beacon, head, work)
        chain.append(Final(page, beacon, work, tuple(accounts.leaves), accounts.root))
    return chain


CHAIN = made_chain()
BY_DIGEST = {one.page.digest: one for one in CHAIN}
WORKS = {one.page.digest: one.work for one in CHAIN}
NEEDY = [number for number in range(LENGTH) if WORKS[CHAIN[number].page.digest].receipts]
"""Pages that name work."""


def knows_all(page: Page, _head: bytes) -> PageWork | None:
    return next(one.work for one in CHAIN if one.page.message == page)


def knows_none(_page: Page, _head: bytes) -> PageWork | None:
    return None


def knows(numbers):
    """Return a derivation of the work of some pages."""
    known = {CHAIN[number].page.message.epoch for number in numbers}
    return lambda page, head: knows_all(page, head) if page.epoch in known else None


def following(ledger, *numbers) -> FinalLedger:
    for number in numbers:
        ledger.follow(CHAIN[number].page, CHAIN[number].beacon)
    return ledger


def counted(last, derive=knows_all) -> FinalLedger:
    """Return a ledger that has followed the pages up to one, and counted what it can."""
    ledger = following(FinalLedger(RULES), *range(last + 1))
    ledger.count(derive)
    return ledger


def offered(ledger, number, work=None):
    one = CHAIN[number]
    return ledger.offer(one.page, one.work.encoded() if work is None else work)


def state(ledger) -> tuple:
    """Return everything that a ledger tells."""
    epochs = range(-1, epoch_of(LENGTH))
    accounts = ledger.accounts
    roots = {epoch: ledger.root(epoch) for epoch in epochs if ledger.root(epoch) is not None}
    return accounts.leaves, accounts.header, ledger.missing, ledger.newest_epoch, roots


def is_at(ledger, number) -> bool:
    """Return whether a ledger has counted exactly the pages up to one."""
    expected = [*CHAIN[number].leaves] if number >= 0 else Accounts(RULES).leaves
    return ledger.accounts.leaves == expected


# Order


def test_pages_are_counted_in_their_order_with_what_each_of_them_names():
    ledger, heads = FinalLedger(RULES), []

    def derive(page, head):
        heads.append(head)
        return knows_all(page, head)

    for number in range(LENGTH):
        following(ledger, number)
        ledger.count(derive)
        assert is_at(ledger, number)
        assert ledger.root(CHAIN[number].epoch) == CHAIN[number].root
        assert (ledger.is_behind, ledger.missing) == (False, None)
    before = [CHAIN[number - 1].page.message.head if number else b"" for number in NEEDY]
    assert heads == before, "the final version before; pages without work are not derived"
    taken = [CountedPage(one.page, one.beacon, one.work.encoded()) for one in CHAIN]
    assert ledger.take_counted() == taken
    assert ledger.take_counted() == []


def test_a_page_that_was_followed_before_is_passed_over():
    ledger = counted(6)
    following(ledger, 3, 6)
    assert not ledger.is_behind
    following(ledger, 7, 7, 5)
    ledger.count(knows_all)
    assert is_at(ledger, 7)


def test_the_states_of_recent_pages_are_kept():
    ledger = FinalLedger(RULES)
    assert ledger.root(-1) == Accounts(RULES).root
    ledger = counted(LENGTH - 1)
    recent = CHAIN[-RECENT_STATES:]
    assert [ledger.state(one.epoch).leaves for one in recent] == [[*one.leaves] for one in recent]
    assert ledger.oldest_state is ledger.state(recent[0].epoch)
    assert ledger.root(CHAIN[-RECENT_STATES - 1].epoch) is None
    assert ledger.root(-1) is None
    assert ledger.state(CHAIN[-1].epoch + 1) is None


# Missing work


@pytest.mark.parametrize("unknown", [0, 4, NEEDY[-1]])
def test_a_page_without_its_work_makes_those_after_it_wait(unknown):
    assert unknown in NEEDY
    known = set(range(LENGTH)) - {unknown}
    ledger = counted(LENGTH - 1, knows(known))
    assert is_at(ledger, unknown - 1)
    assert ledger.is_behind
    assert not ledger.has_gap
    assert ledger.newest_epoch == CHAIN[-1].epoch
    assert ledger.missing.page in BY_DIGEST
    assert offered(ledger, unknown) is True
    ledger.count(knows(known))
    assert is_at(ledger, LENGTH - 1)
    assert (ledger.is_behind, ledger.missing) == (False, None)


def test_work_that_the_page_does_not_name_is_not_counted():
    """This node may hold verdicts that the members did not hold."""
    ledger = counted(5, lambda page, head: work_of(0) if page.epoch else knows_all(page, head))
    assert is_at(ledger, 0)


def test_missing_pages_are_requested_back_from_the_newest_with_unknown_work():
    ledger = counted(9, knows([0, 1]))
    assert is_at(ledger, 2), "page 2 has no work"
    assert ledger.missing == Missing(CHAIN[9].page.digest, 7)
    assert offered(ledger, 9) is True
    assert ledger.missing == Missing(CHAIN[8].page.digest, 6)
    assert offered(ledger, 6) is True
    assert ledger.missing == Missing(CHAIN[8].page.digest, 6), "one request for all of them"
    with patch.object(final_ledger, "PAGES_AT_ONCE", 3):
        assert ledger.missing == Missing(CHAIN[5].page.digest, 3)


def test_a_request_does_not_reach_over_pages_that_are_missing():
    """A walk back from the last page would never come to the first one."""
    ledger = following(FinalLedger(RULES), 0, 1, 20, 21)
    ledger.count(knows_none)
    assert ledger.missing == Missing(CHAIN[1].page.digest, 2)
    assert offered(ledger, 1) is offered(ledger, 0) is True
    assert ledger.missing == Missing(CHAIN[21].page.digest, 2)
    ledger.count(knows_none)
    assert ledger.missing == Missing(CHAIN[19].page.digest, PAGES_AT_ONCE)


# Offers


OTHERS = {"another": work_of(1).encoded(), "none": b"", "nonsense": b"\x80"}


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "another"), (0, "none"), (0, "nonsense"), (2, "another"), (2, "nonsense"), (5, "another")],
)
def test_other_work_is_a_fault_of_its_sender(number, name):
    ledger, work = counted(7, knows_none), OTHERS[name]
    before = state(ledger)
    found = offered(ledger, number, work)
    assert (found.code, found.code.blame) == (FaultCode.WRONG_WORK, Blame.SENDER)
    assert state(ledger) == before


def test_work_that_a_page_names_and_nobody_can_read_is_a_fault():
    """A council of colluding members can state the digest of anything."""
    page = CHAIN[0].page.message.model_copy(update={"work": digest(b"nonsense")})
    signed, ledger = seal(page, RUN, PROPOSER), FinalLedger(RULES)
    ledger.follow(signed, CHAIN[0].beacon)
    assert isinstance(ledger.offer(signed, b"nonsense"), Fault)
    ledger.count(knows_none)
    assert is_at(ledger, -1)


def test_an_offer_is_news_once_and_only_of_what_is_missing():
    ledger = counted(7, knows([0, 1]))
    assert is_at(ledger, 2)
    assert offered(ledger, 1) is False, "counted"
    assert offered(ledger, 8) is False, "not final here"
    assert offered(ledger, 4) is True
    assert offered(ledger, 4) is False, "twice"
    assert is_at(ledger, 2), "page 3 is missing"
    assert offered(ledger, 3) is True
    ledger.count(knows_none)
    assert is_at(ledger, 5)


# Walks back


def test_a_walk_back_goes_by_the_digests_of_the_parents():
    ledger = counted(3)
    following(ledger, 20, 21)
    ledger.count(knows_all)
    assert is_at(ledger, 3)
    assert ledger.has_gap
    for number in range(19, 3, -1):
        assert ledger.missing == Missing(CHAIN[number].page.digest, PAGES_AT_ONCE)
        assert offered(ledger, number - 1) is False, "not its parent"
        assert offered(ledger, number) is True
        ledger.count(knows_all)
        assert ledger.has_gap is (number > 4)
    assert is_at(ledger, 21)
    beacons = ledger.accounts.header.beacons
    assert beacons == counted(21).accounts.header.beacons, "those of pages walked back are seeds"


def serve(ledger, derive, lost=()) -> int:
    """Serve what a ledger misses until it needs nothing more; return the number of requests.

    Some responses of ``lost`` end early, as if the connection did.
    """
    requests = 0
    ledger.count(derive)
    while (missing := ledger.missing) is not None:
        cut = requests in lost
        page, requests = missing.page, requests + 1
        assert 0 < missing.pages <= final_ledger.PAGES_AT_ONCE
        for _ in range(1 if cut else missing.pages):
            found = BY_DIGEST.get(page)
            if found is None:
                break
            assert isinstance(ledger.offer(found.page, found.work.encoded()), bool)
            page = found.page.message.parent
        ledger.count(derive)
        assert requests <= 2 * LENGTH, "it does not end"
    return requests


@given(
    known=st.sets(st.integers(0, LENGTH - 1)),
    before=st.integers(-1, LENGTH - 1),
    jumps=st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH),
    lost=st.sets(st.integers(0, 20)),
    at_once=st.sampled_from([1, 3, 64]),
)
def test_a_node_that_missed_anything_catches_up(known, before, jumps, lost, at_once):
    """It followed pages up to one, missed some of the later ones, and lacks the work of some."""
    ledger, derive = following(FinalLedger(RULES), *range(before + 1)), knows(known)
    ledger.count(derive)
    following(ledger, *(n for n in range(before + 1, LENGTH - 1) if jumps[n]), LENGTH - 1)
    with patch.object(final_ledger, "PAGES_AT_ONCE", at_once):
        requests = serve(ledger, derive, lost)
    assert is_at(ledger, LENGTH - 1)
    assert not ledger.is_behind
    if known >= {*NEEDY} and all(jumps[before + 1 :]):
        assert requests == 0
    taken = [one.page.digest for one in ledger.take_counted()]
    assert taken == [one.page.digest for one in CHAIN]


# Snapshots


def adopting(ledger, number, /, **fields):
    """Let a ledger adopt the accounts after a page, as the page after the next one states them."""
    stated = {"ledger": CHAIN[number].root, "final_epoch": CHAIN[number].epoch}
    page = CHAIN[-1].page.message.model_copy(update=stated | fields)
    return ledger.adopt(CHAIN[number].leaves, page)


def test_a_snapshot_replaces_the_pages_before_it():
    ledger = following(FinalLedger(RULES), *range(25, 31))
    assert ledger.has_gap
    assert adopting(ledger, 27) is None
    assert is_at(ledger, 27)
    assert not ledger.has_gap
    adopted = ledger.take_adopted()
    assert (adopted.epoch, adopted.root) == (CHAIN[27].epoch, CHAIN[27].root)
    assert tuple(adopted.leaves) == CHAIN[27].leaves
    assert ledger.take_adopted() is None
    ledger.count(knows_all)
    assert is_at(ledger, 30)
    assert [one.page for one in ledger.take_counted()] == [one.page for one in CHAIN[28:31]]
    assert ledger.root(CHAIN[26].epoch) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"ledger": CHAIN[26].root},
        {"ledger": b""},
        {"ledger": bytes(32)},
        {"final_epoch": CHAIN[26].epoch},
        {"final_epoch": CHAIN[27].epoch + 1},
        {"final_epoch": -1},
    ],
)
def test_a_snapshot_has_the_root_and_the_epoch_that_the_final_page_states(fields):
    ledger = following(counted(3), *range(25, 31))
    before = state(ledger)
    found = adopting(ledger, 27, **fields)
    assert (found.code, found.code.blame) == (FaultCode.WRONG_WORK, Blame.SENDER)
    assert (state(ledger), ledger.take_adopted()) == (before, None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda leaves: [],
        lambda leaves: leaves[:-1],
        lambda leaves: leaves[::-1],
        lambda leaves: [*leaves, leaves[-1]],
        lambda leaves: [leaves[0], leaves[1][:-1], *leaves[2:]],
    ],
)
def test_leaves_that_no_page_leads_to_are_a_fault(spoil):
    ledger = following(FinalLedger(RULES), 30)
    before = state(ledger)
    leaves, page = spoil([*CHAIN[27].leaves]), CHAIN[28].page.message
    assert isinstance(ledger.adopt(leaves, page), Fault)
    assert (state(ledger), ledger.take_adopted()) == (before, None)


@pytest.mark.parametrize("number", [10, 20])
def test_a_snapshot_does_not_take_back_what_is_counted_meanwhile(number):
    ledger = counted(20)
    ledger.take_counted()
    before = state(ledger)
    assert adopting(ledger, number) is None
    assert (state(ledger), ledger.take_adopted()) == (before, None)


def test_pages_that_were_counted_before_a_snapshot_are_not_stored_after_it():
    """The stored pages would begin with them, and have a gap."""
    ledger = counted(5)
    following(ledger, 30)
    assert adopting(ledger, 27) is None
    assert ledger.take_counted() == []


@pytest.mark.parametrize(("epochs", "is_far"), [(0, False), (1, True)])
def test_a_snapshot_is_due_after_a_day(epochs, is_far):
    ledger, last = counted(3), CHAIN[3].epoch
    page = CHAIN[20].page.message.model_copy(update={"epoch": last + HISTORY_EPOCHS_MAX + epochs})
    assert not ledger.is_far_behind
    ledger.follow(seal(page, RUN, PROPOSER), CHAIN[20].beacon)
    assert ledger.is_far_behind is is_far


# Bounds


def test_only_so_many_pages_wait():
    with patch.object(final_ledger, "WAITING_MAX", 4):
        ledger = FinalLedger(RULES)
        for number in range(1, 12):
            following(ledger, number)
            ledger.count(knows_none)
            assert len(ledger.tables[0]) <= 4
        assert ledger.missing == Missing(CHAIN[7].page.digest, PAGES_AT_ONCE), "8 to 11 wait"
        assert offered(ledger, 7) is False, "no room: a snapshot closes the gap"
        assert adopting(ledger, 9) is None
        ledger.count(knows_all)
        assert is_at(ledger, 11)


# Restart


@given(
    stored=st.integers(-1, LENGTH - 1),
    last=st.integers(-1, LENGTH - 1),
    waits=st.integers(0, 3),
)
def test_a_restarted_node_continues_as_if_it_had_not_stopped(stored, last, waits):
    """It stored the accounts after one page, and all pages up to a later one."""
    stored = min(stored, last)
    always = counted(last)
    history = always.take_counted()
    again = FinalLedger(RULES)
    if stored >= 0:
        again.restore(CHAIN[stored].leaves)
    with patch.object(final_ledger, "WAITING_MAX", 4):
        again.replay(history[stored + 1 :])
    assert is_at(again, last)
    assert again.take_counted() == [], "they are stored"
    recent = range(max(stored, last - RECENT_STATES + 1, 0), last + 1)
    assert all(again.root(CHAIN[n].epoch) == always.root(CHAIN[n].epoch) for n in recent)
    for ledger in (always, again):
        following(ledger, *range(last + 1, LENGTH - waits))
        ledger.count(knows_all)
    assert always.accounts.leaves == again.accounts.leaves
    assert always.take_counted() == again.take_counted()


@pytest.mark.parametrize("leaves", [(), (b"nonsense",), CHAIN[5].leaves[:-1]])
def test_accounts_that_cannot_be_read_are_left_out(leaves):
    ledger = FinalLedger(RULES)
    ledger.restore(leaves)
    assert is_at(ledger, -1)
    following(ledger, 6, 7)
    assert ledger.has_gap


def test_a_history_that_does_not_reach_the_accounts_leaves_a_gap():
    history = counted(9).take_counted()
    ledger = FinalLedger(RULES)
    ledger.restore(CHAIN[3].leaves)
    ledger.replay(history[6:])
    assert is_at(ledger, 3)
    assert ledger.missing == Missing(CHAIN[5].page.digest, PAGES_AT_ONCE)
    serve(ledger, knows_none)
    assert is_at(ledger, 9)
