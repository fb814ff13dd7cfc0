import asyncio

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import KeyGuard
from node.network.blobs.exchange import BlobExchange
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.framing import write_frame
from node.network.streams.protocols import MESSAGE
from node.replication.anti_entropy import AntiEntropy
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.message_log import MessageLog
from node.replication.rollout_bodies import RolloutBodies
from node.replication.swarm_client import SEND_SECONDS, SwarmClient
from protocol.core.rng import Rng
from protocol.core.types import Role, Topic, ValidationResult
from protocol.messages import ENVELOPE_BYTES_MAX, RolloutCommit
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryBlobs, MemoryStore
from tests.worlds.messages import World, run_manifest
from tests.worlds.network import Hub, LoopClock

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
NOW = WORLD.at(0)
COMMIT = WORLD.commit(WORKER)


class Fixed:
    def now(self):
        return NOW


class Store(MemoryStore):
    full = False

    async def commit(self, changes):
        await asyncio.sleep(0.1)
        if self.full:
            raise StorageFullError("full")
        await super().commit(changes)


class Node:
    def __init__(self, hub, signer):
        self.peer = signer.peer_id
        self.transport = hub.transport(self.peer)
        self.replica = WORLD.replica()
        self.store, self.blobs, self.changes = Store(), MemoryBlobs(), ChangeSignal()
        self.accepted, self.heard = [], []
        self.peers = ConnectionManager(
            self.transport, LoopClock(), Rng(b"1"), [], roster=self.replica.roster
        )
        ports = Ports(Fixed(), Rng(b"2"), self.transport, None, self.blobs, self.store, None, None)
        context = self.context = NodeContext(
            signer, self.replica, ports, self.peers, self.changes, Conditions()
        )
        self.gossip = Gossip(self.peers, signer, LoopClock(), Rng(signer.public_key))
        self.exchange = BlobExchange(self.peers, self.blobs)
        key_guard = KeyGuard(context)
        self.inbox = MessageIntake(
            context, MessageLog(self.store), key_guard, (Role.VALIDATOR,), ChangeSignal()
        )
        self.inbox.listen(self.note)
        anti_entropy = AntiEntropy(context, self.inbox, UploadScheduler(None))
        self.network = SwarmClient(
            context,
            self.inbox,
            self.gossip,
            RolloutBodies(self.replica, self.blobs, self.exchange),
            anti_entropy,
            key_guard,
        )

    def note(self, received, source):
        self.heard.append(source)
        if received.result is ValidationResult.ACCEPT and source is not MessageOrigin.OWN:
            self.accepted.append(received.signed.envelope)

    async def start(self):
        await self.exchange.start()
        await self.network.start()
        await self.gossip.start()
        self.running = asyncio.create_task(self.peers.run())

    async def stop(self):
        self.running.cancel()
        await self.gossip.stop()

    @property
    def stored(self):
        return list(self.store.tables.get("messages", {}).values())


async def pair():
    hub = Hub()
    ours, theirs = Node(hub, WORKER), Node(hub, OTHER)
    hub.connect(ours.peer, theirs.peer)
    for node in (ours, theirs):
        await node.start()
    await asyncio.sleep(5)  # the meshes form
    return hub, ours, theirs


async def test_the_slot_of_a_published_commit_is_stored_as_used():
    _, ours, theirs = await pair()
    await ours.network.publish(Topic.COMMITS, COMMIT.message)
    assert ours.network.first_slot == COMMIT.message.slot + 1
    restarted = KeyGuard(ours.context)
    assert restarted.first_slot == COMMIT.message.slot + 1
    assert theirs.network.first_slot == 0
    for node in (ours, theirs):
        await node.stop()


async def test_published_message_is_stored_applied_and_accepted_by_peers():
    _, ours, theirs = await pair()
    seen = ours.changes.count
    signed = await ours.network.publish(Topic.COMMITS, COMMIT.message)
    assert ours.stored == [signed.envelope]
    assert signed.digest in ours.replica.ledger.commits.entries
    assert ours.changes.count > seen
    await asyncio.sleep(2)
    assert theirs.accepted == [signed.envelope]
    assert theirs.heard == [MessageOrigin.GOSSIP]
    await ours.network.announce(Topic.COMMITS, signed.envelope)
    await asyncio.sleep(2)
    assert len(theirs.accepted) == 1
    for node in (ours, theirs):
        await node.stop()


