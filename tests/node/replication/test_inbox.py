"""Intake of messages from all sources."""

import asyncio
from types import SimpleNamespace

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import KeyGuard
from node.replication import inbox as module
from node.replication.inbox import COMPACT_EPOCHS, MessageIntake, MessageOrigin
from node.replication.message_log import MessageLog
from protocol.core.rng import Rng
from protocol.core.types import PeerId, Role, Topic, ValidationResult
from protocol.messages import PROTOCOL_VERSION
from roles.ports.storage import StorageFullError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, fingerprint, identity, run_manifest

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
COMMIT = WORLD.commit(WORKER)
SENDER = PeerId("sender")
ACCEPT, IGNORE, REJECT = ValidationResult.ACCEPT, ValidationResult.IGNORE, ValidationResult.REJECT


class Clock:
    at = WORLD.at(1)

    def now(self):
        return self.at


class Store(MemoryStore):
    full = False

    async def commit(self, changes):
        if self.full:
            raise StorageFullError("full")
        await super().commit(changes)


class Node:
    """Inbox of one node over a real replica and log; ``blamed`` has the faults of its peers."""

    def __init__(self, signer=OTHER, roles=(Role.VALIDATOR,), store=None, *, roster_at=0):
        self.replica = WORLD.replica(roster_at=roster_at)
        self.store, self.clock = store or Store(), Clock()
        self.blamed, self.heard = [], []
        peers = SimpleNamespace(blame=lambda peer, fault: self.blamed.append((peer, fault.code)))
        ports = Ports(self.clock, Rng(b"1"), None, None, None, self.store, None, None)
        self.context = NodeContext(signer, self.replica, ports, peers, ChangeSignal(), Conditions())
        self.log, self.versions = MessageLog(self.store), ChangeSignal()
        self.key_guard = KeyGuard(self.context)
        self.inbox = MessageIntake(self.context, self.log, self.key_guard, roles, self.versions)
        self.inbox.listen(lambda received, source: self.heard.append((received.result, source)))

    def take(self, signed, source=MessageOrigin.GOSSIP, **options):
        return self.inbox.take(signed.envelope, source, **options).result

    async def stored(self):
        await self.log.flush()
        return list(self.store.tables.get("messages", {}).values())


async def test_what_was_accepted_is_written_and_told():
    node = Node()
    assert node.take(COMMIT) is ACCEPT
    assert node.context.changes.count == 1
    assert node.take(COMMIT, MessageOrigin.ANTI_ENTROPY) is IGNORE
    assert node.context.changes.count == 1
    assert await node.stored() == [COMMIT.envelope]
    assert node.heard == [(ACCEPT, MessageOrigin.GOSSIP), (IGNORE, MessageOrigin.ANTI_ENTROPY)]


async def test_a_commit_that_came_too_late_is_written_with_its_outcome_and_not_before():
    node = Node()
    node.clock.at = WORLD.at(5)
    certificate = WORLD.certificate(COMMIT)
    assert node.take(COMMIT, MessageOrigin.GOSSIP) is IGNORE
    assert node.take(COMMIT, MessageOrigin.ANTI_ENTROPY) is ACCEPT
    assert await node.stored() == []
    assert node.take(certificate, MessageOrigin.ANTI_ENTROPY) is ACCEPT
    assert await node.stored() == [COMMIT.envelope, certificate.envelope]


async def test_records_come_again_soon_and_are_neither_written_nor_told():
    node = Node()
    record = WORLD.record(identity("friend"), ("relay",))
    assert node.take(record) is ACCEPT
    assert node.replica.roster.get(record.signer) is not None
    await node.inbox.record(WORLD.record(OTHER, ("relay",)))
    assert await node.stored() == []
    assert node.context.changes.count == node.versions.count == 0


@pytest.mark.parametrize(
    ("roles", "signer", "woken"),
    [
        ((Role.VALIDATOR,), OTHER, [1, 2, 3]),
        ((Role.TRAINER,), OTHER, [1, 2, 3]),
        ((Role.INFERENCE,), OTHER, [0, 0, 1]),
        ((Role.RELAY,), WORKER, [0, 1, 2]),
    ],
)
async def test_roles_are_woken_by_what_concerns_them(roles, signer, woken):
    node = Node(signer, roles)
    counts = []
    for signed in (COMMIT, WORLD.certificate(COMMIT), WORLD.checkpoint(WORLD.genesis())):
        assert node.take(signed) is ACCEPT
        counts.append(node.context.changes.count)
    assert counts == woken
    assert node.versions.count == 1


