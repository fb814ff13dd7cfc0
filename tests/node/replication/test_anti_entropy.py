import asyncio
import sys
from dataclasses import replace

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import KeyGuard
from node.network.connections.manager import ConnectionManager
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import SYNC
from node.replication import anti_entropy as synchronise
from node.replication.anti_entropy import EXCHANGE_SECONDS, AntiEntropy
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.message_log import MessageLog
from protocol.core.codec import decode, encode
from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.ledger.commits import COMMITS_IN_FLIGHT_MAX
from protocol.messages import StepReport
from protocol.replica.replica import Replica
from roles.ports.transport import Trust
from roles.runtime.context import ChangeSignal, Conditions
from simulations.network import streams
from tests.worlds.disks import MemoryStore
from tests.worlds.leads import show_lead
from tests.worlds.messages import World, fingerprint, identity, run_manifest
from tests.worlds.network import Hub, LoopClock
from tests.worlds.page_book import BookReplica, fast_output

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest(trainers=2))
WORKER = WORLD.workers[0]
CHAIN = WORLD.chain(WORKER, 3)
GENESIS = WORLD.genesis()
NOW = WORLD.at(1)
OUR_KEY, THEIR_KEY = identity("ours"), identity("theirs")
OURS, THEIRS = OUR_KEY.peer_id, THEIR_KEY.peer_id
PROTOCOL = SYNC.on(WORLD.run_id)


class Fixed:
    def now(self):
        return NOW


class Node:
    def __init__(self, hub, signer, upload=None, trust=None, made=Replica):
        self.transport = hub.transport(signer.peer_id)
        self.replica = made(WORLD.manifest, lambda *_: True, fast_output)
        self.accepted, self.blamed = [], []
        self.peers = ConnectionManager(
            self.transport, LoopClock(), Rng(b"1"), [], roster=self.replica.roster
        )
        self.peers.blame = lambda peer, fault: self.blamed.append((peer, str(fault.code)))
        ports = Ports(Fixed(), Rng(b"2"), self.transport, None, None, MemoryStore(), None, None)
        self.context = NodeContext(
            signer,
            self.replica,
            ports,
            self.peers,
            ChangeSignal(),
            Conditions(),
            trust=trust or Trust(),
        )
        self.key_guard = KeyGuard(self.context)
        inbox = MessageIntake(
            self.context, MessageLog(ports.store), self.key_guard, (), ChangeSignal()
        )
        inbox.listen(self.note)
        self.anti_entropy = AntiEntropy(self.context, inbox, upload or UploadScheduler(None))

    def note_pulls(self):
        """Return the peers that this node opens streams to from now on, with the times."""
        pulls, open_stream = [], self.peers.open_stream

        async def noted(peer, protocol):
            if protocol == PROTOCOL:
                pulls.append((peer, LoopClock().now()))
            return await open_stream(peer, protocol)

        self.peers.open_stream = noted
        return pulls

    @property
    def streams(self):
        """Number of streams that this node serves."""
        return self.context.tables.sizes()["streams_sync"]

    def note(self, received, source):
        assert source in (MessageOrigin.ANTI_ENTROPY, MessageOrigin.WAITED)
        if received.result is ValidationResult.ACCEPT:
            self.accepted.append(received.signed.envelope)

    def take(self, *messages):
        for signed in messages:
            assert self.replica.receive(signed.envelope, NOW).result is ValidationResult.ACCEPT


class Pair:
    def __init__(self, **theirs):
        self.hub = Hub()
        self.ours = Node(self.hub, OUR_KEY)
        self.theirs = Node(self.hub, THEIR_KEY, made=BookReplica, **theirs)
        self.hub.connect(OURS, THEIRS)

    async def pull(self):
        await self.theirs.anti_entropy.start()
        await self.ours.peers.reach()
        return await self.ours.anti_entropy.pull(THEIRS)

    async def request(self, **request):
        """Send a request; return the stream and the ids of the answer."""
        await self.theirs.anti_entropy.start()
        stream = await self.ours.transport.open_stream(THEIRS, PROTOCOL)
        await write_frame(stream, encode(request))
        return stream, decode(await read_frame(stream, 1 << 20), bytes_max=1 << 20)["ids"]

    async def listed(self):
        """Return the ids that their node offers, of all pages."""
        found = []
        while True:
            stream, ids = await self.request(skip=len(found), version=0)
            await stream.close()
            await asyncio.sleep(1)
            if not ids:
                return found
            found += ids

    async def serve(self, handler):
        """Replace the server's handler by a faulty one."""
        await self.theirs.anti_entropy.start()
        await self.theirs.transport.handle(PROTOCOL, handler)
        await self.ours.peers.reach()
        return await self.ours.anti_entropy.pull(THEIRS)


