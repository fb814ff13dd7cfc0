import asyncio

import pytest

from tests.roles.trainer.trainer_world import World, fresh, led
from tests.worlds.flow_world import Task
from tests.worlds.messages import identity

pytestmark = pytest.mark.virtual


async def test_it_begins_learns_and_publishes(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    first = world.batch()
    await world.rest(2)
    assert [item.version for item in world.published] == [0, 1]
    message = world.published[1]
    assert set(message.batch) == {signed.digest for signed in first}
    assert message.parent == world.network.published[0].digest
    assert message.term == 0
    count = world.manifest.sampling.group_size * world.manifest.sampling.prompts_per_rollout
    (batch,) = world.engine.batches
    assert len(batch) == 2 * count
    assert {item.group for item in batch} == {0, 1, 2, 3}
    assert message.reward_mean == 1_000_000, "rewards are recomputed"
    world.batch()
    await world.rest(2)
    assert [item.version for item in world.published] == [0, 1, 2]
    assert str(world.conditions) == ""
    await world.stop()


async def test_the_task_is_asked_in_the_background(tmp_path):
    world = fresh(tmp_path)
    asked = world.environment.watch(world.background)
    await led(world)
    world.batch()
    await world.rest(2)
    assert len(world.published) == 2
    assert asked == [True] * 12  # 4 prompts of 8 sequences
    await world.stop()


async def test_it_waits_until_it_is_told_what_it_missed(tmp_path):
    world = fresh(tmp_path)
    world.network.synchronised = False
    world.start()
    await world.rest(30)
    assert world.published == []
    assert world.engine.loaded == []
    await world.stop()


async def test_it_does_not_begin_a_run_that_others_know(tmp_path):
    """A trainer that lost its disk must not use version 0 again."""
    world = World(tmp_path, begun=False)
    await asyncio.sleep(5)
    world.live(world.world.validators[0], roles=("validator",), policy_version=3)
    world.start()
    await world.rest(20)
    assert world.published == []
    assert "the state of this run from peers" in str(world.conditions)
    await world.stop()


async def test_an_untrusted_peer_cannot_keep_it_from_beginning(tmp_path):
    world = fresh(tmp_path)
    world.live(identity("untrusted"), roles=("relay",), policy_version=9)
    await led(world)
    await world.stop()


async def test_without_a_genesis_policy_it_waits(tmp_path):
    world = World(tmp_path, begun=False)
    world.files.genesis.unlink()
    world.start()
    await world.rest(20)
    assert "waiting for the genesis policy" in str(world.conditions)
    await world.stop()


async def test_a_genesis_policy_of_another_run_is_told(tmp_path):
    world = World(tmp_path, begun=False)
    world.engine.damaged["genesis"] = None
    world.start()
    await world.rest(20)
    assert "is not the genesis policy" in str(world.conditions)
    await world.stop()


async def test_weights_that_came_out_otherwise_are_not_published(tmp_path):
    world = World(tmp_path, begun=False)
    world.engine.learned = 7  # its output differs from its input
    world.start()
    await world.rest(20)
    assert world.published == []
    assert "wrong-genesis" in str(world.conditions)
    await world.stop()


async def test_it_learns_from_rewards_below_zero_and_from_prompts_that_say_the_length(tmp_path):
    targets = {"length_targets": (60,), "length_penalty": 0.1}
    world = World(tmp_path, sampling=targets)
    world.start()
    world.batch()
    await world.rest(3)
    (batch,) = world.engine.batches
    assert {item.reward for item in batch} == {-4.8}
    assert {item.prompt[1:] for item in batch} == {Task().prompt(0, 60)[1:]}
    assert world.published[-1].reward_mean == -4_800_000
    await world.stop()
