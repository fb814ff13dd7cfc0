import asyncio
from dataclasses import replace

import pytest

from node.replication import anti_entropy as synchronise
from node.replication.anti_entropy import EXCHANGE_SECONDS, STALL_SECONDS, AntiEntropy
from node.streams.framing import read_frame, write_frame
from node.streams.protocols import SYNC
from protocol.codec import decode, encode
from protocol.crypto import digest
from protocol.replica import Replica
from protocol.types import PeerId, ValidationResult
from tests.worlds.memory_transport import Hub, LoopClock, run_virtual
from tests.worlds.messages import World, fingerprint, identity, run_manifest

WORLD = World(run_manifest(trainers=2))
WORKER = WORLD.workers[0]
CHAIN = WORLD.chain(WORKER, 3)
GENESIS = WORLD.genesis()
NOW = WORLD.at(1)
OURS, THEIRS = PeerId("ours"), PeerId("theirs")


class Fixed:
    def now(self):
        return NOW


class Node:
    def __init__(self, hub, peer, *, blank=False):
        self.transport = hub.transport(peer)
        self.replica = Replica(WORLD.manifest, lambda *_: True)
        self.accepted = []
        self.anti_entropy = AntiEntropy(
            self.transport,
            self.replica,
            Fixed(),
            lambda envelope, received: self.accepted.append((envelope, received)),
            blank=blank,
        )

    def take(self, *messages):
        for signed in messages:
            assert self.replica.receive(signed.envelope, NOW).result is ValidationResult.ACCEPT


class Pair:
    def __init__(self):
        self.hub = Hub()
        self.ours, self.theirs = Node(self.hub, OURS), Node(self.hub, THEIRS)
        self.hub.connect(OURS, THEIRS)

    async def pull(self):
        await self.theirs.anti_entropy.start()
        return await self.ours.anti_entropy.pull(THEIRS)

    async def serve(self, handler):
        """Have them answer otherwise than the protocol says."""
        await self.theirs.transport.handle(self.ours.anti_entropy._protocol, handler)
        return await self.ours.anti_entropy.pull(THEIRS)


def chain(length, trainer=0, first=GENESIS, **changes):
    versions = [first]
    for _ in range(length):
        versions.append(WORLD.checkpoint(versions[-1], trainer, **changes))
    return versions


def records(count):
    return [WORLD.record(identity(f"stranger {n}"), ("relay",)) for n in range(count)]


def validators():
    return [WORLD.record(one, ("validator",)) for one in WORLD.validators]


def test_a_newcomer_takes_all_that_matters():
    async def scenario():
        pair = Pair()
        pair.theirs.take(*validators(), *chain(3), *CHAIN, *records(2))
        pair.theirs.take(WORLD.certificate(CHAIN[0]))
        assert await pair.pull()
        assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)
        assert pair.ours.anti_entropy.synchronised
        assert len(pair.ours.accepted) == 6 + 4 + 3 + 1 + 2
        assert await pair.pull()
        assert len(pair.ours.accepted) == 6 + 4 + 3 + 1 + 2, "the second time there is no news"

    run_virtual(scenario())


@pytest.mark.parametrize("page", [1, 3, 8])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_long_history_comes_page_by_page(monkeypatch, page, batch):
    monkeypatch.setattr(synchronise, "IDS_MAX", page)
    monkeypatch.setattr(synchronise, "ENVELOPES_MAX", batch)

    async def scenario():
        pair = Pair()
        pair.theirs.take(*validators(), *chain(5), *CHAIN, *records(6))
        pair.ours.take(*validators()[:2], *records(3))
        for _ in range(3):  # the pages move while versions come
            assert await pair.pull()
        assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)

    run_virtual(scenario())


def test_strangers_records_come_last(monkeypatch):
    """Else whoever makes thousands of keys would keep the versions from newcomers."""
    monkeypatch.setattr(synchronise, "IDS_MAX", 16)

    async def scenario():
        pair = Pair()
        pair.theirs.take(*records(40), *validators(), *chain(2), *CHAIN)
        listed = [signed.digest for signed in synchronise._current(pair.theirs.replica, 0)]
        assert {signed.digest for signed in records(40)} == set(listed[-40:])
        assert await pair.pull()
        assert fingerprint(pair.ours.replica) == fingerprint(pair.theirs.replica)

    run_virtual(scenario())


def test_what_we_cannot_take_does_not_keep_the_rest_from_us(monkeypatch):
    """Two nodes may each hold one of two messages of a liar: it is asked for once in a pull."""
    monkeypatch.setattr(synchronise, "ENVELOPES_MAX", 2)

    async def scenario():
        pair = Pair()
        other = WORLD.checkpoint(GENESIS, index_bytes=99)
        pair.ours.take(GENESIS, other)
        pair.theirs.take(GENESIS, WORLD.checkpoint(GENESIS), *CHAIN)
        assert await pair.pull()
        assert len(pair.ours.replica.ledger.entries) == 3

    run_virtual(scenario())