def chain(length, trainer=0, first=GENESIS, **changes):
    versions = [first]
    for _ in range(length):
        versions.append(WORLD.checkpoint(versions[-1], trainer, **changes))
    return versions


def records(count):
    return [WORLD.record(identity(f"untrusted {n}"), ("relay",)) for n in range(count)]


def validators():
    return [WORLD.record(one, ("validator",)) for one in WORLD.validators]


async def test_a_new_node_takes_all_that_matters():
    pair = Pair()
    WORLD.book.show(pair.theirs.replica, 3)
    pair.theirs.take(*validators(), *chain(3), *CHAIN, *records(2))
    pair.theirs.take(WORLD.certificate(CHAIN[0]))
    assert await pair.pull()
    assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)
    assert not pair.ours.anti_entropy.synchronised, "validators are here, and none has told us"
    assert len(pair.ours.accepted) == 6 + 4 + 3 + 1 + 2
    assert await pair.pull()
    assert len(pair.ours.accepted) == 6 + 4 + 3 + 1 + 2, "the second time there is no news"


@pytest.mark.parametrize("page", [1, 3, 8])
async def test_a_long_history_comes_page_by_page(monkeypatch, page):
    monkeypatch.setattr(synchronise, "IDS_MAX", page)
    often = replace(SYNC, streams_burst=1000)  # for pages of a thousandth of the length
    monkeypatch.setattr(synchronise, "SYNC", often)
    pair = Pair()
    pair.theirs.take(*validators(), *chain(5), *CHAIN, *records(6))
    pair.ours.take(*validators()[:2], *records(3))
    for _ in range(3):  # the pages shift while versions arrive
        assert await pair.pull()
    assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)


async def test_a_late_node_takes_the_reports_of_steps():
    pair, versions = Pair(), chain(2)
    pair.theirs.take(*versions)
    reports = [
        WORLD.sealed(StepReport(manifest=one.digest, policy=digest(b"other")), WORLD.trainers[1])
        for one in versions[1:]
    ]
    pair.theirs.take(*reports)
    assert await pair.pull()
    assert pair.ours.replica.shadows.all() == reports
    assert (await pair.listed())[-2:] == [one.digest for one in reports], "after the versions"


async def test_a_late_node_takes_the_round_that_is_open(monkeypatch):
    world = World(run_manifest(trainers=2, grpo={"outer": {"trainers": 2, "inner_steps": 1}}))
    monkeypatch.setattr(sys.modules[__name__], "WORLD", world)
    monkeypatch.setattr(sys.modules[__name__], "PROTOCOL", SYNC.on(world.run_id))
    genesis, pair = world.genesis(), Pair()
    batch = tuple(digest(b"rollout %d" % n) for n in range(4))
    planned = world.round_plan(genesis, (0, 1), batch=batch)
    results = [world.round_result(planned, place) for place in (0, 1)]
    pair.theirs.take(genesis, planned, *results)
    assert await pair.pull()
    assert pair.ours.replica.rounds.all() == [planned, *results], "the plan before its results"


async def test_repeated_requests_of_a_peer_are_bounded():
    """The list alone takes milliseconds, and a client may request nothing of it and repeat."""
    pair = Pair()
    pair.theirs.take(*validators(), *chain(5), *CHAIN)
    told = 0
    for _ in range(SYNC.streams_burst + 16):
        told += await pair.pull()
    assert SYNC.streams_burst <= told <= SYNC.streams_burst + 4, "pulling takes time, too"
    await asyncio.sleep(1)
    assert await pair.pull()


