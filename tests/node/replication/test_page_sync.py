import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import KeyGuard
from node.network.connections.manager import ConnectionManager
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import PAGES
from node.replication import page_sync, sync_streams
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.message_log import MessageLog
from node.replication.page_sync import CHAINS_MAX, EXCHANGE_SECONDS, PageSync
from protocol.consensus.committee import draw
from protocol.consensus.council import NotarisedPage, encode_chain
from protocol.consensus.member import Contents
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.codec import decode, encode
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.faults import FaultCode
from protocol.core.rng import Rng
from protocol.core.types import Topic
from protocol.replica.replica import Replica
from roles.ports.transport import TransportError, Trust
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, fingerprint, identity, run_manifest
from tests.worlds.network import Hub, LoopClock
from tests.worlds.page_book import PageBook, fast_output, fast_verify

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
LISTED = {epoch: digest(b"commit %d" % epoch) for epoch in range(1, 100)}
"""A commit that the page of each epoch lists."""
LISTS = {epoch: Contents(commits=(commit,)) for epoch, commit in LISTED.items()}
BOOK = PageBook(WORLD.manifest, WORLD.validators, LISTS)
KEPT_EPOCHS = 4 * WORLD.manifest.committee.expire_after_epochs
LEAVES = public_key_from_peer_id(WORLD.validators[0].peer_id)
CHANGES = {5: Contents(removed=(LEAVES,)), 11: Contents(joined=(LEAVES,))}
LATER = PageBook(WORLD.manifest, WORLD.validators, LISTS | CHANGES)
"""A member leaves with the page of epoch 5 and returns with that of epoch 11."""

OUR_KEY, THEIR_KEY = identity("ours"), identity("theirs")
OURS, THEIRS = OUR_KEY.peer_id, THEIR_KEY.peer_id
PROTOCOL = PAGES.on(WORLD.run_id)


class Clock:
    """The time of the run's newest page."""

    epoch = 0

    def now(self):
        return WORLD.at(self.epoch)


class Node:
    def __init__(self, hub, signer, store=None):
        self.transport = hub.transport(signer.peer_id)
        self.replica = Replica(WORLD.manifest, fast_verify, fast_output)
        self.pages = self.replica.pages
        self.blamed, self.clock = [], Clock()
        self.peers = ConnectionManager(
            self.transport, LoopClock(), Rng(b"1"), [], roster=self.replica.roster
        )
        self.peers.blame = lambda peer, fault: self.blamed.append((peer, str(fault.code)))
        store = store or MemoryStore()
        ports = Ports(self.clock, Rng(b"2"), self.transport, None, None, store, None, None)
        context = NodeContext(
            signer, self.replica, ports, self.peers, ChangeSignal(), Conditions(), trust=Trust()
        )
        self.changes, self.log = context.changes, MessageLog(store)
        self.inbox = MessageIntake(context, self.log, KeyGuard(context), (), ChangeSignal())
        self.cap = UploadScheduler(None)
        self.sync = PageSync(context, self.inbox, self.cap)

    def gossip(self, *messages):
        for signed in messages:
            self.clock.epoch = signed.message.epoch
            self.inbox.validate(Topic.PAGES, signed.signer, signed.envelope)

    @property
    def state(self):
        """Conclusions of a node from pages: the order of arrival must not change them."""
        pages = self.pages
        tips = sorted((tip.digest, tip.shown_epoch) for tip in pages.tips())
        epochs = range(max(0, pages.root.epoch - KEPT_EPOCHS + 5), pages.tip().epoch)
        drawing = [pages.drawing(LISTED[epoch]) for epoch in epochs if epoch]
        drawn = [page and (page.digest, page.drawn_known) for page in drawing]
        return pages.root.digest, pages.council, tips, drawn


