import asyncio

import pytest

from node.context import NodeContext, Ports
from node.membership import announcer as module
from node.membership.admission import OwnAdmission
from node.membership.announcer import CALL_SECONDS, About, Announcer, NodeFacts
from node.membership.key_guard import KeyGuard
from protocol.core.rng import Rng
from protocol.core.types import Role, Topic
from protocol.membership.directory_buckets import Buckets
from protocol.messages import Hardware, NodeRecord, seal
from protocol.replica.replica import Replica
from protocol.run.manifest import RunManifest
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.ports.transport import TransportError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import Hub, LoopClock

pytestmark = pytest.mark.virtual

OWN = identity("validator 0")
LIFETIME_SECONDS = 50
REFRESH_SECONDS = 10


def manifest() -> RunManifest:
    """Return a run that has just begun in virtual time."""
    made = run_manifest()
    genesis = made.genesis.model_copy(update={"created_at": round(LoopClock().now())})
    return made.model_copy(update={"genesis": genesis})


class Clock:
    offset = 0.0

    def now(self):
        return LoopClock().now() + self.offset


class Network:
    """Accepts own messages as the own replica does, and records them."""

    def __init__(self, node):
        self.node = node
        self.said = []

    async def publish(self, topic, message):
        signed = seal(message, self.node.replica.run_id, OWN)
        received = self.node.replica.receive(signed.envelope, self.node.clock.now(), topic=topic)
        if received.fault is not None:
            raise RefusedError(str(received.fault))
        self.said.append(signed.envelope)
        return signed


RUNTIME = b"\x07" * 32
"""Digest of a scoring runtime."""

ABOUT = About(
    (Role.VALIDATOR,), Hardware(), reachable=True, software="test", scoring=RUNTIME, name="Éva"
)


