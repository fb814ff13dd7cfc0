"""Work of final pages and snapshots of the accounts, pulled from another node."""

import asyncio
from unittest.mock import patch

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import KeyGuard
from node.network.connections.manager import ConnectionManager
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import LEDGER
from node.replication import ledger_sync
from node.replication.anti_entropy import AntiEntropy
from node.replication.inbox import MessageIntake
from node.replication.ledger_sync import EXCHANGE_SECONDS, PARTS_MAX, LedgerSync
from node.replication.message_log import MessageLog
from protocol.core.codec import decode, encode
from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.ledger import final_ledger
from protocol.ledger.final_ledger import PAGES_AT_ONCE
from protocol.replica.replica import Replica
from roles.ports.transport import TransportError, Trust
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.ledgers import working_book
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import Hub, LoopClock
from tests.worlds.page_book import fast_output, fast_verify

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
BOOK = working_book(WORLD, 40)
OUR_KEY, THEIR_KEY = identity("ours"), identity("theirs")
OURS, THEIRS = OUR_KEY.peer_id, THEIR_KEY.peer_id
PROTOCOL = LEDGER.on(WORLD.run_id)
LAST = 30
"""Epoch of the newest page that both nodes have; the page before it is final."""


class Clock:
    def now(self):
        return WORLD.at(LAST)


class Node:
    def __init__(self, hub, signer, made=LedgerSync):
        self.transport = hub.transport(signer.peer_id)
        self.replica = Replica(WORLD.manifest, fast_verify, fast_output)
        self.ledger = self.replica.intake.ledger
        self.blamed, self.requests = [], 0
        self.peers = ConnectionManager(
            self.transport, LoopClock(), Rng(b"1"), [], roster=self.replica.roster
        )
        self.peers.blame = lambda peer, fault: self.blamed.append((peer, str(fault.code)))
        store = MemoryStore()
        ports = Ports(Clock(), Rng(b"2"), self.transport, None, None, store, None, None)
        context = NodeContext(
            signer, self.replica, ports, self.peers, ChangeSignal(), Conditions(), trust=Trust()
        )
        inbox = MessageIntake(context, MessageLog(store), KeyGuard(context), (), ChangeSignal())
        self.history = inbox.history
        self.sync = made(context, inbox, UploadScheduler(None))

    async def serves(self, last=LAST, first=0):
        """Count the pages up to an epoch, and keep those from an epoch on."""
        if first:
            assert self.ledger.adopt(*snapshot(first - 1)) is None
        BOOK.show(self.replica, last)
        await self.history.flush(self.ledger)

    def lacks(self, first, last=LAST, *, has_pages=True):
        """Count the pages before an epoch, and receive later ones without their work."""
        BOOK.show(self.replica, first)
        if has_pages:
            BOOK.show(self.replica, last, with_work=False)
        else:
            self.replica.pages.offer_chain(BOOK.chain(last - 2, last))
        self.replica.count_final()
        assert self.replica.behind
        assert self.ledger.has_gap is not has_pages

    @property
    def state(self):
        header = self.ledger.accounts.header
        return header, self.ledger.accounts.root, self.ledger.missing, self.ledger.newest_epoch


def snapshot(epoch):
    """Return the leaves after the final page of an epoch, and a page that states their root."""
    always = Replica(WORLD.manifest, fast_verify, fast_output)
    BOOK.show(always, epoch + 1)
    return always.intake.accounts.leaves, BOOK.page(epoch + 2).message