async def test_untrusted_peers_records_come_last(monkeypatch):
    """Else an attacker with thousands of keys would delay the versions for new nodes."""
    monkeypatch.setattr(synchronise, "IDS_MAX", 16)
    pair = Pair()
    pair.theirs.take(*records(40), *validators(), *chain(2), *CHAIN)
    listed = await pair.listed()
    assert {signed.digest for signed in records(40)} == set(listed[-40:])
    assert {signed.digest for signed in validators()} == set(listed[:6])
    assert len(listed) == len(set(listed))
    assert await pair.pull()
    assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)


async def test_old_evidence_against_members_comes_last(monkeypatch):
    """After everything else about them was forgotten; a departed worker is not covered."""
    lie = WORLD.commit(WORKER)
    rejection = WORLD.certificate(lie, accepted=False, escalated=True)
    fork, gone = (
        [WORLD.commit(one, tokens=tokens) for tokens in (9, 10)] for one in WORLD.workers[1:]
    )
    late_epoch = 10 * WORLD.manifest.committee.expire_after_epochs
    late = {"sequence": round(WORLD.at(late_epoch) * 1000)}
    pair = Pair()
    WORLD.book.show(pair.theirs.replica, 3)
    pair.theirs.take(GENESIS, *validators(), lie, rejection, *fork, *gone)
    monkeypatch.setitem(globals(), "NOW", WORLD.at(late_epoch))
    present = [WORLD.record(one, ("validator",), **late) for one in WORLD.validators]
    present += [WORLD.record(one, ("inference",), **late) for one in WORLD.workers[:2]]
    pair.theirs.take(*present)
    pair.theirs.replica.advance(NOW)
    assert pair.theirs.replica.ledger.commits.entries == {}
    listed = await pair.listed()
    assert listed[-4:] == [one.digest for one in (lie, rejection, *fork)]
    assert await pair.pull()
    slashed = pair.ours.replica.ledger.workers.is_slashed
    assert [slashed(one.peer_id) for one in WORLD.workers] == [True, True, False]
    count = len(pair.ours.accepted)
    pair.ours.replica.advance(NOW)
    assert await pair.pull()
    assert pair.ours.anti_entropy.progress == (0, 0), "and is not asked for again"
    assert len(pair.ours.accepted) == count


@pytest.mark.parametrize("page", [2, 512])
async def test_a_version_missed_for_long_comes_with_the_certificates_of_its_batch(
    monkeypatch, page
):
    """Both forgot all else about the batch; the node that published the version kept it."""
    monkeypatch.setattr(synchronise, "IDS_MAX", page)
    late_epoch = 10 * WORLD.manifest.committee.expire_after_epochs
    pair = Pair()
    WORLD.book.show(pair.theirs.replica, 3)
    version = WORLD.checkpoint(GENESIS, batch=tuple(commit.digest for commit in CHAIN))
    pair.ours.take(GENESIS)
    pair.theirs.take(GENESIS, *validators(), *CHAIN, *map(WORLD.certificate, CHAIN), version)
    recent = await pair.listed()
    monkeypatch.setitem(globals(), "NOW", WORLD.at(late_epoch))
    late = {"sequence": round(NOW * 1000)}
    pair.theirs.take(*(WORLD.record(one, ("validator",), **late) for one in WORLD.validators))
    pair.theirs.replica.advance(NOW)
    assert pair.theirs.replica.ledger.commits.entries == {}
    listed = await pair.listed()
    assert len(listed) == len(set(listed)) == 6 + 2 + 2 * len(CHAIN)
    assert len(recent) == len(listed) == len(set(recent)), "none is listed twice before either"
    assert await pair.pull()
    assert pair.ours.replica.ledger.chain.head == version
    assert await pair.pull()
    assert pair.ours.anti_entropy.progress == (0, 0), "and nothing is requested again"