class Node:
    """Announcer on a machine that keeps its store; ``begin`` restarts it."""

    def __init__(self, store=None, directory=None):
        self.world = World(manifest())
        self.replica = Replica(self.world.manifest, lambda *_: True)
        hub = Hub()
        self.transport = hub.transport(OWN.peer_id)
        self.store = MemoryStore() if store is None else store
        self.directory = (
            hub.directory.directory(OWN.peer_id, Rng(b"directory"))
            if directory is None
            else directory
        )
        self.clock = Clock()
        self.synchronised = asyncio.Event()
        self.synchronised.set()
        self.reachable, self.witnessed, self.relayed = True, {}, ()
        self.network = Network(self)
        self.begin()

    @property
    def said(self):
        return self.network.said

    def begin(self):
        ports = Ports(
            self.clock, Rng(b"1"), self.transport, self.directory, None, self.store, None, None
        )
        self.conditions = Conditions()
        context = NodeContext(OWN, self.replica, ports, None, ChangeSignal(), self.conditions)
        self.key_guard = KeyGuard(context)
        self.announcer = Announcer(
            context,
            self.key_guard,
            OwnAdmission(context, b""),
            ABOUT,
            self.network,
            self.facts,
            hint=lambda envelope: self.replica.receive(
                envelope, self.clock.now(), topic=Topic.ROSTER
            ),
            synchronised=self.synchronised.wait,
        )

    def facts(self):
        return NodeFacts(
            reachable=self.reachable,
            observations=self.witnessed,
            policy_version=7,
            relay_addresses=self.relayed,
        )

    def show(self, record):
        """Deliver an own record from a peer."""
        self.key_guard.shown(record, is_news=False)

    @property
    def record(self) -> NodeRecord:
        return self.replica.roster.get(OWN.peer_id).record.message

    async def run(self, seconds):
        task = asyncio.create_task(self.announcer.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_we_say_what_we_are_and_say_it_again():
    node = Node()
    assert node.announcer.addresses == ()
    await node.run(3 * REFRESH_SECONDS + 1)
    assert len(node.said) == 4
    assert node.record.roles == ("validator",)
    assert node.record.name == "Éva"
    assert node.record.policy_version == 7
    assert node.record.scoring == RUNTIME
    assert node.record.addresses == node.announcer.addresses != ()
    assert node.record.joined_at < node.record.sequence
    assert not node.record.leaving
    key = Buckets(node.replica.run_id).key(0, 0)
    (listed,) = (await node.directory.lookup(key)).values()
    assert listed == node.said[-1]
    await node.announcer.announce(leaving=True)
    assert node.record.leaving


async def test_what_others_found_of_us_and_we_of_them_is_told():
    node = Node()
    node.witnessed = {b"k" * 32: 40, b"l" * 32: 0}
    await node.run(1)
    assert node.record.reachable
    assert node.record.witnessed == (b"k" * 32, b"l" * 32)
    assert node.record.upload_classes == (40, 0)
    node.reachable = False
    await node.run(REFRESH_SECONDS + 1)
    assert not node.record.reachable


async def test_a_role_that_was_left_is_not_told_until_it_is_taken_up():
    node = Node()
    task = asyncio.create_task(node.run(3 * REFRESH_SECONDS))
    await asyncio.sleep(1)
    assert node.record.roles == ("validator",)
    node.conditions.resign(Role.VALIDATOR)
    await asyncio.sleep(REFRESH_SECONDS)
    assert node.record.roles == ("relay",), "it still carries what others need"
    node.conditions.take_up(Role.VALIDATOR)
    await asyncio.sleep(REFRESH_SECONDS)
    assert node.record.roles == ("validator",)
    await task


async def test_without_its_disk_a_node_goes_on_from_what_a_peer_shows_it():
    """Certificates that it signed before stay valid for nodes that join late."""
    before = Node()
    await before.run(REFRESH_SECONDS)
    record = before.replica.roster.get(OWN.peer_id).record
    await asyncio.sleep(2)
    node = Node()
    node.synchronised.clear()
    listens = node.key_guard.listen_seconds
    task = asyncio.create_task(node.run(listens + 4))
    await asyncio.sleep(1)
    assert node.said == [], "it would take the place of what a peer may know"
    node.show(record)
    node.synchronised.set()
    await asyncio.sleep(listens - 1)
    assert node.said == [], "another process may have the key, and be alive"
    await task
    assert len(node.said) == 1
    assert node.record.joined_at == before.record.joined_at
    assert node.record.sequence > record.message.sequence
    await asyncio.sleep(LIFETIME_SECONDS + 2)
    late = Node()
    late.show(node.replica.roster.get(OWN.peer_id).record)
    await late.run(1)
    assert late.record.joined_at == late.record.sequence, "nobody remembers it that long"


async def test_who_is_alone_says_so_after_an_epoch():
    node = Node()
    node.synchronised.clear()
    await node.run(node.replica.manifest.epochs.seconds - 0.5)
    assert node.said == []
    await node.run(node.replica.manifest.epochs.seconds + 1)
    assert len(node.said) == 1


async def test_a_short_break_is_none():
    """Members drawn into committees before a restart stay drawn after it."""
    node = Node()
    await node.run(1)
    joined_at, sequence = node.record.joined_at, node.record.sequence
    await asyncio.sleep(LIFETIME_SECONDS - 2)
    node.begin()
    await node.run(1)
    assert node.record.joined_at == joined_at
    assert node.record.sequence > sequence
    await asyncio.sleep(LIFETIME_SECONDS + 2)
    node.begin()
    await node.run(1)
    assert node.record.joined_at == node.record.sequence


@pytest.mark.parametrize("blank", [False, True])
async def test_who_said_that_it_leaves_has_been_away(blank):
    """Others drew committees without it meanwhile, and late nodes must draw the same."""
    node = Node()
    await node.run(1)
    await node.announcer.announce(leaving=True)
    left = node.replica.roster.get(OWN.peer_id).record
    await asyncio.sleep(LIFETIME_SECONDS / 2)
    if blank:
        node = Node()
        node.show(left)
    else:
        node.begin()
    await node.run(1)
    assert node.record.joined_at > left.message.sequence


async def test_who_leaves_and_comes_back_at_once_says_so_again_when_it_is_news():
    """Peers reject a second record within a pause, and the first one was a leaving record."""
    node = Node()
    await node.run(1)
    await node.announcer.announce(leaving=True)
    assert node.record.leaving
    node.begin()
    said = len(node.said)
    await node.run(node.replica.roster.pause_seconds + REFRESH_SECONDS - 0.1)
    assert not node.record.leaving
    assert len(node.said) == said + 2, "once it is news, at the usual pace"


async def test_without_our_disk_we_have_just_come():
    node = Node()
    await node.run(1)
    await asyncio.sleep(5)
    node.store = MemoryStore()
    node.begin()
    await node.run(1)
    assert node.record.joined_at == node.record.sequence


async def test_a_full_disk_does_not_silence_us():
    node = Node()

    async def full(_changes):
        raise StorageFullError("full")

    node.store.commit = full
    await node.run(1)
    assert len(node.said) == 1


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_clock_that_was_wrong_is_believed_again_when_it_is_right(seconds):
    node = Node()
    node.clock.offset = seconds
    await node.run(2 * REFRESH_SECONDS)
    node.clock.offset = 0.0
    node.said.clear()
    await node.run(1)
    fresh = Replica(node.world.manifest, lambda *_: True)
    assert fresh.receive(node.said[-1], LoopClock().now()).fault is None
    assert fresh.roster.live(LoopClock().now())


async def test_a_clock_that_steps_back_a_little_still_counts_up():
    node = Node()
    await node.run(1)
    first = node.record.sequence
    node.clock.offset = -2.0
    await node.run(1)
    assert node.said[-1] != node.said[0]
    assert node.key_guard.sequence == first + 1


async def test_addresses_that_no_record_holds_are_left_out():
    node = Node()

    async def addresses():
        return ["/x/" + "y" * 200, *(f"/memory/{n}/p2p/{OWN.peer_id}" for n in range(20))]

    node.transport.addresses = addresses
    await node.run(1)
    assert len(node.record.addresses) == 8
    assert all(len(address) <= 200 for address in node.record.addresses)


@pytest.mark.parametrize("hangs", [True, False])
async def test_while_the_transport_is_down_we_try_again_soon(hangs):
    node = Node()
    working = node.transport.addresses

    async def broken():
        if hangs:
            await asyncio.sleep(3600)
        raise TransportError("down")

    node.transport.addresses = broken
    with pytest.raises(TransportError):
        await node.announcer.announce()
    running = asyncio.create_task(node.announcer.run())
    await asyncio.sleep(CALL_SECONDS - 1)
    node.transport.addresses = working
    await asyncio.sleep(REFRESH_SECONDS + 2)
    assert node.said
    running.cancel()


async def test_our_own_replica_refuses_what_nobody_would_take(monkeypatch):
    monkeypatch.setattr(module, "PROTOCOL_VERSION", 99)
    node = Node()
    await node.announcer.announce()
    assert node.said == []


class Directory:
    """Directory that is slow, refuses records, or returns wrong ones."""

    def __init__(self, answer=None, *, hangs=False, taken=True):
        self.answer = answer or {}
        self.hangs = hangs
        self.taken = taken
        self.published = 0

    async def publish(self, _key, _value, _expires_at):
        self.published += 1
        if self.hangs:
            await asyncio.sleep(3600)
        return self.taken

    async def lookup(self, _key):
        if self.hangs:
            await asyncio.sleep(3600)
        return self.answer


@pytest.mark.parametrize("options", [{"hangs": True}, {"taken": False}])
async def test_a_bad_directory_costs_nothing_but_its_hints(options):
    node = Node(directory=Directory(**options))
    await node.run(3 * REFRESH_SECONDS + 1)
    assert len(node.said) == 4
    assert node.directory.published > 1


async def test_records_from_the_directory_pass_the_same_checks_and_nothing_else_does():
    node = Node()
    world = node.world
    good = world.record(identity("friend"), ("relay",))
    commit = world.commit(world.workers[0], checkpoint=world.genesis().digest)
    node.replica.receive(world.genesis().envelope, LoopClock().now())
    node.directory = Directory(
        {
            identity("friend").peer_id: good.envelope,
            identity("worker 0").peer_id: commit.envelope,
            identity("liar").peer_id: b"\xc1",
            identity("large").peer_id: bytes(1 << 20),
            OWN.peer_id: world.record(OWN, ("relay",)).envelope,
        }
    )
    node.begin()
    await node.run(1)
    assert node.replica.roster.get(good.signer) is not None
    assert node.replica.ledger.commits.entries == {}, "a commit is not for the directory to bring"
    assert node.record.roles == ("validator",)


async def test_a_huge_directory_is_not_read_to_the_end(monkeypatch):
    monkeypatch.setattr(module, "RECORDS_MAX", 10)
    node = Node()
    records = {f"m{n}": node.world.record(identity(f"m{n}"), ("relay",)) for n in range(30)}
    node.directory = Directory({key: record.envelope for key, record in records.items()})
    node.begin()
    await node.run(1)
    assert len(node.replica.roster.records()) == 11


async def test_a_record_that_is_refused_is_told_until_one_is_taken():
    node = Node()
    publish = node.network.publish

    async def refuse(_topic, _message):
        raise RefusedError("old-date: invited until epoch 3")

    node.network.publish = refuse
    await node.announcer.announce()
    assert "our record is refused: old-date" in str(node.conditions)
    node.network.publish = publish
    await node.announcer.announce()
    assert str(node.conditions) == ""


async def test_a_way_through_a_relay_is_told_soon_and_alone():
    node = Node()
    task = asyncio.create_task(node.announcer.run())
    await asyncio.sleep(1)
    node.relayed = ("/ip4/9.9.9.9/tcp/1/p2p/r/p2p-circuit/p2p/own",)
    node.announcer.renew()
    await asyncio.sleep(node.replica.roster.pause_seconds)
    assert node.record.addresses == node.announcer.addresses == node.relayed
    assert len(node.said) == 2
    await asyncio.sleep(REFRESH_SECONDS - 1)
    assert len(node.said) == 2, "the next one is due a refresh later"
    task.cancel()