class Pair:
    def __init__(self, made=LedgerSync):
        self.hub = Hub()
        self.ours, self.theirs = (Node(self.hub, key, made) for key in (OUR_KEY, THEIR_KEY))
        self.hub.connect(OURS, THEIRS)
        self.requests = []
        """Requests of our node."""

    async def pull(self, handler=None):
        """Pull from their node, or from a faulty handler in its place; False if that failed."""
        await self.theirs.sync.start()
        if handler is not None:
            await self.theirs.transport.handle(PROTOCOL, handler)
        await self.ours.peers.reach()

        async def noted(stream, data):
            self.requests.append(decode(data, bytes_max=96))
            await write_frame(stream, data)

        with patch.object(ledger_sync, "write_frame", noted):
            try:
                await self.ours.sync.pull(THEIRS)
            except TransportError:
                return False
        return True

    async def offer(self, data):
        """Send a request; return the stream."""
        await self.theirs.sync.start()
        stream = await self.ours.transport.open_stream(THEIRS, PROTOCOL)
        await write_frame(stream, data)
        return stream

    async def answers(self, **request):
        """Send a request; return the frames of the response."""
        stream = await self.offer(encode({"count": 0, "epoch": 0, "page": b"", **request}))
        head = decode(await read_frame(stream, 100), bytes_max=100)
        frames = [await read_frame(stream, 1 << 20) for _ in range(head["frames"])]
        assert await stream.read(1) == b""
        return [decode(one, bytes_max=1 << 20) for one in frames]

    def has_all(self, last=LAST):
        """Return whether our node has the accounts of one that was always on."""
        node = self.ours
        root = node.ledger.accounts.root == BOOK.roots[last - 1]
        return root and not node.replica.behind and self.ours.blamed == self.theirs.blamed == []


# Walks back


@pytest.mark.parametrize(("first", "has_pages"), [(3, True), (12, True), (12, False), (1, False)])
async def test_a_node_that_lacks_work_walks_back_to_the_page_that_it_has_counted(first, has_pages):
    pair = Pair()
    await pair.theirs.serves()
    pair.ours.lacks(first, has_pages=has_pages)
    assert await pair.pull()
    assert pair.has_all()
    assert all(one["page"] for one in pair.requests)
    assert pair.ours.ledger.take_adopted() is None
    assert len(pair.requests) == (1 if has_pages else 2), "the gap, then the pages after it"


async def test_each_synchronisation_with_a_peer_includes_the_ledger():
    pair = Pair(AntiEntropy)
    await pair.theirs.serves()
    pair.ours.lacks(5, has_pages=False)
    await pair.theirs.sync.start()
    await pair.ours.peers.reach()
    await pair.ours.sync.pull(THEIRS)
    assert pair.has_all()


@pytest.mark.parametrize("at_once", [1, 4, 9])
async def test_a_long_walk_takes_several_requests(at_once):
    pair = Pair()
    await pair.theirs.serves()
    pair.ours.lacks(5, has_pages=False)
    with patch.object(final_ledger, "PAGES_AT_ONCE", at_once):
        assert await pair.pull()
    assert pair.has_all()
    assert len(pair.requests) > 20 // at_once
    assert max(one["count"] for one in pair.requests) <= at_once


async def test_a_node_that_lacks_nothing_sends_no_request():
    pair = Pair()
    await pair.theirs.serves()
    BOOK.show(pair.ours.replica, LAST)
    assert await pair.pull()
    assert pair.requests == []


async def test_a_peer_that_lacks_the_pages_too_is_not_blamed():
    pair = Pair()
    await pair.theirs.serves(10)
    pair.ours.lacks(15)
    before = pair.ours.state
    assert await pair.pull()
    assert pair.ours.state == before
    assert pair.ours.blamed == pair.theirs.blamed == []
    assert len(pair.requests) == 1


async def test_two_peers_that_have_some_pages_each_are_enough():
    pair = Pair()
    await pair.theirs.serves(20)
    third = Node(pair.hub, identity("third"))
    await third.serves(LAST, first=18)
    pair.ours.lacks(5)
    pair.hub.connect(OURS, identity("third").peer_id)
    await third.sync.start()
    assert await pair.pull()
    assert pair.ours.ledger.accounts.header.epoch < 20
    await pair.ours.peers.reach()
    await pair.ours.sync.pull(identity("third").peer_id)
    await pair.pull()
    assert pair.has_all()


# Snapshots


async def test_a_node_that_is_far_behind_adopts_a_snapshot():
    pair = Pair()
    await pair.theirs.serves()
    pair.ours.lacks(5, has_pages=False)
    with patch.object(final_ledger, "HISTORY_EPOCHS_MAX", 20):
        assert await pair.pull()
    assert pair.has_all()
    statement = BOOK.page(LAST - 1).message
    assert [one["epoch"] for one in pair.requests if not one["page"]] == [statement.final_epoch]
    assert pair.ours.ledger.take_adopted().epoch == statement.final_epoch
    assert not pair.requests[0]["page"], "no walk back before it"