@pytest.mark.parametrize("page", [1, 2])
async def test_messages_that_cannot_be_taken_do_not_block_the_rest(monkeypatch, page):
    """Two nodes may hold different commits of a worker with too many: each is requested once."""
    monkeypatch.setattr(synchronise, "IDS_MAX", page)
    pair = Pair()
    greedy = WORLD.workers[1]
    pair.ours.take(GENESIS, *WORLD.chain(greedy, COMMITS_IN_FLIGHT_MAX))
    theirs = WORLD.chain(greedy, COMMITS_IN_FLIGHT_MAX, tokens=9)
    pair.theirs.take(GENESIS, *theirs, *chain(3)[1:], *CHAIN)
    assert await pair.pull()
    assert pair.ours.replica.ledger.commits.in_flight(WORKER.peer_id) == len(CHAIN)
    _, asked = pair.ours.anti_entropy.progress
    assert asked == COMMITS_IN_FLIGHT_MAX + 3 + len(CHAIN), "though versions move the pages"


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("depth", [2, 30])
async def test_another_chain_of_the_same_length_is_found_and_followed(depth, is_final):
    """The council gave the lead to another trainer while this node was away."""
    pair = Pair()
    common = chain(2)
    pair.ours.take(*common, *chain(depth, first=common[-1])[1:])
    theirs = chain(depth, trainer=1, first=common[-1], term=1)[1:]
    pair.theirs.take(*common)
    show_lead(WORLD, pair.theirs.replica, 1, common[-1])
    pair.theirs.take(*theirs)
    pair.ours.replica.advance(NOW)
    assert await pair.pull()
    assert pair.ours.replica.ledger.chain.version == 2 + depth, "no final page says so here"
    show_lead(WORLD, pair.ours.replica, 1, theirs[-1] if is_final else common[-1])
    for _ in range(4):
        pair.ours.replica.advance(NOW)
        assert await pair.pull()
    assert pair.ours.replica.ledger.chain.head.digest == theirs[-1].digest
    assert not pair.ours.replica.forked


async def _nothing(stream):
    await stream.close()


async def _huge(stream):
    await stream.write((1 << 30).to_bytes(4, "big"))
    await asyncio.sleep(60)


async def _no_list(stream):
    await read_frame(stream, 64)
    await write_frame(stream, encode({"ids": "none"}))


async def _bad_ids(stream):
    await read_frame(stream, 64)
    await write_frame(stream, encode({"ids": [bytes(31)]}))


async def _silent(_stream):
    await asyncio.sleep(3600)


async def _withheld(stream):
    await read_frame(stream, 64)
    await write_frame(stream, encode({"ids": [digest(b"1"), digest(b"2")]}))
    await asyncio.sleep(3600)


async def _forged(stream):
    await read_frame(stream, 64)
    await write_frame(stream, encode({"ids": [digest(b"1"), digest(b"2")]}))
    await read_frame(stream, 1 << 20)
    for _ in range(2):
        await write_frame(stream, b"\xc1")
    await asyncio.sleep(3600)


async def _oversize(stream):
    await read_frame(stream, 64)
    await write_frame(stream, encode({"ids": [digest(b"1")]}))
    await read_frame(stream, 1 << 20)
    await write_frame(stream, bytes(1 << 15))


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        (_nothing, None),
        (_silent, None),
        (_withheld, None),
        (_huge, "oversize"),
        (_no_list, "bad-fields"),
        (_bad_ids, "bad-fields"),
        (_forged, "wrong-kind"),
        (_oversize, "oversize"),
    ],
)
async def test_malformed_answer_is_blamed_and_does_not_synchronise(handler, fault):
    pair = Pair()
    clock = LoopClock()
    began = clock.now()
    assert not await pair.serve(handler)
    assert clock.now() - began <= SYNC.stall_seconds + 1
    assert not pair.ours.anti_entropy.synchronised
    assert pair.ours.accepted == []
    assert pair.ours.blamed == ([] if fault is None else [(THEIRS, fault)])


async def test_slow_answer_ends_at_the_deadline():
    async def drip(stream):
        await read_frame(stream, 64)
        await write_frame(stream, encode({"ids": [digest(bytes([n])) for n in range(200)]}))
        await read_frame(stream, 1 << 20)
        for n in range(200):
            await asyncio.sleep(SYNC.stall_seconds - 1)
            await write_frame(stream, WORLD.record(identity(str(n)), ("relay",)).envelope)

    pair = Pair()
    began = LoopClock().now()
    assert not await pair.serve(drip)
    assert LoopClock().now() - began <= EXCHANGE_SECONDS + 1
    assert pair.ours.accepted, "what came meanwhile is kept"


