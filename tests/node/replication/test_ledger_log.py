"""Stored final pages and accounts: crashes between writes, full disks, and snapshots."""

from contextlib import suppress

import pytest

from node.replication.ledger_log import LedgerLog
from node.storage.ledger_history import START_KEY, STATE_KEY, LedgerHistory
from node.storage.state import ACCOUNTS_TABLE, LEDGER_TABLE
from protocol.core.codec import encode
from protocol.core.crypto import digest
from protocol.ledger.final_ledger import RECENT_STATES, FinalLedger
from protocol.replica.page_intake import credit_rules
from protocol.replica.replica import Replica
from roles.ports.storage import StorageFullError
from tests.worlds.disks import MemoryStore
from tests.worlds.ledgers import working_book
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import fast_output, fast_verify

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
BOOK = working_book(WORLD, 40)


class Store(MemoryStore):
    """Store that may be full, or whose machine loses power before its last commits."""

    full = False
    commits_left = 1000
    commits = 0

    async def commit(self, changes):
        if self.full:
            raise StorageFullError("full")
        self.commits_left -= 1
        if self.commits_left < 0:
            raise PowerError
        self.commits += 1
        await super().commit(changes)


class PowerError(Exception):
    """The machine has lost power."""


class Node:
    """A node that follows the pages of the book; its store outlives it."""

    def __init__(self, store):
        self.store = store
        self.replica = Replica(WORLD.manifest, fast_verify, fast_output)
        self.intake = self.replica.intake
        self.ledger = self.intake.ledger
        self.log = LedgerLog(store, self.intake.open_page)
        self.log.restore(self.ledger)

    def show(self, last, first=1):
        BOOK.show(self.replica, last, first=first)

    @property
    def epoch(self):
        return self.ledger.accounts.header.epoch

    @property
    def leaves(self):
        return self.ledger.accounts.leaves


def always_on(last) -> Node:
    node = Node(Store())
    node.show(last)
    assert node.epoch == last - 1
    return node


def epochs(pages) -> list[int]:
    return [one.page.message.epoch for one in pages]


async def test_a_restart_finds_the_accounts_again():
    node = always_on(20)
    await node.log.flush(node.ledger)
    again = Node(node.store)
    assert again.leaves == node.leaves
    assert not again.ledger.is_behind
    again.show(30)
    assert again.leaves == always_on(30).leaves
    assert again.ledger.root(28) == BOOK.roots[28]


async def test_each_page_is_written_once():
    node = always_on(20)
    await node.log.flush(node.ledger)
    commits = node.store.commits
    assert commits == 1
    await node.log.flush(node.ledger)
    assert node.store.commits == commits, "nothing new"
    rows = dict(node.store.tables[LEDGER_TABLE])
    node.show(22, first=21)
    await node.log.flush(node.ledger)
    new = node.store.tables[LEDGER_TABLE].keys() - rows.keys()
    assert new == {BOOK.page(epoch).digest for epoch in (20, 21)}


async def test_a_restart_after_the_accounts_were_stored_counts_the_pages_after_them():
    node = always_on(20)
    await node.log.keep_accounts(node.ledger)
    node.show(30, first=21)
    await node.log.flush(node.ledger)
    again = Node(node.store)
    assert again.leaves == node.leaves
    assert again.ledger.root(27) == BOOK.roots[27] == BOOK.page(29).message.ledger
    assert again.ledger.take_counted() == [], "they are stored"


async def test_the_stored_accounts_are_those_whose_root_the_newest_final_page_states():
    node = always_on(20)
    await node.log.keep_accounts(node.ledger)
    again = Node(node.store)
    assert again.ledger.oldest_state.epoch == 20 - RECENT_STATES
    assert again.ledger.root(BOOK.page(19).message.final_epoch) == BOOK.page(19).message.ledger


@pytest.mark.parametrize("commits", range(7))
async def test_a_crash_between_writes_loses_no_page_and_counts_none_twice(commits):
    """Each step is a day in the life of a node: pages, accounts, a snapshot, and pages again."""
    store = Store()
    store.commits_left = commits
    node = Node(store)
    reached = -1
    with suppress(PowerError):
        for last in (10, 20, 30):
            node.show(last, first=last - 9)
            await node.log.flush(node.ledger)
            reached = node.epoch
            await node.log.keep_accounts(node.ledger)
    store.commits_left = 1000
    again = Node(store)
    assert again.epoch == reached
    assert again.leaves == (always_on(reached + 1).leaves if reached >= 0 else Node(Store()).leaves)
    again.show(35)
    assert again.leaves == always_on(35).leaves
    await again.log.flush(again.ledger)
    stored = [*again.log.back_from(again.log.newest)]
    assert epochs(stored) == [*range(34, 0, -1)]


