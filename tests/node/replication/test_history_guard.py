import asyncio

import pytest

from node.context import NodeContext, Ports
from node.replication.history_guard import PATIENCE_EPOCHS, HistoryGuard
from protocol.consensus.member import Contents
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.rng import Rng
from protocol.replica.replica import Replica
from roles.ports.storage import StorageFullError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
LEAVES = public_key_from_peer_id(WORLD.validators[0].peer_id)
TRUE = PageBook(WORLD.manifest, WORLD.validators, {5: Contents(removed=(LEAVES,))})
FORGED = PageBook(WORLD.manifest, WORLD.validators)
PAGE = TrustedPage(5, TRUE.page(5).digest)
EPOCH_SECONDS = WORLD.manifest.epochs.seconds


class Guarded:
    """A node that knows the pages of a book."""

    def __init__(self, book=TRUE, last=0, given=None, store=None):
        self.replica = Replica(WORLD.manifest, fast_verify, fast_output)
        book.show(self.replica, last)
        self.others, self.changes = {}, ChangeSignal()
        ports = Ports(None, Rng(b"2"), None, None, None, store or MemoryStore(), None, None)
        context = NodeContext(
            identity("own"), self.replica, ports, None, self.changes, Conditions()
        )
        self.guard = HistoryGuard(context, self.others, given)

    async def reason(self, epochs):
        """Return why it stops within so many epochs, or None."""
        try:
            return await asyncio.wait_for(self.guard.wait_refused(), epochs * EPOCH_SECONDS)
        except TimeoutError:
            return None


async def test_without_a_page_every_history_is_taken():
    node = Guarded(FORGED, 24)
    assert await node.guard.begin() == ""
    assert node.guard.page is node.replica.intake.awaited is None
    assert await node.reason(100) is None


async def test_the_page_is_awaited_and_stored_for_later_starts():
    store = MemoryStore()
    assert await Guarded(given=PAGE, store=store).guard.begin() == ""
    again = Guarded(store=store)
    assert await again.guard.begin() == ""
    assert again.guard.page == again.replica.intake.awaited == PAGE


@pytest.mark.parametrize("book", [TRUE, FORGED])
async def test_a_node_that_is_behind_still_awaits_the_page(book):
    node = Guarded(book, 4, given=PAGE)
    assert await node.guard.begin() == ""
    assert node.replica.intake.awaited == PAGE


async def test_a_history_with_the_page_needs_no_check():
    node = Guarded(TRUE, 12, given=PAGE)
    assert await node.guard.begin() == ""
    assert node.replica.intake.awaited is None


async def test_a_data_dir_with_another_history_is_refused_and_the_page_is_not_stored():
    store = MemoryStore()
    reason = await Guarded(FORGED, 12, given=PAGE, store=store).guard.begin()
    assert reason.startswith(f"this data dir holds another history than that of page {PAGE}")
    assert Guarded(FORGED, 12, store=store).guard.page is None


async def test_a_full_disk_does_not_prevent_the_check():
    class Full(MemoryStore):
        async def commit(self, changes):
            raise StorageFullError

    node = Guarded(given=PAGE, store=Full())
    assert await node.guard.begin() == ""
    assert node.replica.intake.awaited == PAGE


async def test_a_node_stops_if_only_peers_with_another_history_answer():
    node = Guarded(given=PAGE)
    await node.guard.begin()
    node.others[identity("liar").peer_id] = 0.0
    assert await node.reason(PATIENCE_EPOCHS - 1) is None
    reason = await node.reason(PATIENCE_EPOCHS + 2)
    assert reason.startswith("1 peers show another history than that of page 5:")
    assert node.guard.conflict is None


async def test_a_node_that_found_the_page_does_not_stop():
    node = Guarded(given=PAGE)
    await node.guard.begin()
    node.others[identity("liar").peer_id] = 0.0
    node.replica.intake.awaited = None
    assert await node.reason(PATIENCE_EPOCHS + 20) is None


async def test_two_final_histories_stop_a_node_at_once():
    node = Guarded(TRUE, 12)
    FORGED.show(node.replica, 12)
    reason = await node.reason(1)
    assert reason.startswith("two histories of this run are final, up to epochs ")
    assert node.guard.conflict is node.replica.pages.watch.conflict is not None


@pytest.mark.parametrize(
    "text",
    ["", "5", "5:", "-1:" + "ab" * 32, "05:" + "ab" * 32, "5:" + "ab" * 31, "5:" + "zz" * 32],
)
def test_what_is_no_page_is_refused(text):
    with pytest.raises(ValueError, match="is not a page, which is EPOCH:DIGEST"):
        TrustedPage.parse(text)


def test_a_page_has_one_text():
    page = TrustedPage(12, digest(b"page"))
    assert TrustedPage.parse(str(page)) == page
    assert TrustedPage.parse(f" {str(page).upper()}\n") == page
