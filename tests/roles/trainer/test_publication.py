import asyncio

import pytest

from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World
from tests.worlds.network import run_virtual


def test_a_full_disk_delays_a_version_at_every_write(tmp_path):
    async def scenario():
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

    run_virtual(scenario())


def test_a_refused_publication_is_dropped_and_the_swarm_followed(tmp_path):
    async def scenario():
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

    run_virtual(scenario())


def test_a_step_that_changed_nothing_is_published_all_the_same(tmp_path):
    """Skipping it would leave its rollouts in everybody's backlog."""

    async def scenario():
        world = World(tmp_path)
        step = world.engine.step

        async def refused(batch):
            metrics = await step(batch)
            return type(metrics)(False, *([0.0] * 4), 0)

        world.engine.step = refused
        world.start()
        world.batch()
        await world.rest(5)
        assert len(world.published[0].batch) == 2
        await world.stop()

    run_virtual(scenario())


def test_a_fault_of_ours_in_a_publication_is_not_lost(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.policies.errors.append(RuntimeError("our own fault"))
        world.start()
        world.batch()
        await asyncio.sleep(2 * EPOCH_SECONDS)
        assert world.task.done()
        with pytest.raises(RuntimeError, match="our own fault"):
            world.task.result()

    run_virtual(scenario())


def test_a_drain_waits_for_a_publication_only_so_long(tmp_path):
    async def scenario():
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

    run_virtual(scenario())
