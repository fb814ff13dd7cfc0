import asyncio

import pytest

from node.replication.message_log import MessageLog
from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from roles.ports.storage import Delete, StorageFullError
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, fingerprint, run_manifest
from tests.worlds.page_book import PageBook

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
CHAIN = WORLD.chain(WORKER, 3)
EXPIRE = WORLD.manifest.committee.expire_after_epochs


class Store(MemoryStore):
    """Store that answers a moment later, and may be full."""

    def __init__(self):
        super().__init__()
        self.full = False
        self.commits = 0

    async def commit(self, changes):
        self.commits += 1
        await asyncio.sleep(1)
        if self.full:
            raise StorageFullError("full")
        await super().commit(changes)

    @property
    def envelopes(self):
        return list(self.tables.get("messages", {}).values())


def opened(store, *, at=1, pages_to=24):
    """Return the log and the replica of a node that has just started."""
    message_log, replica = MessageLog(store), WORLD.replica(roster_at=None, pages_to=pages_to)
    for chain in message_log.chains():
        replica.intake.offer_chain(chain)
    for envelope in message_log.replay():
        replica.restore(envelope)
    replica.advance(WORLD.at(at))
    return message_log, replica


def accept(message_log, replica, *messages, at=1):
    for signed in messages:
        replica.receive(signed.envelope, WORLD.at(at))
        message_log.later(signed.envelope)


async def test_a_restart_finds_the_replica_again():
    store = Store()
    message_log, replica = opened(store)
    WORLD.refresh(replica, 0)
    accept(message_log, replica, *CHAIN, WORLD.certificate(CHAIN[0]))
    assert store.envelopes == []
    await message_log.flush()
    assert len(store.envelopes) == 4
    _, again = opened(store)
    WORLD.refresh(again, 0)
    assert fingerprint(again)[1:] == fingerprint(replica)[1:]


async def test_what_we_announce_is_written_after_everything_before_it():
    store = Store()
    message_log, replica = opened(store)
    accept(message_log, replica, CHAIN[0])
    flushing = asyncio.create_task(message_log.flush())
    await asyncio.sleep(0.1)
    await message_log.keep(CHAIN[1].envelope)
    assert store.envelopes == [CHAIN[0].envelope, CHAIN[1].envelope]
    await flushing
    assert store.commits == 2


async def test_a_message_is_written_once():
    store = Store()
    message_log, _ = opened(store)
    for _ in range(2):
        message_log.later(CHAIN[0].envelope)
        message_log.later(CHAIN[0].envelope)
        await message_log.flush()
    assert store.envelopes == [CHAIN[0].envelope]
    assert store.commits == 1


async def test_what_does_not_fit_is_written_later_but_never_what_we_could_not_announce():
    """Its author makes another one; after a restart there would be two."""
    store = Store()
    message_log, replica = opened(store)
    accept(message_log, replica, CHAIN[0])
    store.full = True
    with pytest.raises(StorageFullError):
        await message_log.keep(CHAIN[1].envelope)
    with pytest.raises(StorageFullError):
        await message_log.flush()
    store.full = False
    await message_log.flush()
    assert store.envelopes == [CHAIN[0].envelope]
    await message_log.keep(CHAIN[1].envelope)
    assert store.envelopes[1:] == [CHAIN[1].envelope]


async def test_two_messages_kept_at_once_fail_together_and_leave_nothing():
    store = Store()
    message_log, _ = opened(store)
    store.full = True
    both = [asyncio.create_task(message_log.keep(item.envelope)) for item in CHAIN[:2]]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(result, StorageFullError) for result in results)
    store.full = False
    await message_log.flush()
    assert store.envelopes == []


async def test_a_cancelled_write_is_repeated():
    store = Store()
    message_log, _ = opened(store)
    keeping = asyncio.create_task(message_log.keep(CHAIN[0].envelope))
    await asyncio.sleep(0.5)
    keeping.cancel()
    await asyncio.wait([keeping])
    await message_log.flush()
    assert store.envelopes == [CHAIN[0].envelope]


async def test_what_was_refused_after_it_was_kept_is_forgotten():
    store = Store()
    message_log, _ = opened(store)
    await message_log.keep(CHAIN[0].envelope)
    await message_log.keep(CHAIN[1].envelope)
    await message_log.forget(CHAIN[0].envelope)
    await message_log.forget(CHAIN[2].envelope)
    assert store.envelopes == [CHAIN[1].envelope]


async def test_the_log_is_as_long_as_the_replica_is_large():
    store = Store()
    message_log, replica = opened(store)
    accept(message_log, replica, *CHAIN)
    await message_log.flush()
    message_log.later(WORLD.commit(OTHER).envelope)  # pending, and unknown to the replica
    await message_log.compact(replica)
    assert len(store.envelopes) == 3
    replica.advance(WORLD.at(4 * EXPIRE + 2))
    await message_log.compact(replica)
    assert store.envelopes == []


