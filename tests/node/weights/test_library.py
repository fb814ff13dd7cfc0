"""Policy library: downloads between machines, full disks, retention."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from node.context import Ports
from node.network.blobs.exchange import BlobExchange
from node.network.connections.manager import ConnectionManager
from node.weights import downloads
from node.weights.downloads import Downloads
from node.weights.library import PolicyLibrary
from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.core.types import Role, ValidationResult, Version
from protocol.replica.replica import Replica
from protocol.shardcast import index as shard_index
from protocol.shardcast.source_history import SourceReputation
from roles.ports.engines import Policy
from roles.ports.storage import Owner, Purpose
from roles.runtime.context import ChangeSignal, Conditions
from simulations.ports.storage import Disk
from tests.worlds.disks import MemoryBlobs, MemoryFiles, MemoryStore
from tests.worlds.leads import show_lead
from tests.worlds.messages import World, run_manifest
from tests.worlds.network import Hub, LoopClock, address, eventually

pytestmark = pytest.mark.virtual

SHARDS = {"shard_bytes": 8192, "chunk_bytes": 2048, "versions_kept": 4, "stripes": 2}


class Blobs(MemoryBlobs):
    """Blobs of which some are ``withheld``: promised to every peer, and never delivered."""

    def __init__(self, disk):
        super().__init__(disk)
        self.withheld = {}

    async def stream(self, digest, offset, length):
        if digest in self.withheld:
            await asyncio.Event().wait()
        async with aclosing(super().stream(digest, offset, length)) as pieces:
            async for piece in pieces:
                yield piece


class NotedDownloads(Downloads):
    """Downloads, with what was begun and what was cancelled, by index."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.begun, self.cancelled = {}, []

    def make(self, weights, *arguments):
        download = self.begun[weights.index_digest] = super().make(weights, *arguments)
        run = download.run

        async def noted(*arguments):
            try:
                return await run(*arguments)
            except asyncio.CancelledError:
                self.cancelled.append(weights.index_digest)
                raise

        download.run = noted
        return download


class Node:
    """Policy library on a machine; ``restart`` begins another life."""

    def __init__(self, swarm, identity, role):
        self.swarm = swarm
        self.identity = identity
        self.role = role
        self.directory = swarm.directory / identity.peer_id
        self.directory.mkdir()
        self.transport = swarm.hub.transport(identity.peer_id)
        self.disk = Disk()
        self.store, self.blobs = MemoryStore(self.disk), Blobs(self.disk)
        self.replica = Replica(swarm.world.manifest, lambda *_: True)
        self.peers = ConnectionManager(
            self.transport, LoopClock(), Rng(b"1"), [], self.replica.roster
        )
        self.exchange = BlobExchange(self.peers, self.blobs)
        self.ports = Ports(
            clock=LoopClock(),
            rng=Rng(b"2"),
            transport=self.transport,
            directory=None,
            blobs=self.blobs,
            store=self.store,
            files=MemoryFiles(
                self.directory, self.directory / "genesis", self.directory / "task", self.blobs
            ),
            background=None,
        )
        self.conditions = Conditions()
        self.running = None

    async def start(self):
        await self.exchange.start()
        self.looking = asyncio.create_task(self.peers.run())
        await self.restart()

    async def restart_alone(self):
        """Restart with the known versions but without a roster, as after a crash."""
        before = self.replica
        self.replica = Replica(before.manifest, lambda *_: True)
        for entry in before.ledger.chain.checkpoints:
            self.replica.receive(entry.manifest.envelope, LoopClock().now())
        await self.restart()

    async def restart(self):
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
        self.downloads = NotedDownloads(self.ports, self.replica, self.exchange)
        self.library = PolicyLibrary(
            self.ports,
            self.replica,
            self.exchange,
            self.downloads,
            ChangeSignal(),
            self.conditions,
        )
        await self.library.restore()
        self.running = asyncio.create_task(self.library.run())

    def take(self, signed, relay=ValidationResult.ACCEPT):
        assert self.replica.receive(signed.envelope, LoopClock().now()).result is relay
        self.library.news.notify()

    @property
    def held(self):
        """The versions that the library holds."""
        newest = self.replica.ledger.chain.version
        return [version for version in range(newest + 1) if self.library.get(version)]

    @property
    def begun(self):
        """The versions whose files the library has begun to fetch, in order."""
        entries = (entry.manifest.message for entry in self.replica.ledger.chain.checkpoints)
        versions = {message.index: message.version for message in entries}
        return [versions[index] for index in self.downloads.begun if index in versions]

    def holds(self, version):
        policy = self.library.get(version)
        return policy is not None and policy.path.read_bytes() == weights(version)


