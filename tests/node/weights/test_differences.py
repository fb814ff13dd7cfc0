"""Differences of rounds: publication, concurrent downloads, and retention."""

import asyncio

import pytest

from node.weights.differences import DIFFERENCE_PER_WEIGHTS
from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.messages import RoundResult
from protocol.shardcast import forest
from protocol.shardcast import index as shard_index
from roles.ports.storage import Purpose, StorageFullError
from tests.node.weights.test_library import Swarm, begun, stored_for, weights
from tests.worlds.network import LoopClock, eventually

pytestmark = pytest.mark.virtual

VERSION = 1
LENGTH = 20_000
LONGEST = DIFFERENCE_PER_WEIGHTS["fp32"] * len(weights(0))


def content(place, version=VERSION, length=LENGTH):
    return Rng(f"difference {place} of {version}".encode()).bytes(length)


async def swarm_of(tmp_path, trainers=3):
    return await begun(tmp_path, trainers=trainers, followers=1)


async def publish(swarm, place, version=VERSION, length=LENGTH, **changes):
    """Write and publish a trainer's difference; return its signed result."""
    node = swarm.trainers[place]
    path = node.ports.files.difference(version, place)
    path.unlink(missing_ok=True)
    path.write_bytes(content(place, version, length))
    stored = await node.library.publish_difference(path)
    fields = {
        "plan": digest(b"plan of %d" % version),
        "difference": digest(path.read_bytes()),
        "index": stored.digest,
        "index_bytes": stored.index_bytes,
        "total_bytes": stored.total_bytes,
    }
    return swarm.world.sealed(RoundResult(**fields | changes), node.identity)


def path_at(swarm, node, result, version=VERSION):
    place = swarm.world.manifest.genesis.trainers.index(result.signer)
    return node.ports.files.difference(version, place)


async def fetch(swarm, node, result, version=VERSION):
    """Fetch a difference; return its bytes, None if it is unavailable."""
    path = path_at(swarm, node, result, version)
    found = await node.library.fetch_difference(result, path)
    return path.read_bytes() if found else None


async def shards_of(node, result):
    index = shard_index.decode(await node.blobs.get(result.message.index))
    return [shard.digest for shard in index.shards]


def withhold(node, digests):
    node.blobs.withheld.update(dict.fromkeys(digests))


def leave(swarm, node):
    swarm.hub.partition([node.identity.peer_id])
    swarm.introduce(node, leaving=True)


# Downloads


async def test_every_other_trainer_fetches_a_difference_and_serves_it(tmp_path):
    swarm = await swarm_of(tmp_path)
    result = await publish(swarm, 0)
    for node in swarm.trainers[1:]:
        assert await fetch(swarm, node, result) == content(0)
        assert stored_for(node, Purpose.DIFFERENCE) == {result.message.index}
    assert not swarm.followers[0].blobs.has(result.message.index)
    await swarm.stop()


async def test_a_difference_is_cut_as_the_run_requires(tmp_path):
    swarm = await swarm_of(tmp_path)
    trainer = swarm.trainers[0]
    result = await publish(swarm, 0)
    index = shard_index.decode(await trainer.blobs.get(result.message.index))
    assert (index.shard_bytes, index.chunk_bytes, index.total_bytes) == (8192, 2048, LENGTH)
    await swarm.stop()


async def test_differences_of_several_trainers_arrive_at_the_same_time(tmp_path):
    swarm = await swarm_of(tmp_path, trainers=4)
    reader = swarm.trainers[3]
    results = [await publish(swarm, place) for place in range(3)]
    withhold(swarm.trainers[0], await shards_of(swarm.trainers[0], results[0]))
    slow, *others = [asyncio.create_task(fetch(swarm, reader, result)) for result in results]
    await asyncio.sleep(5)
    assert [task.result() for task in others] == [content(1), content(2)]
    assert not slow.done()
    swarm.trainers[0].blobs.withheld.clear()
    assert await slow == content(0)
    await swarm.stop()


async def test_two_fetches_of_one_difference_transfer_it_once(tmp_path):
    swarm = await swarm_of(tmp_path)
    reader = swarm.trainers[1]
    result = await publish(swarm, 0)
    received = reader.exchange.received.total()
    paths = [path_at(swarm, reader, result), tmp_path / "another"]
    fetching = [reader.library.fetch_difference(result, path) for path in paths]
    assert await asyncio.gather(*fetching) == [True, True]
    assert [path.read_bytes() for path in paths] == [content(0)] * 2
    assert reader.exchange.received.total() < received + 1.5 * LENGTH
    await swarm.stop()


async def test_a_fetch_goes_on_after_a_cancelled_one(tmp_path):
    swarm = await swarm_of(tmp_path)
    reader, signer = swarm.trainers[1], swarm.trainers[0]
    result = await publish(swarm, 0)
    first, *others = await shards_of(signer, result)
    withhold(signer, others)
    cancelled = asyncio.create_task(fetch(swarm, reader, result))
    await eventually(lambda: reader.blobs.has(first), 10)
    waiting = asyncio.create_task(fetch(swarm, reader, result))
    await asyncio.sleep(1)
    cancelled.cancel()
    signer.blobs.withheld.clear()
    assert await waiting == content(0)
    await swarm.stop()