async def test_a_full_disk_delays_pages_and_loses_none():
    node = always_on(12)
    node.store.full = True
    for last in (14, 16):
        with pytest.raises(StorageFullError):
            await node.log.flush(node.ledger)
        node.show(last, first=last - 1)
    with pytest.raises(StorageFullError):
        await node.log.keep_accounts(node.ledger)
    assert not node.store.tables
    node.store.full = False
    await node.log.flush(node.ledger)
    assert Node(node.store).leaves == node.leaves


# Snapshots


def adopted(store, at=30, last=34) -> Node:
    """Return a node that adopts the accounts after a page, and follows the pages after it."""
    node = Node(store)
    statement = BOOK.page(at + 2).message
    assert statement.final_epoch == at
    assert node.ledger.adopt(always_on(at + 1).leaves, statement) is None
    node.show(last)
    assert node.epoch == last - 1
    return node


@pytest.mark.parametrize("has_crashed", [False, True])
async def test_an_adopted_snapshot_replaces_the_pages_before_it(has_crashed):
    """A crash before the write leaves what was there."""
    node = always_on(12)
    await node.log.keep_accounts(node.ledger)
    before = node.leaves
    late = adopted(node.store)
    if has_crashed:
        node.store.commits_left = 0
        with pytest.raises(PowerError):
            await late.log.flush(late.ledger)
        node.store.commits_left = 10
        assert Node(node.store).leaves == before
    await late.log.flush(late.ledger)
    stored = [*late.log.back_from(late.log.newest)]
    assert epochs(stored) == [33, 32, 31]
    assert len(node.store.tables[LEDGER_TABLE]) == 3
    again = Node(node.store)
    assert again.leaves == late.leaves == always_on(34).leaves
    start = FinalLedger(credit_rules(WORLD.manifest))
    start.restore(late.log.leaves(START_KEY))
    assert start.accounts.root == BOOK.roots[30], "where the stored pages begin"


async def test_a_snapshot_alone_survives_a_restart():
    """No page is counted after it yet: the old newest page must not lead to old pages."""
    store = Store()
    node = always_on(12)
    node.store, node.log = store, LedgerLog(store, node.intake.open_page)
    await node.log.flush(node.ledger)
    late = Node(store)
    assert late.ledger.adopt(always_on(31).leaves, BOOK.page(32).message) is None
    await late.log.flush(late.ledger)
    again = Node(store)
    assert (again.epoch, again.leaves) == (30, late.leaves)
    assert again.log.newest == b""
    assert again.log.leaves(STATE_KEY) == again.log.leaves(START_KEY) == tuple(late.leaves)


async def test_a_snapshot_on_a_full_disk_is_written_later_with_the_pages_after_it():
    node = always_on(12)
    await node.log.flush(node.ledger)
    late = adopted(node.store)
    node.store.full = True
    with pytest.raises(StorageFullError):
        await late.log.flush(late.ledger)
    node.store.full = False
    late.show(38)
    await late.log.flush(late.ledger)
    assert Node(node.store).leaves == late.leaves == always_on(38).leaves
    assert epochs(late.log.back_from(late.log.newest)) == [*range(37, 30, -1)]


# Damage


@pytest.mark.parametrize("row", [b"", b"\xc1", encode([b"no envelope", bytes(32), b""]), encode(1)])
async def test_a_damaged_page_ends_the_history(row):
    """The node then counts from the accounts, and pulls the rest."""
    node = always_on(20)
    await node.log.keep_accounts(node.ledger)
    node.show(26, first=21)
    await node.log.flush(node.ledger)
    node.store.tables[LEDGER_TABLE][BOOK.page(22).digest] = row
    history = LedgerHistory(node.store.get, node.intake.open_page)
    assert epochs(history.back_from(history.newest)) == [25, 24, 23]
    assert history.page(BOOK.page(22).digest) is None
    assert history.since(BOOK.page(15).digest) == []
    assert epochs(history.since(BOOK.page(23).digest)) == [24, 25]
    again = Node(node.store)
    assert again.leaves == always_on(20 - RECENT_STATES + 1).leaves


@pytest.mark.parametrize("state", [b"\xc1", encode([b"no leaf"]), encode([])])
async def test_damaged_accounts_are_counted_anew_from_all_pages(state):
    node = always_on(20)
    await node.log.keep_accounts(node.ledger)
    node.store.tables[ACCOUNTS_TABLE][STATE_KEY] = state
    assert Node(node.store).leaves == node.leaves


async def test_pages_of_another_store_are_not_found():
    history = LedgerHistory(Store().get, Node(Store()).intake.open_page)
    assert history.page(digest(b"page")) is None
    assert (history.newest, history.leaves(STATE_KEY)) == (b"", ())
    assert history.since(b"") == []