@pytest.mark.parametrize("depth", [2, 30])
def test_another_chain_of_the_same_length_is_found_and_followed(depth):
    """What a partition leaves: both sides went on from one version, one of them by right."""

    async def scenario():
        pair = Pair()
        common = chain(2)
        pair.ours.take(*common, *chain(depth, first=common[-1])[1:])
        theirs = chain(depth, trainer=1, first=common[-1], term=1)[1:]
        pair.theirs.take(*common, *theirs)
        for _ in range(4):
            assert await pair.pull()
            pair.ours.replica.advance(NOW)
        assert pair.ours.replica.ledger.head.digest == theirs[-1].digest
        assert not pair.ours.replica.forked

    run_virtual(scenario())


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
    "handler", [_nothing, _huge, _no_list, _bad_ids, _silent, _forged, _oversize]
)
def test_who_answers_nonsense_has_told_us_nothing(handler):
    async def scenario():
        pair = Pair()
        clock = LoopClock()
        began = clock.now()
        assert not await pair.serve(handler)
        assert clock.now() - began <= STALL_SECONDS + 1
        assert not pair.ours.anti_entropy.synchronised
        assert pair.ours.accepted == []

    run_virtual(scenario())


def test_who_drips_is_left_after_a_while():
    async def drip(stream):
        await read_frame(stream, 64)
        await write_frame(stream, encode({"ids": [digest(bytes([n])) for n in range(200)]}))
        await read_frame(stream, 1 << 20)
        for n in range(200):
            await asyncio.sleep(STALL_SECONDS - 1)
            await write_frame(stream, WORLD.record(identity(str(n)), ("relay",)).envelope)

    async def scenario():
        pair = Pair()
        began = LoopClock().now()
        assert not await pair.serve(drip)
        assert LoopClock().now() - began <= EXCHANGE_SECONDS + 1
        assert pair.ours.accepted, "what came meanwhile is kept"

    run_virtual(scenario())


@pytest.mark.parametrize(
    "request_",
    [
        b"\xc1",
        encode({"version": 0}),
        encode({"skip": -1, "version": 0}),
        encode({"skip": 0, "version": -1}),
        encode({"skip": 0, "version": True}),
        encode({"skip": "0", "version": 0}),
        encode([0, 0]),
        bytes(100),
    ],
)
def test_a_malformed_request_is_not_answered(request_):
    async def scenario():
        pair = Pair()
        await pair.theirs.anti_entropy.start()
        stream = await pair.ours.transport.open_stream(THEIRS, pair.ours.anti_entropy._protocol)
        await write_frame(stream, request_)
        assert await stream.read(1) == b""
        assert pair.theirs.anti_entropy._bounded._serving == {}

    run_virtual(scenario())


def test_only_what_was_listed_is_sent():
    async def scenario():
        pair = Pair()
        pair.theirs.take(GENESIS)
        await pair.theirs.anti_entropy.start()
        stream = await pair.ours.transport.open_stream(THEIRS, pair.ours.anti_entropy._protocol)
        await write_frame(stream, encode({"skip": 0, "version": 0}))
        ids = decode(await read_frame(stream, 1 << 20), bytes_max=1 << 20)["ids"]
        assert ids == (GENESIS.digest,)
        await write_frame(stream, encode({"ids": [digest(b"?"), GENESIS.digest]}))
        assert await stream.read(1) == b""

    run_virtual(scenario())


def test_a_peer_is_served_once_at_a_time_and_only_so_many(monkeypatch):
    monkeypatch.setattr(synchronise, "SYNC", replace(SYNC, streams_total=2))

    async def scenario():
        hub = Hub()
        server = Node(hub, THEIRS)
        await server.anti_entropy.start()
        protocol = server.anti_entropy._protocol
        streams = []
        for name in ("a", "a", "b", "c"):
            peer = PeerId(name)
            transport = hub.transports.get(peer) or hub.transport(peer)
            hub.connect(peer, THEIRS)
            streams.append(await transport.open_stream(THEIRS, protocol))
            await asyncio.sleep(0.1)
        refused = [await asyncio.wait_for(streams[n].read(1), 1) for n in (1, 3)]
        assert refused == [b"", b""]
        assert list(server.anti_entropy._bounded._serving) == ["a", "b"]
        await asyncio.sleep(STALL_SECONDS)  # who asks and says nothing makes room again
        assert server.anti_entropy._bounded._serving == {}

    run_virtual(scenario())


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("joined_epoch", [0, 1])
def test_a_node_that_lost_its_disk_meets_itself(joined_epoch, announced, blank):
    """A peer still holds the record of a life before; an older one of this life is no news."""

    async def scenario():
        hub, us = Hub(), WORLD.workers[1]
        ours, theirs = Node(hub, us.peer_id, blank=blank), Node(hub, THEIRS)
        hub.connect(us.peer_id, THEIRS)
        joined_at = round(WORLD.at(joined_epoch) * 1000)
        if announced:
            ours.take(WORLD.record(us, ("inference",), epoch=1, joined_at=joined_at))
        former = WORLD.record(us, ("inference",), epoch=0)
        theirs.take(former)
        await theirs.anti_entropy.start()
        assert ours.anti_entropy.former is None
        assert await ours.anti_entropy.pull(THEIRS)
        lost = blank and (joined_epoch == 1 or not announced)
        assert ours.anti_entropy.former == (former if lost else None)

    run_virtual(scenario())