async def test_what_compaction_deletes_while_it_is_being_kept_is_written_again():
    """It is not in the replica yet, and its ``keep`` waits until the disk is free."""
    store = Store()
    message_log, replica = opened(store)

    async def flush_and_compact():
        await message_log.flush()
        await message_log.compact(replica)

    message_log.later(CHAIN[0].envelope)
    compacting = asyncio.create_task(flush_and_compact())
    await asyncio.sleep(2.5)  # the message and the pages are written
    await message_log.keep(CHAIN[0].envelope)
    assert store.envelopes == [CHAIN[0].envelope]
    await compacting
    assert store.envelopes == [CHAIN[0].envelope]


async def test_a_full_disk_delays_deletions():
    store = Store()
    message_log, replica = opened(store)
    message_log.later(WORLD.commit(OTHER, version=9).envelope)
    await message_log.flush()
    store.full = True
    await message_log.compact(replica)
    store.full = False
    assert len(store.envelopes) == 1
    await message_log.compact(replica)
    assert store.envelopes == []


async def test_keys_go_on_after_a_restart_and_nonsense_in_the_log_is_dropped():
    store = Store()
    message_log, _ = opened(store)
    await message_log.keep(CHAIN[0].envelope)
    table = store.tables["messages"]
    table[(5).to_bytes(8, "big")] = b"nonsense"
    table[(6).to_bytes(8, "big")] = bytes(1 << 20)
    message_log, replica = opened(store)
    await message_log.compact(replica)
    await message_log.keep(CHAIN[1].envelope)
    assert list(table) == [bytes(8), (7).to_bytes(8, "big")]
    await store.commit([Delete("messages", bytes(8))])


# Pages

LISTED = {epoch: digest(b"commit %d" % epoch) for epoch in range(1, 10)}
LISTS = {epoch: Contents(commits=(commit,)) for epoch, commit in LISTED.items()}
BOOK = PageBook(WORLD.manifest, WORLD.validators, LISTS)
VOTES = BOOK.votes
QUORUM = WORLD.replica(pages_to=0).pages.council.quorum


def accept_pages(message_log, replica, *epochs, votes=QUORUM):
    for epoch in epochs:
        messages = BOOK.page(epoch), *VOTES(epoch)[:votes]
        accept(message_log, replica, *messages, at=epoch)


async def test_notarised_pages_replace_the_votes_on_them():
    store = Store()
    message_log, replica = opened(store, pages_to=0)
    accept_pages(message_log, replica, 1, 2, 3, 4)
    accept_pages(message_log, replica, 5, votes=2)
    await message_log.flush()
    assert len(store.envelopes) == 4 * (1 + QUORUM) + 3
    _, replayed = opened(store, pages_to=0)
    await message_log.compact(replica)
    assert len(store.envelopes) == 3
    _, compacted = opened(store, pages_to=0)
    for again in (replayed, compacted):
        assert again.pages.root.digest == replica.pages.root.digest
        assert again.pages.tip().digest == replica.pages.tip().digest
        for epoch in (1, 2, 3):
            assert again.pages.drawing(LISTED[epoch]).digest == BOOK.page(epoch + 1).digest
        assert len(again.pages.get(BOOK.page(5).digest).votes) == 2


async def test_a_crash_between_the_pages_and_the_deletions_loses_nothing():
    store = Store()
    message_log, replica = opened(store, pages_to=0)
    accept_pages(message_log, replica, 1, 2, 3, 4)
    await message_log.flush()
    compacting = asyncio.create_task(message_log.compact(replica))
    await asyncio.sleep(1.5)
    compacting.cancel()
    assert len(store.tables["pages"]) > 0
    assert len(store.envelopes) == 4 * (1 + QUORUM)
    _, again = opened(store, pages_to=0)
    assert again.pages.tip().digest == replica.pages.tip().digest


async def test_a_page_notarised_during_compaction_survives_a_restart():
    store = Store()
    message_log, replica = opened(store, pages_to=0)
    accept_pages(message_log, replica, 1)
    accept_pages(message_log, replica, 2, votes=QUORUM - 1)
    await message_log.flush()
    compacting = asyncio.create_task(message_log.compact(replica))
    await asyncio.sleep(0.5)
    accept(message_log, replica, VOTES(2)[QUORUM - 1], at=2)
    await compacting
    await message_log.flush()
    assert replica.pages.tip().epoch == 2
    _, again = opened(store, pages_to=0)
    assert again.pages.tip().epoch == 2


async def test_a_vote_after_the_quorum_survives_a_restart():
    """Otherwise a member could vote again in its epoch."""
    store = Store()
    message_log, replica = opened(store, pages_to=0)
    accept_pages(message_log, replica, 1, votes=QUORUM + 1)
    await message_log.flush()
    await message_log.compact(replica)
    late = VOTES(1)[QUORUM]
    assert store.envelopes == [late.envelope]
    _, again = opened(store, pages_to=0)
    assert again.pages.last_vote(late.signer).digest == late.digest


async def test_a_full_disk_keeps_pages_and_votes_as_they_are():
    store = Store()
    message_log, replica = opened(store, pages_to=0)
    accept_pages(message_log, replica, 1, 2, 3)
    await message_log.flush()
    store.full = True
    await message_log.compact(replica)
    assert len(store.envelopes) == 3 * (1 + QUORUM)
    assert "pages" not in store.tables