@pytest.mark.parametrize("holder", [1, 2, 3])
async def test_a_difference_comes_from_another_trainer_when_its_signer_is_gone(tmp_path, holder):
    """Any other trainer may be the root, with or without the difference."""
    swarm = await swarm_of(tmp_path, trainers=4)
    signer, *others = swarm.trainers
    result = await publish(swarm, 0)
    assert await fetch(swarm, others.pop(holder - 1), result) == content(0)
    leave(swarm, signer)
    for reader in others:
        assert await fetch(swarm, reader, result) == content(0)
    await swarm.stop()


async def test_another_trainer_is_the_root_after_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(forest, "extra_sources", lambda *_: [])
    swarm = await swarm_of(tmp_path, trainers=4)
    signer, reader, *others = swarm.trainers
    results = [await publish(swarm, 0, version) for version in range(2)]
    for version, holder in enumerate(others):
        assert await fetch(swarm, holder, results[version], version)
    leave(swarm, signer)
    for version, result in enumerate(results):
        found = [await fetch(swarm, reader, result, version) for _ in range(len(others))]
        assert content(0, version) in found
    await swarm.stop()


async def test_a_difference_comes_from_another_trainer_while_its_dead_signer_seems_live(tmp_path):
    swarm = await swarm_of(tmp_path, trainers=4)
    signer, holder, *readers = swarm.trainers
    result = await publish(swarm, 0)
    assert await fetch(swarm, holder, result) == content(0)
    swarm.hub.partition([signer.identity.peer_id])
    fetching = [fetch(swarm, reader, result) for reader in readers]
    assert await asyncio.gather(*fetching) == [content(0)] * 2
    await swarm.stop()


async def test_a_difference_that_no_trainer_has_is_given_up(tmp_path):
    swarm = await swarm_of(tmp_path)
    signer, reader = swarm.trainers[:2]
    result = await publish(swarm, 0)
    withhold(signer, await shards_of(signer, result))
    began = LoopClock().now()
    assert await fetch(swarm, reader, result) is None
    assert LoopClock().now() - began < 30
    for other in (signer, swarm.trainers[2]):
        leave(swarm, other)
    began = LoopClock().now()
    assert await fetch(swarm, reader, result) is None
    assert LoopClock().now() - began < 1, "no request without a live trainer"
    await swarm.stop()


async def test_damaged_chunks_are_blamed_and_fetched_from_another_trainer(tmp_path):
    swarm = await swarm_of(tmp_path)
    signer, holder, reader = swarm.trainers
    result = await publish(swarm, 0)
    assert await fetch(swarm, holder, result) == content(0)
    damaged = (await shards_of(signer, result))[0]
    signer.disk.blobs[damaged] = bytes(len(signer.disk.blobs[damaged]))
    blamed = []
    reader.exchange.on_fault = lambda peer, _fault: blamed.append(peer)
    assert await fetch(swarm, reader, result) == content(0)
    assert set(blamed) == {signer.identity.peer_id}
    await swarm.stop()


@pytest.mark.parametrize(("length", "fits"), [(LONGEST, True), (LONGEST + 1, False)])
async def test_a_difference_that_is_too_large_is_not_requested(tmp_path, length, fits):
    swarm = await swarm_of(tmp_path)
    reader = swarm.trainers[1]
    result = await publish(swarm, 0, length=length)
    received = reader.exchange.received.total()
    assert (await fetch(swarm, reader, result) is not None) is fits
    assert (reader.exchange.received.total() > received) is fits
    assert (result.message.index in stored_for(reader, Purpose.DIFFERENCE)) is fits
    await swarm.stop()


async def test_the_bound_on_a_difference_is_that_of_the_policy_here(tmp_path):
    """A version may state any length; the file that a node holds has the one of all versions."""
    swarm = await swarm_of(tmp_path)
    reader = swarm.trainers[1]
    for node in swarm.nodes:
        node.running.cancel()
    swarm.tell(await swarm.publish(total_bytes=10**9))
    result = await publish(swarm, 0, length=LONGEST + 1)
    assert await fetch(swarm, reader, result) is None
    reader.ports.files.weights(0).unlink()
    assert await fetch(swarm, reader, result) == content(0, length=LONGEST + 1), "before it has one"
    await swarm.stop()


async def test_before_any_version_no_difference_is_fetched(tmp_path):
    swarm = Swarm(tmp_path, trainers=2)
    await swarm.start()
    result = await publish(swarm, 0)
    assert await fetch(swarm, swarm.trainers[1], result) is None
    await swarm.stop()


@pytest.mark.parametrize("total_bytes", [1, LENGTH + 1])
async def test_a_difference_of_another_length_than_was_signed_is_refused(tmp_path, total_bytes):
    swarm = await swarm_of(tmp_path)
    result = await publish(swarm, 0, total_bytes=total_bytes)
    assert await fetch(swarm, swarm.trainers[1], result) is None
    await swarm.stop()