class Pair:
    def __init__(self, store=None):
        self.hub = Hub()
        self.ours, self.theirs = Node(self.hub, OUR_KEY, store), Node(self.hub, THEIR_KEY)
        self.hub.connect(OURS, THEIRS)
        self.frames = []
        """Frames that their node sends: sizes of what it sends at once."""

    async def pull(self, handler=None):
        """Pull from their node, or from a faulty handler in its place; False if that failed."""
        await self.theirs.sync.start()
        if handler is not None:
            await self.theirs.transport.handle(PROTOCOL, handler)
        await self.ours.peers.reach()
        try:
            await self.ours.sync.pull(THEIRS)
        except TransportError:
            return False
        return True

    async def offer(self, **request):
        """Send a request; return the stream and the first response."""
        await self.theirs.sync.start()
        stream = await self.ours.transport.open_stream(THEIRS, PROTOCOL)
        await write_frame(stream, encode(request))
        return stream, decode(await read_frame(stream, 1 << 20), bytes_max=1 << 20)


@pytest.mark.parametrize(("book", "last"), [(BOOK, 2), (BOOK, 70), (LATER, 20)])
async def test_a_node_that_joins_receives_all_that_the_present_needs(book, last):
    pair = Pair()
    book.show(pair.theirs.replica, last)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state
    assert pair.ours.pages.tip().epoch == last
    assert len(pair.ours.pages.handovers) == len(pair.theirs.pages.handovers)
    assert pair.ours.blamed == pair.theirs.blamed == []


@pytest.mark.parametrize("known", [3, 6, 9, 16])
async def test_a_node_that_was_away_receives_what_it_missed(known):
    """Before, during and after a change of the council that it missed."""
    pair = Pair()
    LATER.show(pair.ours.replica, known)
    LATER.show(pair.theirs.replica, 24)
    count = pair.ours.changes.count
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state
    assert pair.ours.changes.count > count, "the council member must act"


@pytest.mark.parametrize(("known", "last"), [(0, 9), (7, 24), (7, 10)])
async def test_a_node_that_was_away_counts_all_pages(known, last):
    """Else it could not state the root of the accounts, and would not propose."""
    pair = Pair()
    BOOK.show(pair.ours.replica, known)
    BOOK.show(pair.theirs.replica, last)
    assert await pair.pull()
    ours, theirs = pair.ours.replica, pair.theirs.replica
    ours.count_final()
    assert not ours.behind
    assert ours.intake.accounts.header.epoch == pair.theirs.pages.root.epoch == last - 1
    assert ours.intake.accounts.root == theirs.intake.accounts.root


async def test_a_node_that_was_away_for_long_goes_on_from_the_newest_final_page():
    pair = Pair()
    BOOK.show(pair.ours.replica, 7)
    BOOK.show(pair.theirs.replica, KEPT_EPOCHS + 40)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state
    replica = pair.ours.replica
    replica.count_final()
    assert replica.intake.ledger.has_gap
    assert replica.behind, "it needs the work of the pages in between"
    assert replica.intake.accounts.header.epoch == 6


async def test_a_page_that_lost_its_votes_arrives_with_them():
    pair = Pair()
    BOOK.show(pair.theirs.replica, 12)
    BOOK.show(pair.ours.replica, 9)
    pair.ours.gossip(BOOK.page(10), *BOOK.votes(10)[:2], BOOK.page(11), *BOOK.votes(11))
    assert pair.ours.replica.behind
    assert pair.ours.pages.tip().epoch == 9
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state
    assert not pair.ours.replica.behind


async def test_votes_that_came_before_the_newest_final_page_still_count():
    """The page of epoch 12 lacks one vote here when three pages show that of epoch 11 final."""
    council = BOOK.chain(1, 1)[0].votes
    quorum = WORLD.replica(pages_to=0).pages.council.quorum
    assert len(council) == quorum
    pair = Pair()
    BOOK.show(pair.ours.replica, 8)
    votes = {vote.signer: vote for vote in BOOK.votes(12)}
    proven = [pair.ours.pages.council.members[place] for place, _ in BOOK.chain(12, 12)[0].votes]
    for epoch in (9, 10, 11):
        pair.ours.gossip(BOOK.page(epoch), *BOOK.votes(epoch)[: quorum - (epoch == 9)])
    pair.ours.gossip(BOOK.page(12), *(votes[peer] for peer in proven[1:]))
    pair.ours.replica.pages.offer_chain(BOOK.chain(10, 12))
    assert pair.ours.pages.tip().epoch == 12