def now_ms():
    return LoopClock().now() * 1000


def stored_for(node, purpose):
    return {owner.subject for owner in node.blobs.owners(purpose)}


def weights(version):
    return Rng(str(version).encode()).bytes(20_000)


class Swarm:
    """A trainer and its followers, all connected and on each other's rosters."""

    def __init__(self, directory, followers=2, trainers=1, **shardcast):
        self.directory = directory
        self.hub = Hub()
        made = run_manifest(trainers=trainers, shardcast=SHARDS | shardcast)
        policy = self.first_policy().hex()
        genesis = made.genesis.model_copy(
            update={"created_at": round(LoopClock().now()), "policy": policy}
        )
        self.world = World(made.model_copy(update={"genesis": genesis}))
        self.trainers = [Node(self, one, Role.TRAINER) for one in self.world.trainers]
        self.followers = [
            Node(self, one, Role.VALIDATOR) for one in self.world.validators[:followers]
        ]
        self.nodes = [*self.trainers, *self.followers]
        self.head = None

    @staticmethod
    def first_policy():
        return digest(weights(0))

    async def start(self):
        for node in self.nodes:
            await node.start()
        self.introduce()

    def introduce(self, *nodes, **changes):
        """Make these nodes, or all, live members now."""
        now = LoopClock().now()
        for node in nodes or self.nodes:
            if node.identity.peer_id not in self.hub.transports:
                continue
            fields = {
                "sequence": round(now * 1000),
                "addresses": (address(node.identity.peer_id),),
                "policy_version": node.library.newest_version(),
            }
            record = self.world.record(node.identity, (str(node.role),), **fields | changes)
            for other in self.nodes:
                other.replica.receive(record.envelope, now)

    async def publish(
        self, *, trainer=0, content=None, state_content=None, policy=None, parent=None, **changes
    ):
        """Make and announce the version after ``parent`` (the head); ``policy`` is its digest."""
        parent = self.head if parent is None else parent
        version = 0 if parent is None else parent.message.version + 1
        library, files = self.trainers[trainer].library, self.trainers[trainer].ports.files
        path = files.weights(version)
        path.unlink(missing_ok=True)
        path.write_bytes(weights(version) if content is None else content)
        files.state(version).unlink(missing_ok=True)
        state = b"state of " + path.read_bytes()[:8] if state_content is None else state_content
        files.state(version).write_bytes(state)
        policy = Policy(Version(version), policy or digest(path.read_bytes()), path)
        release = await library.release(policy)
        fields = {
            "policy": policy.digest,
            "index": release.weights.digest,
            "index_bytes": release.weights.index_bytes,
            "total_bytes": release.weights.total_bytes,
            "encodings": release.encodings,
            "state": release.state.digest if release.state else b"",
            "state_index_bytes": release.state.index_bytes if release.state else 0,
            "state_bytes": release.state.total_bytes if release.state else 0,
        }
        signed = self.world.checkpoint(parent, trainer, **fields | changes)
        self.head = signed
        return signed

    def lead(self, term, final):
        """Let final pages give a term to its trainer, after a final version."""
        for node in self.nodes:
            show_lead(self.world, node.replica, term, final)
            node.replica.advance(LoopClock().now())

    def tell(self, signed):
        for node in self.nodes:
            node.take(signed)

    async def stop(self):
        for node in self.nodes:
            node.running.cancel()
            node.looking.cancel()
        await asyncio.wait([node.running for node in self.nodes])
        for node in self.nodes:
            assert node.running.cancelled(), node.running