@pytest.mark.parametrize("kept", [15, 25])
async def test_a_peer_that_has_not_kept_the_pages_sends_a_snapshot(kept):
    pair = Pair()
    await pair.theirs.serves(first=kept)
    pair.ours.lacks(5, has_pages=False)
    assert await pair.pull()
    assert pair.has_all()
    assert pair.ours.ledger.take_adopted() is not None


@pytest.mark.parametrize("part_bytes", [1, 200, 400])
async def test_a_large_snapshot_comes_in_parts(part_bytes):
    pair = Pair()
    await pair.theirs.serves()
    pair.ours.lacks(5, has_pages=False)
    epoch = BOOK.page(LAST - 1).message.final_epoch
    with patch.object(ledger_sync, "PART_BYTES", part_bytes):
        parts = await pair.answers(epoch=epoch)
    assert len(parts) > 1
    leaves = [leaf for part in parts for leaf in part]
    assert leaves == pair.theirs.ledger.state(epoch).leaves
    for part in parts[:-1]:
        assert sum(map(len, part)) >= part_bytes > sum(map(len, part[:-1]))
    assert all(parts)


async def test_a_node_without_a_gap_adopts_nothing():
    """It can count each page once it has its work, and keeps all that it has stored."""
    pair = Pair()
    await pair.theirs.serves(first=25)
    pair.ours.lacks(5)
    assert await pair.pull()
    assert pair.ours.ledger.take_adopted() is None
    assert not [one for one in pair.requests if not one["page"]]


async def test_a_snapshot_that_the_peer_does_not_have_is_no_fault():
    pair = Pair()
    await pair.theirs.serves(12)
    pair.ours.lacks(5, has_pages=False)
    before = pair.ours.state
    assert await pair.pull()
    assert (pair.ours.state, pair.ours.blamed) == (before, [])
    assert len(pair.requests) == 2


# Answers of hostile peers


def head(frames):
    return encode({"frames": frames})


def answer(*frames, count=None):
    """Return a handler that answers every request with some frames."""

    async def handler(stream):
        await read_frame(stream, 1 << 10)
        await write_frame(stream, head(len(frames) if count is None else count))
        for frame in frames:
            await write_frame(stream, frame)
        await asyncio.sleep(3600)

    return handler


def raw(data):
    async def handler(stream):
        await read_frame(stream, 1 << 10)
        await write_frame(stream, data)
        await asyncio.sleep(3600)

    return handler


async def _silent(_stream):
    await asyncio.sleep(3600)


async def _huge(stream):
    await read_frame(stream, 1 << 10)
    await write_frame(stream, head(1))
    await stream.write((LEDGER.acceptor_bytes_max + 1).to_bytes(4, "big"))
    await asyncio.sleep(3600)


def work_of(epoch):
    return BOOK.works[BOOK.page(epoch).message.work].encoded()


def page_frame(epoch, work=None):
    """Return a page with its work as a node sends it."""
    return encode([BOOK.page(epoch).envelope, work_of(epoch) if work is None else work])


def forged(epoch):
    envelope = bytearray(BOOK.page(epoch).envelope)
    at = envelope.index(b"signature") + 20
    envelope[at] ^= 1
    return encode([bytes(envelope), b""])


ANYTHING = [
    (_silent, None),
    (answer(count=1), None),
    (raw(b"\xc1"), "undecodable"),
    (raw(encode([1])), "bad-fields"),
    (raw(encode({})), "bad-fields"),
    (raw(head(-1)), "bad-fields"),
    (raw(head(True)), "bad-fields"),
    (raw(head("1")), "bad-fields"),
    (raw(head(2**40)), "bad-fields"),
    (raw(bytes(ledger_sync.REQUEST_BYTES_MAX + 1)), "oversize"),
    (_huge, "oversize"),
    (answer(b"\xc1"), "undecodable"),
    (answer(encode({"page": b""})), "bad-fields"),
    (answer(encode(7)), "bad-fields"),
]
WALK = LAST - 1
"""Epoch of the first page that our node requests."""


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        *ANYTHING,
        (raw(head(PAGES_AT_ONCE + 1)), "bad-fields"),
        (answer(encode([b"", b""])), "undecodable"),
        (answer(encode([1, b""])), "bad-fields"),
        (answer(encode([BOOK.page(WALK).envelope, "work"])), "bad-fields"),
        (answer(encode([BOOK.page(WALK).envelope])), "bad-fields"),
        (answer(encode([BOOK.votes(WALK)[0].envelope, b""])), "wrong-kind"),
        (answer(forged(WALK)), "bad-signature"),
        (
            answer(page_frame(WALK, work=BOOK.works[BOOK.page(22).message.work].encoded())),
            "wrong-work",
        ),
        (answer(page_frame(WALK, work=b"")), "wrong-work"),
        (answer(page_frame(WALK, work=b"nonsense")), "wrong-work"),
    ],
)
async def test_a_bad_answer_to_awalk_back_is_blamed_and_changes_nothing(handler, fault):
    pair = Pair()
    pair.ours.lacks(5)
    before, began = pair.ours.state, LoopClock().now()
    assert BOOK.page(WALK).message.work, "the page names work"
    assert not await pair.pull(handler)
    assert pair.ours.state == before
    assert pair.ours.blamed == ([] if fault is None else [(THEIRS, fault)])
    assert LoopClock().now() - began <= LEDGER.stall_seconds + 1