async def test_a_page_of_an_unknown_council_makes_a_node_pull():
    pair = Pair()
    LATER.show(pair.ours.replica, 4)
    LATER.show(pair.theirs.replica, 9)
    pair.ours.gossip(LATER.page(9))
    assert pair.ours.replica.behind
    assert await pair.pull()
    assert not pair.ours.replica.behind


async def test_a_second_pull_brings_nothing():
    pair = Pair()
    LATER.show(pair.theirs.replica, 24)
    assert await pair.pull()
    sent = pair.theirs.cap.take
    sizes = []

    async def counted(count, **whose):
        sizes.append(count)
        await sent(count, **whose)

    pair.theirs.cap.take = counted
    assert await pair.pull()
    assert len(sizes) == 1, "the list alone"
    assert await pair.pull()


async def test_the_pages_of_old_evidence_are_offered_and_no_other_old_ones():
    pair, book = Pair(), WORLD.book
    lie = WORLD.commit(WORLD.workers[0], epoch=3)
    rejection = WORLD.certificate(lie, accepted=False, escalated=True)
    book.show(pair.theirs.replica, 5)
    pair.theirs.pages.offer_chain(book.drawing(lie).to_offer())
    book.show(pair.theirs.replica, KEPT_EPOCHS + 30, first=6)
    for signed in (WORLD.genesis(), lie, rejection):
        pair.theirs.replica.restore(signed.envelope)
    assert await pair.pull()
    drawing = pair.ours.pages.page(rejection.message.page)
    assert drawing.drawn_known, "its certificate would wait"
    assert lie.digest in drawing.drawn
    assert pair.ours.pages.page(book.page(4).digest) is None
    assert pair.ours.pages.page(book.page(5).digest) is None


async def test_many_handovers_come_in_several_responses(monkeypatch):
    monkeypatch.setattr(page_sync, "CHAINS_MAX", 1)
    pair = Pair()
    LATER.show(pair.theirs.replica, 24)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state


@pytest.mark.parametrize("page", [1, 3, 8])
async def test_a_long_list_comes_page_by_page(monkeypatch, page):
    for module in (page_sync, sync_streams):
        monkeypatch.setattr(module, "IDS_MAX", page)
    monkeypatch.setattr(page_sync, "PAGES", replace(PAGES, streams_burst=1000))
    pair = Pair()
    BOOK.show(pair.theirs.replica, 20)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state


@pytest.mark.parametrize("frames", [1, 2, 3, 5, 12])
async def test_what_an_interrupted_pull_did_not_bring_comes_with_the_next(monkeypatch, frames):
    """Though the newest final page is here after the first chains."""
    pair, left = Pair(), [frames]
    LATER.show(pair.theirs.replica, 24)
    take = pair.ours.inbox.take_chain

    def some(chain, sender):
        left[0] -= 1
        if left[0] < 0:
            raise TransportError("cut")
        return take(chain, sender)

    monkeypatch.setattr(pair.ours.inbox, "take_chain", some)
    assert not await pair.pull()
    left[0] = 1000
    await asyncio.sleep(1)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state


async def test_a_node_that_is_ahead_receives_nothing_and_blames_nobody():
    pair = Pair()
    LATER.show(pair.ours.replica, 24)
    LATER.show(pair.theirs.replica, 9)
    before = pair.ours.state
    stream, offer = await pair.offer(
        council=pair.ours.pages.council.seat, epoch=pair.ours.pages.root.epoch, skip=0
    )
    assert offer == {"chains": 0, "ids": ()}
    await stream.close()
    await asyncio.sleep(1)
    assert await pair.pull()
    assert pair.ours.state == before
    assert pair.ours.blamed == pair.theirs.blamed == []


async def test_pulled_pages_survive_a_restart():
    store = MemoryStore()
    pair = Pair(store)
    LATER.show(pair.theirs.replica, 24)
    assert await pair.pull()
    await pair.ours.log.flush()
    again = Node(Hub(), OUR_KEY, store)
    await again.inbox.restore()
    assert again.state == pair.ours.state
    await again.log.compact(again.replica)
    again.log.later_chain(encode_chain(LATER.chain(25, 25)))
    await again.log.flush()
    compacted = Node(Hub(), OUR_KEY, store)
    await compacted.inbox.restore()
    assert compacted.pages.tip().epoch == 25
    assert fingerprint(compacted.replica) == fingerprint(pair.ours.replica)


