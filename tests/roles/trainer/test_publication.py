import asyncio

import pytest

from protocol.core.crypto import digest
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World

pytestmark = pytest.mark.virtual


async def test_a_full_disk_delays_a_version_at_every_write(tmp_path):
    world = World(tmp_path)
    world.engine.full = 2
    world.policies.errors.append(StorageFullError("no room"))
    world.network.errors.append(StorageFullError("no room"))
    world.start()
    world.batch()
    reasons = set()
    for _ in range(50):
        await world.rest(1)
        reasons.add(str(world.conditions))
    assert reasons == {"", "disk full: no room; waiting for room"}
    assert [item.version for item in world.published] == [1]
    assert world.policies.releases == 1
    await world.stop()


async def test_a_refused_publication_is_dropped_and_the_swarm_followed(tmp_path):
    world = World(tmp_path)
    world.network.errors.append(RefusedError("another one leads"))
    world.start()
    world.batch()
    await world.rest(2)
    assert world.published == []
    await world.rest(20)
    assert [item.version for item in world.published] == [1]
    assert world.engine.loaded == ["v0.safetensors", "v0.safetensors"]
    assert len(world.engine.batches) == 2, "the same batch is learned from again"
    await world.stop()


def delay_next_step(world):
    end_step = world.engine.end_step

    async def slow():
        world.engine.end_step = end_step
        await asyncio.sleep(10 * EPOCH_SECONDS)
        return await end_step()

    world.engine.end_step = slow


async def test_a_version_whose_term_ends_during_its_step_is_neither_written_nor_published(tmp_path):
    """The file of a version with its number may come from the next leader by now."""
    world = World(tmp_path)
    delay_next_step(world)
    world.start()
    world.batch()
    await world.rest(1)
    await world.decide(1, world.replica.ledger.chain.head)
    await world.rest(10 * EPOCH_SECONDS)
    assert len(world.engine.batches) == 1
    assert not world.files.weights(1).exists()
    assert (world.published, world.policies.releases) == ([], 0)
    await world.stop()


async def test_in_its_next_term_it_makes_the_version_again_whose_step_it_has_begun(tmp_path):
    """A version of the term that has ended would be refused after it was written and stored."""
    world = World(tmp_path)
    delay_next_step(world)
    world.start()
    world.batch()
    await world.rest(1)
    await world.decide(2, world.replica.ledger.chain.head)
    await world.rest(10 * EPOCH_SECONDS)
    assert world.engine.loaded == ["v0.safetensors", "v0.safetensors"]
    assert [(item.version, item.term) for item in world.published] == [(1, 2)]
    assert world.policies.releases == 1
    await world.stop()


@pytest.mark.parametrize("trainers", [1, 2])
async def test_a_version_whose_term_ends_during_its_publication_is_made_again_in_a_later_one(
    tmp_path, trainers
):
    world = World(tmp_path, trainers=trainers)
    release, begun = world.policies.release, []

    async def slow(policy):
        begun.append(policy.version)
        await asyncio.sleep(10 * EPOCH_SECONDS)
        return await release(policy)

    world.policies.release = slow
    world.start()
    world.batch()
    await world.rest(2)
    final = world.replica.ledger.chain.head
    await world.decide(1, final)
    await world.rest(5 * EPOCH_SECONDS)
    assert (begun, world.published, str(world.conditions)) == ([1], [], "")
    world.policies.release = release
    await world.decide(2, final)
    world.batch()
    await world.rest(10 * EPOCH_SECONDS)
    made = world.published[0]
    assert (made.version, made.parent) == (1, final.digest)
    assert made.term == 2
    await world.stop()


async def test_a_step_that_changed_nothing_is_published_all_the_same(tmp_path):
    """Skipping it would leave its rollouts in every node's backlog."""
    world = World(tmp_path)
    end_step = world.engine.end_step

    async def refused():
        metrics = await end_step()
        return type(metrics)(updates=0)

    world.engine.end_step = refused
    world.start()
    world.batch()
    await world.rest(5)
    assert len(world.published[0].batch) == 2
    await world.stop()


async def test_a_fault_of_ours_in_a_publication_is_not_lost(tmp_path):
    world = World(tmp_path)
    world.policies.errors.append(RuntimeError("our own fault"))
    world.start()
    world.batch()
    await asyncio.sleep(2 * EPOCH_SECONDS)
    assert world.task.done()
    with pytest.raises(RuntimeError, match="our own fault"):
        world.task.result()


async def test_a_drain_waits_for_a_publication_only_so_long(tmp_path):
    world = World(tmp_path)

    async def never(_policy):
        await asyncio.Event().wait()

    world.policies.release = never
    world.start()
    world.batch()
    await world.rest(3)
    began = world.now()
    await world.stop()
    assert 9 <= world.now() - began <= 11


async def test_the_next_step_begins_while_a_version_is_written_and_ends_afterwards(tmp_path):
    world = World(tmp_path)
    world.start()
    world.batch()
    await world.rest(3)
    world.engine.write_seconds = 5.0
    world.batch()
    world.batch()
    await world.rest(3)
    begun, batches = world.engine.begun, len(world.engine.batches)
    assert world.engine.writing == 1, "version 2"
    assert begun is not world.engine.batches[-1], "the step to version 3 has begun"
    assert [item.version for item in world.published] == [1]
    await world.rest(30)
    assert world.engine.batches[batches] is begun
    assert [item.version for item in world.published] == [1, 2, 3]
    files = [world.files.weights(version).read_bytes() for version in (1, 2, 3)]
    assert files == [b"policy 1", b"policy 2", b"policy 3"]
    await world.stop()


async def test_weights_are_kept_until_there_is_room_for_them(tmp_path):
    world = World(tmp_path)
    world.engine.full = 3
    world.start()
    world.batch()
    world.batch()
    await world.rest(2.5 * EPOCH_SECONDS)
    assert "disk full" in str(world.conditions)
    assert (world.engine.learned, len(world.engine.batches)) == (1, 1)
    assert world.engine.begun is not world.engine.batches[0]
    await world.rest(2 * EPOCH_SECONDS)
    assert [item.version for item in world.published] == [1, 2]
    await world.stop()


async def test_weights_that_change_while_they_are_written_are_made_again(tmp_path):
    world = World(tmp_path)
    world.start()
    policy_digest, wrong = world.engine.policy_digest, [digest(b"other weights")]

    async def first_wrong():
        return wrong.pop() if wrong else await policy_digest()

    world.engine.policy_digest = first_wrong
    world.batch()
    await world.rest(2)
    assert "changed while they were written" in str(world.conditions)
    assert world.published == []
    await world.rest(2 * EPOCH_SECONDS)
    assert [item.version for item in world.published] == [1]
    await world.stop()