async def test_what_came_before_a_bad_frame_is_kept():
    pair = Pair()
    pair.ours.lacks(5)
    assert not await pair.pull(answer(*map(page_frame, (29, 28, 27)), page_frame(26, b"x")))
    assert pair.ours.blamed == [(THEIRS, "wrong-work")]
    assert pair.ours.ledger.missing.page == BOOK.page(26).digest


async def test_pages_that_are_no_news_are_not_blamed_and_end_the_pull():
    pair = Pair()
    pair.ours.lacks(5)
    before = pair.ours.state
    assert await pair.pull(answer(page_frame(2), page_frame(LAST + 5)))
    assert (pair.ours.state, pair.ours.blamed) == (before, [])
    assert len(pair.requests) == 1


def leaves_frame(*leaves):
    return encode(list(leaves))


EPOCH = BOOK.page(LAST - 1).message.final_epoch
LEAVES = snapshot(EPOCH)[0]


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        *ANYTHING,
        (raw(head(PARTS_MAX + 1)), "bad-fields"),
        (answer(leaves_frame(*LEAVES[:-1], 7)), "bad-fields"),
        (answer(leaves_frame(*LEAVES, b"")), "bad-fields"),
        (answer(leaves_frame(*[bytes(63)] * 100), count=2), "bad-fields"),
        (answer(leaves_frame(*LEAVES[:-1])), "bad-fields"),
        (answer(leaves_frame(*LEAVES[::-1])), "bad-fields"),
        (answer(leaves_frame(*LEAVES), leaves_frame(LEAVES[-1])), "bad-fields"),
        (answer(leaves_frame(*snapshot(EPOCH - 1)[0])), "wrong-work"),
        (answer(leaves_frame(*snapshot(EPOCH + 1)[0])), "wrong-work"),
    ],
)
async def test_a_bad_snapshot_is_blamed_and_changes_nothing(handler, fault):
    pair = Pair()
    pair.ours.lacks(5, has_pages=False)
    before, began = pair.ours.state, LoopClock().now()
    with patch.object(final_ledger, "HISTORY_EPOCHS_MAX", 20):
        assert not await pair.pull(handler)
    assert pair.ours.state == before
    assert pair.ours.ledger.take_adopted() is None
    assert pair.ours.blamed == ([] if fault is None else [(THEIRS, fault)])
    assert LoopClock().now() - began <= LEDGER.stall_seconds + 1
    assert not pair.requests[0]["page"]


async def test_a_snapshot_in_parts_has_a_bounded_size(monkeypatch):
    """A hostile peer could fill the memory before a root is compared."""
    monkeypatch.setattr(ledger_sync, "PART_BYTES", 1)
    monkeypatch.setattr(final_ledger, "HISTORY_EPOCHS_MAX", 20)
    pair = Pair()
    pair.ours.lacks(5, has_pages=False)
    frame = leaves_frame(bytes(100))
    count = PARTS_MAX // len(frame) + 1
    assert not await pair.pull(answer(*[frame] * count))
    assert pair.ours.blamed == [(THEIRS, "oversize")]
    again = Pair()
    again.ours.lacks(5, has_pages=False)
    assert not await again.pull(answer(*[frame] * (count - 1)))
    assert again.ours.blamed == [(THEIRS, "bad-fields")], "no header of accounts"