async def begun(tmp_path, versions=1, **options):
    """Return a swarm in which every node has ``versions``."""
    swarm = Swarm(tmp_path, **options)
    await swarm.start()
    for version in range(versions):
        swarm.tell(await swarm.publish())
        await eventually(lambda v=version: all(node.holds(v) for node in swarm.nodes), 30)
        swarm.introduce()
    return swarm


async def test_a_version_comes_to_everybody_and_survives_a_restart(tmp_path):
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    assert one.library.newest_version() == 1
    assert one.library.newest().version == 1
    await one.restart()
    assert one.holds(0)
    assert one.holds(1)
    assert one.library.get(9) is None
    await swarm.stop()


async def test_downloads_of_a_node_share_one_source_history(tmp_path, monkeypatch):
    histories = []

    class Noted(SourceReputation):
        def __init__(self):
            super().__init__()
            histories.append(self)

    monkeypatch.setattr(downloads, "SourceReputation", Noted)
    swarm = await begun(tmp_path, 2)
    assert len(histories) == len(swarm.nodes)
    assert min(history.begin_seconds(15.0) for history in histories) < 15.0
    await swarm.stop()


async def test_before_the_first_version_there_is_nothing(tmp_path):
    swarm = Swarm(tmp_path)
    await swarm.start()
    library = swarm.trainers[0].library
    assert library.newest() is None
    assert library.newest_version() == -1
    await swarm.stop()