async def test_a_full_disk_is_reported_and_the_next_fetch_succeeds(tmp_path):
    swarm = await swarm_of(tmp_path)
    signer, reader, _ = swarm.trainers
    result = await publish(swarm, 0)
    for node, work in ((reader, fetch(swarm, reader, result)), (signer, publish(swarm, 0, 2))):
        node.disk.quota_bytes = 0
        with pytest.raises(StorageFullError):
            await work
        node.disk.quota_bytes = None
    assert await fetch(swarm, reader, result) == content(0)
    await swarm.stop()


# This node's own difference


async def test_the_own_difference_is_here(tmp_path):
    swarm = await swarm_of(tmp_path)
    trainer = swarm.trainers[0]
    result = await publish(swarm, 0)
    for other in swarm.trainers[1:]:
        leave(swarm, other)
    assert await fetch(swarm, trainer, result) == content(0)
    path_at(swarm, trainer, result).write_bytes(b"that of an earlier plan")
    assert await fetch(swarm, trainer, result) == content(0)
    path_at(swarm, trainer, result).unlink()
    assert await fetch(swarm, trainer, result) == content(0)
    trainer.disk.blobs.clear()
    assert await fetch(swarm, trainer, result) == content(0), "the file alone"
    path_at(swarm, trainer, result).write_bytes(b"another")
    assert await fetch(swarm, trainer, result) is None
    await swarm.stop()


async def test_an_own_difference_that_was_lost_comes_from_another_trainer(tmp_path):
    swarm = await swarm_of(tmp_path)
    trainer, other, _ = swarm.trainers
    result = await publish(swarm, 0)
    assert await fetch(swarm, other, result) == content(0)
    trainer.disk.blobs.clear()
    path_at(swarm, trainer, result).unlink()
    assert await fetch(swarm, trainer, result) == content(0)
    await swarm.stop()


# Retention


def names(node):
    return {path.name for path in node.directory.glob("*.difference-*")}


async def test_differences_are_kept_by_index_and_files_by_version(tmp_path):
    swarm = await swarm_of(tmp_path)
    reader = swarm.trainers[2]
    results = []
    for version in (9, 10, 11):
        for place in range(2):
            results.append(await publish(swarm, place, version))
            assert await fetch(swarm, reader, results[-1], version)
    other = reader.ports.files.state(9)
    other.write_bytes(b"a state")
    needed = [result.message.index for result in results[3:]]
    await reader.library.retain_differences(10, needed)
    assert stored_for(reader, Purpose.DIFFERENCE) == set(needed)
    assert not reader.blobs.has(results[0].message.index)
    later = {"v10.difference-0", "v10.difference-1", "v11.difference-0", "v11.difference-1"}
    assert names(reader) == later
    assert other.exists()
    assert reader.holds(0)
    await reader.library.retain_differences(12, [])
    assert stored_for(reader, Purpose.DIFFERENCE) == names(reader) == set()
    await swarm.stop()


async def test_a_restart_leaves_no_difference_behind(tmp_path):
    """One is complete, one was interrupted, and one was written and not published."""
    swarm = await swarm_of(tmp_path)
    *signers, reader = swarm.trainers
    results = [await publish(swarm, place, 5) for place in range(2)]
    assert await fetch(swarm, reader, results[0], 5)
    withhold(signers[1], (await shards_of(signers[1], results[1]))[1:])
    interrupted = asyncio.create_task(fetch(swarm, reader, results[1], 5))
    await eventually(lambda: results[1].message.index in stored_for(reader, Purpose.DIFFERENCE), 10)
    interrupted.cancel()
    reader.ports.files.difference(5, 2).write_bytes(b"not published")
    await reader.restart()
    await reader.library.retain_differences(1000, [])
    assert stored_for(reader, Purpose.DIFFERENCE) == names(reader) == set()
    assert not reader.disk.arrivals
    await swarm.stop()


async def test_a_download_continues_after_a_restart(tmp_path):
    swarm = await swarm_of(tmp_path)
    signer, reader, _ = swarm.trainers
    result = await publish(swarm, 0)
    first, *others = await shards_of(signer, result)
    withhold(signer, others)
    interrupted = asyncio.create_task(fetch(swarm, reader, result))
    await eventually(lambda: reader.blobs.has(first), 10)
    interrupted.cancel()
    await reader.restart()
    swarm.introduce()
    signer.blobs.withheld.clear()
    received = reader.exchange.received.total()
    assert await fetch(swarm, reader, result) == content(0)
    assert reader.exchange.received.total() < received + LENGTH - 8000
    await swarm.stop()


async def test_a_difference_released_during_its_download_is_given_up(tmp_path):
    swarm = await swarm_of(tmp_path)
    signer, reader, _ = swarm.trainers
    result = await publish(swarm, 0)
    first, *others = await shards_of(signer, result)
    withhold(signer, others)
    fetching = asyncio.create_task(fetch(swarm, reader, result))
    await eventually(lambda: reader.blobs.has(first), 10)
    await reader.library.retain_differences(VERSION + 1, [])
    signer.blobs.withheld.clear()
    assert await fetching is None
    assert not reader.disk.arrivals
    await swarm.stop()