async def test_a_slow_answer_ends_at_the_deadline_and_what_came_is_kept():
    async def drip(stream):
        request = decode(await read_frame(stream, 1 << 10), bytes_max=1 << 10)
        await write_frame(stream, head(request["count"]))
        for epoch in range(LAST - 1, 0, -1):
            await asyncio.sleep(LEDGER.stall_seconds - 1)
            await write_frame(stream, page_frame(epoch))

    pair = Pair()
    pair.ours.lacks(5)
    began = LoopClock().now()
    assert not await pair.pull(drip)
    assert LoopClock().now() - began <= EXCHANGE_SECONDS + 1
    assert pair.ours.blamed == []
    assert 0 < pair.ours.ledger.missing.pages <= 20


async def test_a_cut_off_walk_goes_on_with_the_next_pull():
    async def cut(stream):
        request = decode(await read_frame(stream, 1 << 10), bytes_max=1 << 10)
        await write_frame(stream, head(request["count"]))
        for epoch in range(LAST - 1, 20, -1):
            await write_frame(stream, page_frame(epoch))
        await stream.close()

    pair = Pair()
    await pair.theirs.serves()
    pair.ours.lacks(5)
    assert not await pair.pull(cut)
    assert pair.ours.ledger.missing.page == BOOK.page(20).digest
    await asyncio.sleep(1)
    fresh = Node(pair.hub, identity("third"))
    await fresh.serves()
    pair.hub.connect(OURS, identity("third").peer_id)
    await fresh.sync.start()
    await pair.ours.peers.reach()
    await pair.ours.sync.pull(identity("third").peer_id)
    assert pair.has_all()


# Requests of hostile peers


async def test_a_request_is_answered_with_no_more_than_is_kept():
    pair = Pair()
    await pair.theirs.serves(first=20)
    pages = await pair.answers(page=BOOK.page(25).digest, count=2)
    assert [envelope for envelope, _ in pages] == [BOOK.page(n).envelope for n in (25, 24)]
    assert [work for _, work in pages] == [work_of(25), work_of(24)]
    assert len(await pair.answers(page=BOOK.page(22).digest, count=PAGES_AT_ONCE)) == 3
    assert await pair.answers(page=BOOK.page(25).digest, count=0) == []
    assert await pair.answers(page=digest(b"?"), count=9) == []
    assert await pair.answers(page=BOOK.page(LAST).digest, count=9) == [], "not final"
    assert await pair.answers(epoch=5) == await pair.answers(epoch=-9) == []
    assert await pair.answers(epoch=2**60) == []


@pytest.mark.parametrize(
    "request_",
    [
        b"\xc1",
        encode([0, 0, b""]),
        encode({"count": 1, "page": bytes(32)}),
        encode({"epoch": 1, "page": bytes(32)}),
        encode({"count": 1, "epoch": 1}),
        encode({"count": 1, "epoch": 0, "page": bytes(31)}),
        encode({"count": 1, "epoch": 0, "page": "x" * 32}),
        encode({"count": -1, "epoch": 0, "page": bytes(32)}),
        encode({"count": True, "epoch": 0, "page": bytes(32)}),
        encode({"count": PAGES_AT_ONCE + 1, "epoch": 0, "page": bytes(32)}),
        encode({"count": 0, "epoch": "1", "page": b""}),
        encode({"count": 0, "epoch": False, "page": b""}),
        bytes(ledger_sync.REQUEST_BYTES_MAX + 1),
    ],
)
async def test_a_malformed_request_is_not_answered(request_):
    pair = Pair()
    await pair.theirs.serves()
    stream = await pair.offer(request_)
    assert await stream.read(1) == b""
    assert [peer for peer, _ in pair.theirs.blamed] == [OURS]


async def test_repeated_requests_of_a_peer_are_bounded():
    pair = Pair()
    await pair.theirs.serves(12)
    answered = 0
    for _ in range(LEDGER.streams_burst + 16):
        stream = await pair.offer(encode({"count": 0, "epoch": 0, "page": bytes(32)}))
        answered += await stream.read(1) != b""
        await stream.close()
    assert LEDGER.streams_burst <= answered <= LEDGER.streams_burst + 4