async def test_versions_beyond_the_retention_are_deleted(tmp_path):
    swarm = await begun(tmp_path, 3, trainers=2)
    before = [len(node.disk.blobs) for node in swarm.nodes]
    for _ in range(9):
        swarm.tell(await swarm.publish())
        await asyncio.sleep(12)
        swarm.introduce()
    for node, count in zip(swarm.nodes, before, strict=True):
        held = node.held
        assert held == [8, 9, 10, 11]
        assert [file.name for file in sorted(node.directory.glob("v*.safetensors"))] == sorted(
            f"v{version}.safetensors" for version in held
        )
        assert len(node.disk.blobs) <= 4 * (count // 3 + 2)
        assert len(node.disk.tables["policies"]) == 4
    trainer = swarm.trainers[0]
    assert {file.name for file in trainer.directory.glob("*.state")} == {
        "v10.state",
        "v11.state",
    }
    await trainer.restart()
    assert trainer.library.newest_version() == 11
    await swarm.stop()


async def test_a_version_that_an_engine_reads_is_not_deleted_under_it(tmp_path):
    """A role chooses a policy, and the engine opens its file later."""

    async def publish_many(swarm, count):
        for _ in range(count):
            swarm.tell(await swarm.publish())
            await asyncio.sleep(12)
            swarm.introduce()

    swarm = await begun(tmp_path, 1)
    one = swarm.followers[0]
    library, policy = one.library, one.library.newest()
    with library.hold(policy):
        with library.hold(policy):
            await publish_many(swarm, 5)
            assert policy.path.read_bytes() == weights(0)
        await publish_many(swarm, 2)
        assert policy.path.read_bytes() == weights(0), "another engine reads it"
    await publish_many(swarm, 1)
    assert not policy.path.exists()
    assert one.held == [5, 6, 7, 8]
    await swarm.stop()


async def test_shards_that_two_versions_share_outlive_the_older_one(tmp_path):
    swarm = await begun(tmp_path)
    same = weights("always")
    for _ in range(12):
        swarm.tell(await swarm.publish(content=same))
        await asyncio.sleep(12)
        swarm.introduce()
    for node in swarm.nodes:
        assert node.library.get(12).path.read_bytes() == same
        index = swarm.head.message.index
        assert node.blobs.has(index)
        assert stored_for(node, Purpose.WEIGHTS) == {index}
    await swarm.stop()


async def test_a_version_that_a_later_term_replaces_is_given_up_and_forgotten(tmp_path):
    """Its trainer dies in the middle of the download; the successor's version comes instead."""
    swarm = await begun(tmp_path, 2, trainers=2)
    genesis = swarm.head
    one = swarm.followers[0]
    old = await swarm.publish()
    trainer = swarm.trainers[0]
    largest = [d for d in trainer.disk.blobs if trainer.blobs.size(d) == 8192]
    trainer.blobs.withheld.update(dict.fromkeys(largest))
    swarm.tell(old)
    await asyncio.sleep(3)
    assert old.message.index in one.downloads.begun
    swarm.introduce(trainer, leaving=True)
    swarm.lead(1, genesis)
    new = await swarm.publish(trainer=1, parent=genesis, content=weights("new"), term=1)
    swarm.tell(new)
    await eventually(
        lambda: all(
            node.library.get(2) and node.library.get(2).path.read_bytes() == weights("new")
            for node in swarm.nodes[1:]
        ),
        30,
    )
    await asyncio.sleep(30)
    for node in swarm.nodes:
        assert not node.blobs.has(old.message.index)
        for purpose in (Purpose.WEIGHTS, Purpose.OPTIMISER_STATE):
            assert old.message.index not in stored_for(node, purpose)
    await swarm.stop()


async def test_a_version_that_final_pages_drop_is_given_up_and_no_longer_held(tmp_path):
    swarm = await begun(tmp_path, 2, trainers=2)
    one, other = swarm.followers
    old = await swarm.publish()
    trainer = swarm.trainers[0]
    largest = [d for d in trainer.disk.blobs if trainer.blobs.size(d) == 8192]
    trainer.blobs.withheld.update(dict.fromkeys(largest))
    swarm.tell(old)
    await asyncio.sleep(3)
    assert old.message.index in one.downloads.begun
    assert trainer.library.newest_version() == 2
    swarm.lead(1, trainer.replica.ledger.chain.get(1))
    await asyncio.sleep(20)
    assert old.message.index in one.downloads.cancelled
    assert {node.library.newest_version() for node in swarm.nodes} == {1}
    await other.restart()
    await trainer.restart()
    assert other.library.newest_version() == trainer.library.newest_version() == 1
    await swarm.stop()


async def test_a_version_passed_over_gives_its_room_back(tmp_path):
    swarm = await begun(tmp_path)
    one, trainer = swarm.followers[0], swarm.trainers[0]
    swarm.tell(await swarm.publish())
    first = swarm.head.message.index
    swarm.hub.partition([one.identity.peer_id])
    await one.restart()  # and the download continues
    await asyncio.sleep(2)
    for _ in range(4):
        signed = await swarm.publish()
        swarm.tell(signed)
    swarm.hub.heal()
    swarm.introduce()
    await eventually(lambda: one.holds(5), 60)
    await asyncio.sleep(12)
    assert first not in one.disk.blobs
    assert not one.disk.arrivals.keys() - one.disk.blobs.keys()
    assert trainer.holds(5)
    await swarm.stop()


async def test_a_download_follows_the_roster(tmp_path):
    """It begins when the only known node is the publisher, which is gone."""
    swarm = await begun(tmp_path)
    late = swarm.followers[1]
    late.ports.files.weights(0).unlink()
    late.disk.blobs.clear()
    late.disk.tables.clear()
    swarm.hub.remove(swarm.trainers[0].identity.peer_id)
    assert swarm.followers[0].holds(0)
    await late.restart_alone()
    await asyncio.sleep(20)
    assert late.library.get(0) is None
    swarm.introduce()
    await eventually(lambda: late.holds(0), 60)
    await swarm.stop()


async def test_the_publisher_feeds_the_forest_and_a_holder_when_it_is_gone(tmp_path):
    swarm = await begun(tmp_path, followers=3)
    trainer, ours = swarm.nodes[:2]
    empty, holder = sorted(swarm.nodes[2:], key=lambda node: node.identity.peer_id)
    await asyncio.sleep(600)  # longer than the lifetime of a record

    def root(of=ours):
        peer = next(iter(of.library._roots(swarm.head)), None)
        return next((node for node in swarm.nodes if node.identity.peer_id == peer), None)

    assert root() is trainer, "nobody says to hold it, so only the publisher may"
    assert root(trainer) is None
    swarm.introduce(empty, policy_version=-1)
    assert root() is trainer
    swarm.introduce(holder)
    assert root() is root(trainer) is root(empty) is holder
    assert root(holder) is trainer, "nobody feeds itself"
    swarm.introduce(trainer)
    assert root() is trainer
    assert root(trainer) is holder
    await swarm.stop()


async def test_a_trainer_that_lost_its_weights_gets_them_back(tmp_path):
    swarm = await begun(tmp_path, 2)
    trainer = swarm.trainers[0]
    for version in range(2):
        trainer.ports.files.weights(version).unlink()
    trainer.disk.blobs.clear()
    trainer.disk.tables.clear()
    await trainer.restart()
    await asyncio.sleep(12)  # so that new records are news
    swarm.introduce()
    await eventually(lambda: trainer.holds(0) and trainer.holds(1), 60)
    await swarm.stop()


async def test_missing_source_is_no_error(tmp_path):
    swarm = await begun(tmp_path, followers=0)
    trainer = swarm.trainers[0]
    trainer.ports.files.weights(0).unlink()
    trainer.disk.blobs.clear()
    await trainer.restart_alone()
    await asyncio.sleep(20)
    assert trainer.library.newest() is None
    await swarm.stop()


# Rejection by engines


async def test_a_refused_policy_is_fetched_twice_and_then_given_up(tmp_path):
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    received = one.exchange.received.total()
    first = one.library.get(1)
    first.path.write_bytes(b"damaged")
    await one.library.discard(first)
    assert one.library.newest_version() == 0
    await eventually(lambda: one.holds(1), 10)
    fetched = one.exchange.received.total() - received
    assert fetched > 20_000, "its shards may have rotted with it: they are one file"
    assert one.library.get(1).path.read_bytes() == weights(1)
    await one.library.discard(first)
    assert one.holds(1), "that was about the file before"
    await one.library.discard(one.library.get(1))
    await eventually(lambda: one.holds(1), 10)
    assert one.exchange.received.total() >= received + 2 * fetched
    await one.library.discard(one.library.get(1))
    await asyncio.sleep(30)
    assert one.library.get(1) is None
    assert "not what its trainer signed" in str(one.conditions)
    swarm.tell(await swarm.publish())
    await eventually(lambda: one.holds(2), 30)
    swarm.tell(await swarm.publish())
    swarm.tell(await swarm.publish())
    await asyncio.sleep(12)
    assert str(one.conditions) == "", "nobody needs it any more"
    await swarm.stop()


async def slow_swarm(tmp_path, versions):
    """Return a swarm with more versions, whose shards the trainer withholds."""
    swarm = await begun(tmp_path)
    trainer, one = swarm.trainers[0], swarm.followers[0]
    one.running.cancel()
    await asyncio.wait([one.running])
    for _ in range(versions):
        signed = await swarm.publish()
        index = shard_index.decode(await trainer.blobs.get(signed.message.index))
        trainer.blobs.withheld.update((shard.digest, None) for shard in index.shards)
        swarm.tell(signed)
    await one.restart()
    return swarm


async def test_a_version_is_held_when_its_name_is_stored_and_not_before(tmp_path):
    swarm = await begun(tmp_path)
    one = swarm.followers[0]
    commit, may_store = one.store.commit, asyncio.Event()

    async def slowly(changes):
        await may_store.wait()
        await commit(changes)

    one.store.commit = slowly
    swarm.tell(await swarm.publish())
    await eventually(one.ports.files.weights(1).exists, 30)
    await asyncio.sleep(2)
    assert one.library.get(1) is None
    may_store.set()
    await eventually(lambda: one.holds(1), 2)
    await swarm.stop()


async def test_the_newest_version_is_fetched_first(tmp_path):
    swarm = await slow_swarm(tmp_path, 3)
    one = swarm.followers[0]
    begun_with = []
    for _ in range(3):
        await asyncio.sleep(0.1)
        begun_with.append(one.begun)
        one.library.news.notify()
    assert begun_with == [[3], [3, 2], [3, 2, 1]]
    await swarm.stop()


async def test_downloads_end_with_the_library(tmp_path):
    swarm = await slow_swarm(tmp_path, 1)
    one = swarm.followers[0]
    await asyncio.sleep(1)
    assert one.downloads.cancelled == []
    await swarm.stop()
    assert one.downloads.cancelled == list(one.downloads.begun) != []


async def test_running_download_follows_the_members(tmp_path):
    swarm = await slow_swarm(tmp_path, 1)
    one = swarm.followers[0]
    await asyncio.sleep(1)
    (download,) = one.downloads.begun.values()
    told = []
    download.change_members = told.append
    one.library.news.notify()
    await asyncio.sleep(1)
    assert told == [], "nothing has changed"
    worker = swarm.world.workers[0]
    record = swarm.world.record(worker, ("inference",), sequence=round(now_ms()))
    one.replica.receive(record.envelope, LoopClock().now())
    one.library.news.notify()
    await asyncio.sleep(1)
    (members,) = told
    assert len(members) == len(swarm.nodes) + 1
    assert worker.peer_id in [member.peer for member in members]
    await swarm.stop()


async def test_an_index_that_cannot_be_is_fetched_once(tmp_path):
    swarm = await begun(tmp_path)
    one = swarm.followers[0]
    signed = await swarm.publish()
    nonsense = await swarm.trainers[0].blobs.put(
        b"no index at all", Owner(Purpose.WEIGHTS, digest(b"nonsense"))
    )
    wrong = swarm.world.checkpoint(
        one.replica.ledger.chain.head,
        policy=signed.message.policy,
        index=nonsense,
        index_bytes=15,
        total_bytes=1,
    )
    for node in swarm.followers:
        node.take(wrong)
    await asyncio.sleep(20)
    received = one.exchange.received.total()
    await asyncio.sleep(60)
    assert one.exchange.received.total() == received
    assert "version 1 is not what its trainer signed" in str(one.conditions)
    await swarm.stop()


async def test_discarding_what_is_not_here_changes_nothing(tmp_path):
    swarm = await begun(tmp_path)
    one = swarm.followers[0]
    copy = replace(one.library.get(0))
    await one.library.discard(copy)
    await one.library.discard(Policy(Version(7), digest(b"?"), tmp_path / "nowhere"))
    assert one.holds(0)
    await swarm.stop()


# Disks


async def test_a_full_disk_is_told_and_waited_for(tmp_path):
    swarm = await begun(tmp_path)
    one = swarm.followers[0]
    one.disk.quota_bytes = 0
    swarm.tell(await swarm.publish())
    await asyncio.sleep(30)
    assert "version 1 is not stored" in str(one.conditions)
    one.disk.quota_bytes = None
    await eventually(lambda: one.holds(1), 60)
    assert str(one.conditions) == ""
    await swarm.stop()


async def test_a_full_disk_delays_what_is_to_be_forgotten(tmp_path):
    swarm = await begun(tmp_path, 4)
    one = swarm.followers[0]
    one.disk.quota_bytes = 0
    for _ in range(4):
        swarm.tell(await swarm.publish())
    await asyncio.sleep(30)
    one.disk.quota_bytes = None
    swarm.introduce()
    await eventually(lambda: one.holds(7), 60)
    await asyncio.sleep(12)
    checkpoints = map(one.replica.ledger.chain.get, one.held)
    assert stored_for(one, Purpose.WEIGHTS) == {item.message.index for item in checkpoints}
    names = {int.from_bytes(key, "big") for key, _ in one.store.scan("policies")}
    assert names == set(one.held), "also those that the full disk kept"
    await swarm.stop()


async def test_a_crash_between_file_and_note_leaves_nothing_wrong(tmp_path):
    """The file of the successor's version 1 has replaced ours, under our name."""
    swarm = await begun(tmp_path, 2, trainers=2)
    one, genesis = swarm.followers[0], swarm.followers[0].replica.ledger.chain.get(0)
    new = await swarm.publish(trainer=1, parent=genesis, content=weights("new"), term=1)
    one.ports.files.weights(1).write_bytes(weights("new"))
    await asyncio.sleep(1)
    swarm.introduce(swarm.trainers[0], leaving=True)
    swarm.lead(1, genesis)
    swarm.tell(new)
    await one.restart()
    assert one.library.newest_version() == 0
    await eventually(lambda: one.library.newest_version() == 1, 60)
    assert one.library.get(1).digest == digest(weights("new"))
    await swarm.stop()


# Optimiser states


async def test_a_state_is_fetched_kept_for_a_while_and_forgotten(tmp_path):
    swarm = await begun(tmp_path, 2, trainers=2)
    heir = swarm.trainers[1]
    head = heir.replica.ledger.chain.head
    path = await heir.library.fetch_state(head)
    assert path == heir.ports.files.state(1)
    assert path.read_bytes().startswith(b"state of ")
    assert heir.blobs.has(head.message.state)
    for _ in range(2):
        swarm.tell(await swarm.publish())
        await asyncio.sleep(12)
    assert not heir.blobs.has(head.message.state)
    assert not path.exists()
    await swarm.stop()


async def test_a_trainer_whose_turn_may_come_has_the_state_before_it_comes(tmp_path):
    swarm = await begun(tmp_path, 3, trainers=2)
    leader, heir = swarm.trainers
    head = swarm.head
    await eventually(lambda: heir.blobs.has_file(head.message.state), 30)
    assert not any(node.blobs.has(head.message.state) for node in swarm.followers)
    swarm.hub.partition([leader.identity.peer_id])
    swarm.introduce(leader, leaving=True)
    path = await heir.library.fetch_state(heir.library.published_state(2))
    assert path.read_bytes() == leader.ports.files.state(2).read_bytes()
    await swarm.stop()


async def test_states_of_some_versions_are_published(tmp_path):
    swarm = Swarm(tmp_path, 0, trainers=2, state_every=3)
    await swarm.start()
    leader, heir = swarm.trainers
    states = []
    for _ in range(8):
        swarm.tell(signed := await swarm.publish())
        states.append(bool(signed.message.state))
    assert states == [True, False, False, True, False, False, True, False]
    assert heir.library.published_state(7).message.version == 6
    assert heir.library.published_state(5).message.version == 3
    path = await heir.library.fetch_state(heir.library.published_state(7))
    assert path.read_bytes() == leader.ports.files.state(6).read_bytes()
    await swarm.stop()


async def test_a_state_makes_way_for_weights(tmp_path):
    swarm = await begun(tmp_path, 2, trainers=2)
    leader, heir = swarm.trainers
    signed = await swarm.publish(state_content=Rng(b"moments").bytes(40_000))
    state = signed.message.state
    index = shard_index.decode(await leader.blobs.get(state))
    assert len(index.shards) > 3
    leader.blobs.withheld.update((shard.digest, None) for shard in index.shards[1:])
    swarm.tell(signed)
    await eventually(lambda: heir.blobs.has(index.shards[0].digest), 30)
    signed = await swarm.publish()
    weights_index = shard_index.decode(await leader.blobs.get(signed.message.index))
    leader.blobs.withheld.update((shard.digest, None) for shard in weights_index.shards)
    swarm.tell(signed)
    await asyncio.sleep(5)
    assert heir.downloads.cancelled == [state]
    leader.blobs.withheld.clear()
    await eventually(lambda: heir.blobs.has_file(signed.message.state), 60)
    assert heir.holds(3)
    await swarm.stop()


@pytest.mark.parametrize("total_bytes", [1, 10**9])
async def test_a_state_of_another_length_than_was_signed_is_refused(tmp_path, total_bytes):
    swarm = await begun(tmp_path, 2, trainers=2)
    heir = swarm.trainers[1]
    lie = await swarm.publish(state_bytes=total_bytes)
    swarm.tell(lie)
    received = heir.exchange.received.total()
    assert await heir.library.fetch_state(lie) is None
    assert heir.exchange.received.total() < received + 10_000
    await swarm.stop()


async def test_a_state_that_nobody_has_cannot_be_had(tmp_path):
    swarm = await begun(tmp_path, 2, trainers=2)
    heir, head = swarm.trainers[1], swarm.head
    heir.running.cancel()
    await asyncio.wait([heir.running])
    swarm.tell(head := await swarm.publish())
    index = shard_index.decode(await swarm.trainers[0].blobs.get(head.message.state))
    swarm.trainers[0].disk.blobs.pop(index.shards[0].digest)
    began = LoopClock().now()
    assert await heir.library.fetch_state(head) is None
    assert LoopClock().now() - began < 30
    swarm.hub.partition([swarm.trainers[0].identity.peer_id])
    swarm.introduce(swarm.trainers[0], leaving=True)
    began = LoopClock().now()
    assert await heir.library.fetch_state(head) is None
    assert LoopClock().now() - began < 1, "nobody is asked in vain"
    await swarm.stop()


async def test_shards_deleted_under_a_download_are_fetched_again(tmp_path, monkeypatch):
    swarm = await begun(tmp_path)
    one = swarm.followers[0]
    link = one.ports.files.link

    async def lost(*_arguments):
        monkeypatch.setattr(one.ports.files, "link", link)
        raise LookupError("a shard is gone")

    monkeypatch.setattr(one.ports.files, "link", lost)
    swarm.tell(await swarm.publish())
    await eventually(lambda: one.holds(1), 60)
    await swarm.stop()


async def test_a_file_is_cut_as_the_run_says(tmp_path):
    swarm = Swarm(tmp_path, 0)
    await swarm.start()
    trainer = swarm.trainers[0]
    signed = await swarm.publish()
    path = trainer.ports.files.weights(0)
    stored = await trainer.blobs.put_file(path, 8192, 2048, Purpose.WEIGHTS)
    assert signed.message.index == stored.digest
    assert signed.message.total_bytes == stored.total_bytes == 20_000
    assert len(stored.index.shards) == 3
    await swarm.stop()


async def test_weights_and_state_of_the_final_version_outlive_the_retention(tmp_path):
    """The versions after it may be dropped, and the next trainer resumes from it."""
    swarm = await begun(tmp_path, 3, trainers=2)
    trainer = swarm.trainers[0]
    for _ in range(9):
        swarm.tell(await swarm.publish())
        await asyncio.sleep(12)
        swarm.introduce()
        if trainer.replica.ledger.chain.version == 5:
            trainer.replica.ledger.chain.final = 5
    states = {file.name for file in trainer.directory.glob("*.state")}
    assert trainer.held == [5, 8, 9, 10, 11]
    assert states == {"v5.state", "v10.state", "v11.state"}
    trainer.replica.ledger.chain.final = 10
    swarm.tell(await swarm.publish())
    await asyncio.sleep(12)
    assert trainer.held == [9, 10, 11, 12]
    assert {file.name for file in trainer.directory.glob("*.state")} == {
        "v11.state",
        "v10.state",
        "v12.state",
    }
    await swarm.stop()