def certified_by(page, commit):
    """Return a certificate by the committee that a page draws."""
    committee = draw(WORLD.manifest, page, commit)
    keys = [WORLD.by_peer[peer] for peer in committee.first]
    verdicts = [WORLD.verdict(key, commit, page=page.digest) for key in keys]
    fields = {"page": page.digest, "verdicts": tuple(one.envelope for one in verdicts)}
    return WORLD.certificate(commit, **fields)


class DyingStore(MemoryStore):
    """Store whose machine loses power before its last commits."""

    commits_left = 1000

    async def commit(self, changes):
        self.commits_left -= 1
        if self.commits_left < 0:
            raise PowerError
        await super().commit(changes)


class PowerError(Exception):
    """The machine has lost power."""


@pytest.mark.parametrize("commits", range(5))
async def test_the_work_of_final_pages_is_counted_once_whenever_the_power_fails(commits):
    """Before and after each write: work, pages, the deletion of messages, accounts."""
    store, worker = DyingStore(), WORLD.workers[0]
    node, commit = Node(Hub(), OUR_KEY, store), WORLD.commit(worker)
    about = {name: Contents(**{name: (commit.digest,)}) for name in ("commits", "certified")}
    contents = {1: about["commits"], 5: about["certified"]}
    book = PageBook(WORLD.manifest, WORLD.validators, contents)
    for epoch in (1, 2):
        node.gossip(book.page(epoch), *book.votes(epoch))
    certificate = certified_by(node.pages.page(book.page(2).digest), commit)
    for signed in (WORLD.genesis(), commit, certificate):
        node.inbox.take(signed.envelope, MessageOrigin.GOSSIP)
    for epoch in range(3, 9):
        node.gossip(book.page(epoch), *book.votes(epoch))
    accounts = node.replica.intake.accounts
    assert accounts.header.epoch == node.pages.root.epoch == 7
    assert accounts.tokens([0]) == {worker.peer_id: commit.message.tokens}
    await node.log.flush()
    store.commits_left = commits
    with suppress(PowerError):
        await node.inbox.history.flush(node.replica.intake.ledger)
        await node.log.compact(node.replica)
        await node.inbox.history.keep_accounts(node.replica.intake.ledger)
    assert store.commits_left == (-1 if commits < 4 else 0)
    store.commits_left = 1000
    again = Node(Hub(), OUR_KEY, store)
    await again.inbox.restore()
    assert again.replica.intake.accounts.leaves == accounts.leaves
    assert again.replica.ledger.commits.known(commit.digest).final is True
    again.gossip(book.page(9), *book.votes(9))
    assert again.replica.intake.accounts.header.epoch == 8
    assert not again.replica.behind


def served(*frames, ids=()):
    """Return a handler that offers chains, and answers whatever is requested with the same."""

    async def handler(stream):
        await read_frame(stream, 1 << 10)
        await write_frame(stream, encode({"chains": len(frames), "ids": list(ids)}))
        for frame in frames:
            await write_frame(stream, frame)
        await read_frame(stream, 1 << 20)
        await stream.close()

    return handler


def head(value):
    async def handler(stream):
        await read_frame(stream, 1 << 10)
        await write_frame(stream, value)
        await asyncio.sleep(3600)

    return handler


def forged():
    one = BOOK.chain(1, 1)[0]
    (place, signature), *others = one.votes
    wrong = (place, bytes([signature[0] ^ 1]) + signature[1:])
    return encode_chain([NotarisedPage(one.page, (wrong, *others))])


async def _silent(_stream):
    await asyncio.sleep(3600)


async def _huge(stream):
    await read_frame(stream, 1 << 10)
    await write_frame(stream, encode({"chains": 1, "ids": []}))
    await stream.write(((2 << 20) + 1).to_bytes(4, "big"))
    await asyncio.sleep(3600)