@pytest.mark.parametrize(
    "request_",
    [
        b"\xc1",
        encode({"version": 0}),
        encode({"skip": -1, "version": 0}),
        encode({"skip": 0, "version": -1}),
        encode({"skip": 2**53 + 1, "version": 0}),
        encode({"skip": 0, "version": 2**53 + 1}),
        encode({"skip": 0, "version": True}),
        encode({"skip": "0", "version": 0}),
        encode([0, 0]),
        bytes(100),
    ],
)
async def test_a_malformed_request_is_not_answered(request_):
    pair = Pair()
    await pair.theirs.anti_entropy.start()
    stream = await pair.ours.transport.open_stream(THEIRS, PROTOCOL)
    await write_frame(stream, request_)
    assert await stream.read(1) == b""
    assert [peer for peer, _ in pair.theirs.blamed] == [OURS]
    assert pair.theirs.streams == 0


async def test_pages_beyond_the_last_are_empty():
    pair = Pair()
    pair.theirs.take(*records(3))
    _, ids = await pair.request(skip=2**53, version=2**53)
    assert ids == ()
    assert pair.theirs.blamed == []


async def test_peer_that_does_not_read_its_answer_costs_a_deadline(monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_BYTES", 1 << 14)
    pair = Pair()
    pair.theirs.take(*records(200))  # more than the window
    stream, ids = await pair.request(skip=0, version=0)
    assert len(ids) == 200
    await write_frame(stream, encode({"ids": ids}))
    await asyncio.sleep(SYNC.stall_seconds - 1)
    assert pair.theirs.streams == 1
    await asyncio.sleep(2)
    assert pair.theirs.streams == 0


async def test_only_listed_messages_are_sent():
    pair = Pair()
    pair.theirs.take(GENESIS)
    stream, ids = await pair.request(skip=0, version=0)
    assert ids == (GENESIS.digest,)
    await write_frame(stream, encode({"ids": [digest(b"?"), GENESIS.digest]}))
    assert await stream.read(1) == b""


async def test_answers_respect_the_upload_cap(monkeypatch):
    """A roster full of Sybil keys takes megabytes, too much for a home connection."""
    taken, trusted, cap = [], {OURS: False}, UploadScheduler(None)
    pair = Pair(upload=cap, trust=Trust(trusted=trusted.__getitem__))
    made = records(60)
    pair.theirs.take(*validators(), *made)
    cap.piece_bytes_max = 1000

    async def take(count, **whose):
        taken.append((count, whose))

    cap.take = take
    assert await pair.pull()
    assert {str(whose) for _, whose in taken} == {str({"trusted": False, "messages": True})}
    counts = [count for count, _ in taken]
    held = (*validators(), *made)
    page_bytes = 4 + len(encode({"chains": 0, "ids": []}))
    page_bytes += 4 + len(encode({"ids": [signed.digest for signed in held]}))
    envelopes_bytes = sum(4 + len(signed.envelope) for signed in held)
    assert sum(counts) == page_bytes + envelopes_bytes
    assert max(counts) == 1000
    assert sum(count < 1000 for count in counts) <= 3, "pages, the list, and the last of the rest"

    taken.clear()
    trusted[OURS] = True
    pair.theirs.take(*records(61)[-1:])
    await asyncio.sleep(1)
    assert await pair.ours.anti_entropy.pull(THEIRS)
    assert taken
    assert all(whose["trusted"] for _, whose in taken)


async def test_streams_are_limited_per_peer_and_in_total(monkeypatch):
    monkeypatch.setattr(synchronise, "SYNC", replace(SYNC, streams_total=2))
    hub = Hub()
    server = Node(hub, THEIR_KEY)
    await server.anti_entropy.start()
    streams = []
    for name in ("a", "a", "b", "c"):
        peer = PeerId(name)
        transport = hub.transports.get(peer) or hub.transport(peer)
        hub.connect(peer, THEIRS)
        streams.append(await transport.open_stream(THEIRS, PROTOCOL))
        await asyncio.sleep(0.1)
    refused = [await asyncio.wait_for(streams[n].read(1), 1) for n in (1, 3)]
    assert refused == [b"", b""]
    assert server.streams == 2
    await asyncio.sleep(SYNC.stall_seconds)  # an idle client makes room again
    assert server.streams == 0


async def test_pulls_back_off_until_a_message_is_missing():
    hub = Hub()
    node, other = Node(hub, OUR_KEY), Node(hub, THEIR_KEY)
    await other.anti_entropy.start()
    await node.anti_entropy.start()
    asked, epoch_seconds = node.note_pulls(), WORLD.manifest.epochs.seconds
    running = asyncio.create_task(node.anti_entropy.run())
    await asyncio.sleep(3 * epoch_seconds)
    assert asked == [], "there is nobody"
    hub.connect(OURS, THEIRS)
    began = LoopClock().now()
    await node.peers.reach()
    await asyncio.sleep(40 * epoch_seconds)
    assert [round((at - began) / epoch_seconds) for _, at in asked] == [
        0,
        1,
        3,
        7,
        15,
        23,
        31,
        39,
    ]
    node.take(GENESIS)
    node.replica.receive(chain(2)[2].envelope, NOW)  # its parent is missing
    assert node.replica.behind
    del asked[:]
    await asyncio.sleep(12 * epoch_seconds)
    assert len(asked) >= 8, "twice per epoch once it is noticed"
    running.cancel()


async def test_a_missing_page_ends_a_long_pause():
    """A council member that lacks a page cannot vote."""
    hub = Hub()
    node, other = Node(hub, OUR_KEY), Node(hub, THEIR_KEY)
    WORLD.book.show(node.replica, 2)
    WORLD.book.show(other.replica, 4)
    for one in (node, other):
        await one.anti_entropy.start()
    hub.connect(OURS, THEIRS)
    asked, epoch_seconds = node.note_pulls(), WORLD.manifest.epochs.seconds
    running = asyncio.create_task(node.anti_entropy.run())
    await node.peers.reach()
    await asyncio.sleep(17 * epoch_seconds)  # 8 epochs pass between two pulls
    assert node.replica.pages.tip().epoch == 4
    WORLD.book.show(other.replica, 6, first=5)
    node.replica.pages.offer_page(WORLD.book.page(6))
    del asked[:]
    await asyncio.sleep(0.6 * epoch_seconds)
    assert len(asked) == 1
    assert node.replica.pages.tip().epoch == 6
    await asyncio.sleep(6 * epoch_seconds)
    assert len(asked) < 6, "the pauses grow again"
    running.cancel()


async def test_pages_that_are_not_notarised_come_with_their_votes(monkeypatch):
    monkeypatch.setitem(globals(), "NOW", WORLD.at(2))
    pair = Pair()
    for one in (pair.ours, pair.theirs):
        WORLD.book.show(one.replica, 1)
    page, votes = WORLD.book.page(2), WORLD.book.votes(2)
    quorum = pair.ours.replica.pages.council.quorum
    pair.theirs.take(page, *votes[: quorum - 1])
    pair.ours.take(page, votes[quorum - 1])
    assert await pair.pull()
    assert pair.ours.replica.pages.tip().epoch == 2
    assert pair.theirs.replica.pages.tip().epoch == 1


async def test_pages_of_past_epochs_without_enough_votes_are_not_listed(monkeypatch):
    pair = Pair()
    pair.theirs.take(WORLD.book.page(1), *WORLD.book.votes(1)[:2])
    assert len(await pair.listed()) == 3
    monkeypatch.setitem(globals(), "NOW", WORLD.at(4))
    assert await pair.listed() == []


async def test_node_pulls_from_three_peers_and_a_genesis_node_until_synchronised():
    hub = Hub()
    ours, *others = (
        Node(hub, key)
        for key in (
            OUR_KEY,
            THEIR_KEY,
            identity("third"),
            identity("fourth"),
            WORLD.validators[0],
        )
    )
    pulls = ours.note_pulls()
    for other in others:
        await other.anti_entropy.start()
    for other in others[:3]:
        hub.connect(OURS, other.transport.peer_id)
    validator = WORLD.validators[0]
    at = (f"/sim/{validator.peer_id}/p2p/{validator.peer_id}",)
    others[0].take(WORLD.record(validator, ("validator",), addresses=at))
    await ours.anti_entropy.start()
    await ours.peers.reach()
    tasks = [asyncio.create_task(ours.anti_entropy.run())]
    async with asyncio.timeout(WORLD.manifest.epochs.seconds):
        await ours.anti_entropy.wait_until_synchronised()
    asked = [peer for peer, _ in pulls]
    assert validator.peer_id in asked
    assert len(asked) >= 3
    tasks[0].cancel()