async def test_a_restart_finds_what_was_accepted_and_tells_nobody():
    node = Node()
    for signed in (COMMIT, WORLD.certificate(COMMIT)):
        node.take(signed)
    await node.log.flush()
    again = Node(store=node.store)
    await again.inbox.restore()
    assert fingerprint(again.replica) == fingerprint(node.replica)
    assert again.heard == []
    assert await again.stored() == await node.stored()


async def test_a_long_log_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(module, "RESTORED_AT_ONCE", 1)
    node = Node()
    for signed in (COMMIT, WORLD.certificate(COMMIT)):
        node.take(signed)
    await node.log.flush()
    again = Node(store=node.store)
    restoring = asyncio.create_task(again.inbox.restore())
    await asyncio.sleep(0)
    assert not restoring.done()
    await restoring
    assert fingerprint(again.replica) == fingerprint(node.replica)


@pytest.mark.parametrize("source", [MessageOrigin.DIRECT, MessageOrigin.ANTI_ENTROPY])
async def test_the_sender_is_told_on_and_by_gossip_the_router_does_that(source):
    node = Node()
    wrong = WORLD.commit(WORKER, sequences=9)
    assert node.take(wrong, source, sender=SENDER) is REJECT
    assert node.blamed == [(SENDER, "bad-counts")]
    assert node.take(wrong, MessageOrigin.GOSSIP) is REJECT
    assert node.take(wrong, MessageOrigin.DIRECTORY, topic=Topic.ROSTER) is REJECT
    assert len(node.blamed) == 1
    assert await node.stored() == []


async def test_where_one_kind_is_in_place_no_other_is_taken():
    node = Node()
    assert node.take(COMMIT, MessageOrigin.DIRECTORY, topic=Topic.ROSTER) is REJECT
    assert node.replica.ledger.commits.entries == {}
    assert node.take(COMMIT, MessageOrigin.GOSSIP, topic=Topic.COMMITS) is ACCEPT


async def test_what_waited_is_taken_when_it_can_be():
    node = Node()
    certificate = WORLD.certificate(COMMIT)
    assert node.take(certificate) is IGNORE
    node.take(COMMIT)
    node.inbox.advance()
    assert node.heard[-1] == (ACCEPT, MessageOrigin.WAITED)
    assert await node.stored() == [COMMIT.envelope, certificate.envelope]
    assert node.context.changes.count == 2


async def test_a_commit_of_ours_that_we_do_not_know_tells_that_our_disk_is_lost():
    node = Node(WORKER)
    await node.key_guard.begin()
    node.take(COMMIT, MessageOrigin.ANTI_ENTROPY)
    assert node.key_guard.may_have_evaluated(0)
    fresh = Node(WORKER)
    await fresh.inbox.record(COMMIT)
    fresh.take(COMMIT, MessageOrigin.ANTI_ENTROPY)
    assert not fresh.key_guard.may_have_evaluated(0), "that was us"


async def test_members_of_another_protocol_version_are_noted_and_bounded(monkeypatch):
    monkeypatch.setattr(module, "OTHER_VERSIONS_MAX", 2)
    node = Node()
    untrusted = [identity(f"untrusted {n}") for n in range(3)]
    for number, one in enumerate(untrusted):
        version = PROTOCOL_VERSION + 1 + number
        record = WORLD.record(one, ("relay",), protocol_version=version)
        assert node.take(record, MessageOrigin.DIRECT, sender=SENDER) is IGNORE
    assert node.inbox.other_versions == {
        untrusted[1].peer_id: PROTOCOL_VERSION + 2,
        untrusted[2].peer_id: PROTOCOL_VERSION + 3,
    }


async def test_the_log_is_written_and_kept_short_while_time_passes():
    node = Node()
    loop, epoch_seconds = asyncio.get_running_loop(), WORLD.manifest.epochs.seconds
    began, node.clock.now = loop.time(), lambda: WORLD.at(0) + loop.time() - began
    running = asyncio.create_task(node.inbox.run())
    node.take(COMMIT)
    await asyncio.sleep(epoch_seconds / 2)
    assert list(node.store.tables["messages"].values()) == [COMMIT.envelope]
    await asyncio.sleep(COMPACT_EPOCHS * epoch_seconds)
    assert list(node.store.tables["messages"].values()) == []
    running.cancel()


async def test_a_full_disk_is_told_until_there_is_room():
    node = Node()
    running = asyncio.create_task(node.inbox.run())
    node.store.full = True
    node.take(COMMIT)
    await asyncio.sleep(WORLD.manifest.epochs.seconds)
    assert "disk full" in str(node.context.conditions)
    node.store.full = False
    await asyncio.sleep(WORLD.manifest.epochs.seconds)
    assert str(node.context.conditions) == ""
    assert list(node.store.tables["messages"].values()) == [COMMIT.envelope]
    running.cancel()