async def _withheld(stream):
    await read_frame(stream, 1 << 10)
    await write_frame(stream, encode({"chains": 0, "ids": [digest(b"1")]}))
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        (_silent, None),
        (_withheld, None),
        (_huge, "oversize"),
        (head(b"\xc1"), "undecodable"),
        (head(encode([1])), "bad-fields"),
        (head(encode({"chains": CHAINS_MAX + 1, "ids": []})), "bad-fields"),
        (head(encode({"chains": -1, "ids": []})), "bad-fields"),
        (head(encode({"chains": True, "ids": []})), "bad-fields"),
        (head(encode({"chains": 0, "ids": "none"})), "bad-fields"),
        (head(encode({"chains": 0, "ids": [bytes(31)]})), "bad-fields"),
        (served(b"\xc1"), "undecodable"),
        (served(encode([])), "bad-fields"),
        (served(forged()), "bad-signature"),
        (served(encode_chain([BOOK.chain(1, 1)[0], BOOK.chain(3, 3)[0]])), "wrong-parent"),
    ],
)
async def test_a_malformed_answer_is_blamed_and_changes_nothing(handler, fault):
    pair = Pair()
    clock = LoopClock()
    began = clock.now()
    before = pair.ours.pages.root.digest, pair.ours.pages.tip().digest
    assert not await pair.pull(handler)
    assert clock.now() - began <= PAGES.stall_seconds + 1
    assert (pair.ours.pages.root.digest, pair.ours.pages.tip().digest) == before
    assert pair.ours.blamed == ([] if fault is None else [(THEIRS, fault)])


async def test_pages_that_are_no_news_or_of_an_unknown_council_are_not_blamed():
    pair = Pair()
    BOOK.show(pair.ours.replica, 6)
    known, unknown = BOOK.chain(1, 3), LATER.chain(8, 8)
    assert await pair.pull(served(encode_chain(known), encode_chain(unknown)))
    assert pair.ours.blamed == []


async def test_a_slow_answer_ends_at_the_deadline_and_what_came_is_kept():
    async def drip(stream):
        await read_frame(stream, 1 << 10)
        await write_frame(stream, encode({"chains": CHAINS_MAX, "ids": []}))
        for epoch in range(1, CHAINS_MAX + 1):
            await asyncio.sleep(PAGES.stall_seconds - 1)
            await write_frame(stream, encode_chain(BOOK.chain(epoch, epoch)))

    pair = Pair()
    began = LoopClock().now()
    assert not await pair.pull(drip)
    assert LoopClock().now() - began <= EXCHANGE_SECONDS + 1
    assert pair.ours.pages.tip().epoch > 1


async def test_only_listed_pages_are_sent():
    """A page that draws comes with those since the draw before it, unless they are final."""
    pair = Pair()
    BOOK.show(pair.theirs.replica, 5)
    stream, offer = await pair.offer(council=b"", epoch=4, skip=0)
    assert offer["ids"] == tuple(BOOK.page(epoch).digest for epoch in range(1, 6))
    wanted = [digest(b"?"), BOOK.page(2).digest, BOOK.page(5).digest]
    await write_frame(stream, encode({"ids": wanted}))
    for first, last in ((2, 2), (4, 5)):
        assert await read_frame(stream, 1 << 20) == encode_chain(BOOK.chain(first, last))
    assert await stream.read(1) == b""


@pytest.mark.parametrize(
    "request_",
    [
        b"\xc1",
        encode([0, 0]),
        encode({"council": b"", "epoch": 0}),
        encode({"council": bytes(31), "epoch": 0, "skip": 0}),
        encode({"council": "", "epoch": 0, "skip": 0}),
        encode({"council": b"", "epoch": -2, "skip": 0}),
        encode({"council": b"", "epoch": True, "skip": 0}),
        encode({"council": b"", "epoch": 2**53 + 1, "skip": 0}),
        encode({"council": b"", "epoch": 0, "skip": -1}),
        encode({"council": b"", "epoch": 0, "skip": 2**53 + 1}),
        bytes(100),
    ],
)
async def test_a_malformed_request_is_not_answered(request_):
    pair = Pair()
    await pair.theirs.sync.start()
    stream = await pair.ours.transport.open_stream(THEIRS, PROTOCOL)
    await write_frame(stream, request_)
    assert await stream.read(1) == b""
    assert [peer for peer, _ in pair.theirs.blamed] == [OURS]


async def test_repeated_requests_of_a_peer_are_bounded():
    pair = Pair()
    told = 0
    for _ in range(PAGES.streams_burst + 16):
        told += await pair.pull()
    assert PAGES.streams_burst <= told <= PAGES.streams_burst + 4, "pulling takes time, too"
    await asyncio.sleep(1)
    assert await pair.pull()