async def test_message_that_is_not_stored_is_not_published():
    _, ours, theirs = await pair()
    ours.store.full = True
    with pytest.raises(StorageFullError):
        await ours.network.publish(Topic.COMMITS, COMMIT.message)
    ours.store.full = False
    other = await ours.network.publish(
        Topic.COMMITS, COMMIT.message.model_copy(update={"epoch": 1})
    )
    await asyncio.sleep(2)
    assert ours.stored == theirs.accepted == [other.envelope]
    for node in (ours, theirs):
        await node.stop()


async def test_message_rejected_by_own_replica_is_not_stored():
    _, ours, theirs = await pair()
    wrong = COMMIT.message.model_copy(update={"sequences": 9})
    with pytest.raises(RefusedError, match="bad-counts"):
        await ours.network.record(wrong)
    await ours.network.record(COMMIT.message)
    with pytest.raises(RefusedError, match="no longer news"):
        await ours.network.record(COMMIT.message)
    assert ours.stored == [ours.replica.ledger.commits.entries[COMMIT.digest].commit.envelope]
    assert theirs.accepted == []
    for node in (ours, theirs):
        await node.stop()


@pytest.mark.parametrize("full", [False, True])
async def test_concurrent_publication_of_a_message_happens_at_most_once(full):
    _, ours, theirs = await pair()
    ours.store.full = full
    both = await asyncio.gather(
        *(ours.network.record(COMMIT.message) for _ in range(2)), return_exceptions=True
    )
    if full:
        assert [type(one) for one in both] == [StorageFullError] * 2
        assert COMMIT.digest not in ours.replica.ledger.commits.entries
    else:
        assert both[0] == COMMIT
        assert isinstance(both[1], RefusedError)
        assert ours.stored == [COMMIT.envelope]
    for node in (ours, theirs):
        await node.stop()


async def test_a_message_is_handed_to_one_peer():
    hub, ours, theirs = await pair()
    verdict = WORLD.verdict(WORLD.validators[0], COMMIT)
    theirs.replica.receive(COMMIT.envelope, NOW)
    assert await ours.network.send(theirs.peer, verdict.envelope)
    assert theirs.accepted == [verdict.envelope]
    assert await ours.network.send(theirs.peer, b"nonsense"), "it was delivered"
    hub.stall(theirs.peer)
    began = LoopClock().now()
    assert not await ours.network.send(theirs.peer, verdict.envelope)
    assert LoopClock().now() - began <= SEND_SECONDS + 1
    assert not await ours.network.send(WORLD.validators[0].peer_id, verdict.envelope)
    for node in (ours, theirs):
        await node.stop()


@pytest.mark.parametrize("sent", [b"", b"\xff\xff\xff\xff", b"\0\0\x10\0abc"])
async def test_malformed_message_is_not_answered(sent):
    _, ours, theirs = await pair()
    stream = await ours.transport.open_stream(theirs.peer, MESSAGE.on(WORLD.run_id))
    await stream.write(sent)
    await asyncio.sleep(SEND_SECONDS + 1)
    assert await stream.read(1) == b""
    assert theirs.accepted == []
    for node in (ours, theirs):
        await node.stop()


async def test_a_peer_has_so_many_messages_received_at_once():
    _, ours, theirs = await pair()
    opened = [
        await ours.transport.open_stream(theirs.peer, MESSAGE.on(WORLD.run_id))
        for _ in range(MESSAGE.streams_per_peer)
    ]
    theirs.replica.receive(COMMIT.envelope, NOW)
    verdict = WORLD.verdict(WORLD.validators[0], COMMIT)
    assert not await ours.network.send(theirs.peer, verdict.envelope)
    for stream in opened:
        await stream.close()
    await asyncio.sleep(0.1)
    assert await ours.network.send(theirs.peer, verdict.envelope)
    for node in (ours, theirs):
        await node.stop()


async def test_a_peer_that_does_not_read_its_answer_costs_a_deadline():
    hub, ours, theirs = await pair()
    stream = await ours.transport.open_stream(theirs.peer, MESSAGE.on(WORLD.run_id))
    await write_frame(stream, COMMIT.envelope)
    hub.stall(ours.peer)
    await asyncio.sleep(SEND_SECONDS + 1)
    assert theirs.accepted == [COMMIT.envelope]
    for node in (ours, theirs):
        await node.stop()


async def test_an_oversize_message_is_our_own_fault():
    _, ours, theirs = await pair()
    huge = RolloutCommit.model_construct(**COMMIT.message.model_dump() | {"body": bytes(1 << 15)})
    with pytest.raises(ValueError, match=str(ENVELOPE_BYTES_MAX)):
        await ours.network.record(huge)
    assert ours.stored == []
    for node in (ours, theirs):
        await node.stop()
