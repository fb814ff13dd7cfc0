"""The run's own files, from nodes that have them to all others."""

import asyncio

import pytest

from node.network.streams.protocols import BLOBS
from node.storage.sharded_files import index_of
from node.weights.downloads import Downloads
from node.weights.run_files import RunFiles
from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.run.manifest import RunFile
from protocol.shardcast.index import decode, encode
from roles.ports.storage import Owner, Purpose
from tests.node.weights.test_library import SHARDS, Swarm
from tests.worlds.messages import World
from tests.worlds.network import eventually

pytestmark = pytest.mark.virtual

CONTENT = {"bundle": Rng(b"bundle").bytes(20_000), "dataset": Rng(b"rows").bytes(50_000)}


def run_file(path, content):
    path.write_bytes(content)
    index = encode(index_of(path, SHARDS["shard_bytes"], SHARDS["chunk_bytes"]))
    return RunFile(index=digest(index).hex(), index_bytes=len(index), total_bytes=len(content))


class FilesSwarm(Swarm):
    """Swarm whose run has files, held by its first trainer."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        files = {name: run_file(directory / name, CONTENT[name]) for name in CONTENT}
        manifest = self.world.manifest
        genesis = manifest.genesis.model_copy(update={"files": files})
        self.world = World(manifest.model_copy(update={"genesis": genesis}))
        for node in self.nodes:
            node.replica.manifest = self.world.manifest
        self.give(self.trainers[0])

    def give(self, node, **content):
        for name, whole in (content or CONTENT).items():
            path = node.ports.files.run_file(name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(whole)

    def files_of(self, node):
        downloads = Downloads(node.ports, node.replica, node.exchange)
        return RunFiles(node.ports, node.replica, downloads, node.conditions)

    def holds(self, node):
        paths = {name: node.ports.files.run_file(name) for name in CONTENT}
        return all(
            path.exists() and path.read_bytes() == CONTENT[name] for name, path in paths.items()
        )


async def fetched(swarm, node, seconds=60):
    async with asyncio.timeout(seconds):
        await swarm.files_of(node).fetch()


@pytest.fixture
async def swarm(tmp_path):
    swarm = FilesSwarm(tmp_path)
    await swarm.start()
    yield swarm
    await swarm.stop()


async def test_a_peer_that_has_them_not_gets_them_and_serves_them(swarm):
    trainer, first, second = swarm.nodes
    assert swarm.files_of(trainer).complete and not swarm.files_of(first).complete
    await fetched(swarm, trainer)
    told, wait = [], first.conditions.wait
    first.conditions.wait = lambda *waiting: (told.append(waiting), wait(*waiting))
    await fetched(swarm, first)
    assert swarm.holds(first) and str(first.conditions) == ""
    shares = [share for _, reason, *rest in told if "fetching" in reason for share in rest]
    assert shares and all(0 <= share <= 1 for share in shares)
    assert told[-1][1].startswith("fetching the run's dataset, ")
    await trainer.transport.handle(BLOBS.name, _refuse)
    await fetched(swarm, second, 300)
    assert swarm.holds(second)


async def _refuse(stream):
    await stream.close()


async def test_a_file_of_another_run_makes_room_for_the_right_one(swarm):
    trainer, follower, _ = swarm.nodes
    swarm.give(follower, bundle=b"of another run" * 1000, dataset=CONTENT["dataset"])
    await fetched(swarm, trainer)
    await fetched(swarm, follower)
    assert swarm.holds(follower)
    owners = {owner.subject.hex() for owner in follower.blobs.owners(Purpose.RUN_FILE)}
    assert owners == {file.index for file in swarm.world.manifest.genesis.files.values()}


async def test_first_node_waits_and_reports_the_reason(swarm):
    _, follower, _ = swarm.nodes
    task = asyncio.create_task(fetched(swarm, follower, 600))
    await asyncio.sleep(20)
    assert follower.conditions["task"] == "asking for the run's bundle"
    await fetched(swarm, swarm.trainers[0])
    await task
    assert swarm.holds(follower)


async def test_missing_peers_are_reported(swarm):
    _, follower, _ = swarm.nodes
    task = asyncio.create_task(fetched(swarm, follower, 6000))
    await asyncio.sleep(600)  # the records of the others expire
    assert follower.conditions["task"] == "waiting for a peer that has the run's bundle"
    task.cancel()


@pytest.mark.parametrize("lost", ["index", "shard", "file"])
async def test_lost_files_are_made_again(swarm, lost):
    trainer, follower, _ = swarm.nodes
    await fetched(swarm, trainer)
    await fetched(swarm, follower)
    files, name = swarm.world.manifest.genesis.files, "dataset"
    key = bytes.fromhex(files[name].index)
    if lost == "file":
        follower.ports.files.run_file(name).unlink()
    else:
        index = decode(await follower.blobs.get(key))
        gone = key if lost == "index" else index.shards[1].digest
        del follower.disk.blobs[gone]
    await fetched(swarm, follower)
    index = decode(await follower.blobs.get(key))
    assert all(follower.blobs.has(shard.digest) for shard in index.shards)
    assert swarm.holds(follower)
    assert Owner(Purpose.RUN_FILE, key) in follower.blobs.owners(Purpose.RUN_FILE)


async def test_a_full_disk_is_told_and_waited_for(swarm):
    trainer, follower, _ = swarm.nodes
    await fetched(swarm, trainer)
    follower.disk.quota_bytes = follower.disk.used_bytes + 30_000
    task = asyncio.create_task(fetched(swarm, follower, 600))
    await eventually(lambda: "is not stored" in follower.conditions["task"], 60)
    follower.disk.quota_bytes = None
    await task
    assert swarm.holds(follower)