# A trusted page: the join command names the page that seated the council

FORGED = {4: Contents(removed=(LEAVES,)), 11: Contents(joined=(LEAVES,))}
FORGERY = PageBook(WORLD.manifest, WORLD.validators, LISTS | FORGED)
"""Another history by the same keys: its first council ends an epoch before."""


def trusted_page(book, last=24):
    replica = WORLD.replica(pages_to=0)
    book.show(replica, last)
    return TrustedPage.of(replica.pages)


def gossips(node, book, epoch):
    node.gossip(book.page(epoch), *book.votes(epoch))


def test_the_trusted_page_is_the_one_that_seated_the_council():
    assert trusted_page(BOOK) is None
    assert trusted_page(LATER, 9) == TrustedPage(5, LATER.page(5).digest)
    assert trusted_page(LATER) == TrustedPage(11, LATER.page(11).digest)


@pytest.mark.parametrize("chains_max", [1, 16])
async def test_a_node_with_a_trusted_page_takes_the_history_that_contains_it(
    monkeypatch, chains_max
):
    monkeypatch.setattr(page_sync, "CHAINS_MAX", chains_max)
    for page in (trusted_page(LATER, 9), trusted_page(LATER)):
        pair = Pair()
        LATER.show(pair.theirs.replica, 24)
        pair.ours.replica.intake.awaited = page
        assert await pair.pull()
        assert pair.ours.replica.intake.awaited is None
        assert pair.ours.state == pair.theirs.state
        assert not pair.ours.sync.other_histories


@pytest.mark.parametrize("forged", [BOOK, FORGERY])
async def test_old_keys_cannot_show_it_another_history(forged):
    """With a forged council and without one, by a peer and by gossip; the true one still counts."""
    pair = Pair()
    forged.show(pair.theirs.replica, 40)
    pair.ours.replica.intake.awaited = trusted_page(LATER)
    nothing = pair.ours.state
    assert not await pair.pull()
    assert list(pair.ours.sync.other_histories) == [THEIRS]
    for epoch in range(1, 8):
        gossips(pair.ours, forged, epoch)
    assert pair.ours.state == nothing
    assert not list(pair.ours.log.chains())
    third = identity("third")
    other = Node(pair.hub, third)
    LATER.show(other.replica, 24)
    pair.hub.connect(OURS, third.peer_id)
    await other.sync.start()
    await pair.ours.peers.reach()
    await pair.ours.sync.pull(third.peer_id)
    assert pair.ours.state == other.state


async def test_a_peer_that_is_behind_shows_no_other_history():
    pair = Pair()
    LATER.show(pair.theirs.replica, 9)
    pair.ours.replica.intake.awaited = trusted_page(LATER)
    assert not await pair.pull()
    assert not pair.ours.sync.other_histories
    assert pair.ours.blamed == []
    assert pair.ours.pages.root.epoch == -1
    LATER.show(pair.theirs.replica, 24, first=10)
    await asyncio.sleep(1)
    assert await pair.pull()
    assert pair.ours.state == pair.theirs.state


async def test_a_peer_that_sends_invalid_pages_meanwhile_is_blamed():
    pair = Pair()
    pair.ours.replica.intake.awaited = trusted_page(LATER)
    assert not await pair.pull(served(forged()))
    assert [code for _, code in pair.ours.blamed] == [FaultCode.BAD_SIGNATURE]


# Conflicting final pages


@pytest.mark.parametrize("theirs", [BOOK, FORGERY])
@pytest.mark.parametrize("swapped", [False, True])
async def test_nodes_of_two_final_chains_notice_it(theirs, swapped):
    """Though each of them has a council that the other does not know."""
    pair = Pair()
    books = (theirs, LATER) if swapped else (LATER, theirs)
    books[0].show(pair.ours.replica, 9)
    books[1].show(pair.theirs.replica, 9)
    assert pair.ours.pages.watch.conflict is pair.theirs.pages.watch.conflict is None
    assert await pair.pull()
    assert pair.ours.pages.watch.conflict is not None
    assert pair.ours.blamed == []
