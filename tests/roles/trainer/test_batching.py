import asyncio

import pytest

from protocol.crypto import digest
from protocol.rollout import RolloutSequence, encode_body
from roles.trainer.batching import Batching
from tests.roles.trainer.trainer_world import World
from tests.worlds.flow_world import END, Task
from tests.worlds.network import run_virtual


def test_a_few_lost_bodies_hold_nothing_up(tmp_path):
    async def scenario():
        world = World(tmp_path, grpo={"rollouts_per_step": 2, "rollouts_ahead": 9})
        world.start()
        lost = [world.rollout(worker=n % 2, held=False) for n in range(6)]
        assert len(lost) == 6
        await world.rest(10)
        assert world.published == []
        good = [world.rollout(worker=2) for _ in range(2)]
        await world.rest(20)
        assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
        await world.stop()

    run_virtual(scenario())


def test_a_body_is_asked_of_its_worker_and_of_who_certified_it(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.start()
        first, _ = world.batch()
        await world.rest(3)
        sources = dict(world.network.asked)[first.message.body]
        entry = world.replica.ledger.entries[first.digest]
        assert sources[0] == first.signer
        assert entry.certificate.signer in sources
        await world.stop()

    run_virtual(scenario())


@pytest.mark.parametrize(
    "body", [b"nonsense", encode_body([RolloutSequence((99, END), (-0.5, -0.5), 0, ())] * 4)]
)
def test_a_certified_body_that_cannot_be_is_not_learned_from(tmp_path, body):
    """A committee may have lied; the model must not choke on what it let through."""

    async def scenario():
        world = World(tmp_path)
        world.start()
        wrong = world.rollout(body)
        good = [world.rollout(worker=worker) for worker in (1, 2)]
        await world.rest(20)
        assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
        assert wrong.digest not in world.published[0].batch
        await world.stop()

    run_virtual(scenario())


def test_nothing_is_learned_from_without_a_certificate(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.start()
        world.rollout(worker=0)
        world.rollout(worker=1, certified=False)
        await world.rest(30)
        assert world.engine.batches == []
        await world.stop()

    run_virtual(scenario())


def test_what_is_too_old_for_the_version_under_way_is_left_out(tmp_path):
    """The ledger counts from the last published version; the one being published is newer."""

    async def scenario():
        world = World(tmp_path, grpo={"async_level": 0})
        release, published = world.policies.release, asyncio.Event()

        async def slow(policy):
            await published.wait()
            return await release(policy)

        world.policies.release = slow
        world.start()
        world.batch()
        await world.rest(3)
        world.batch()
        await world.rest(20)
        assert len(world.replica.ledger.usable()) == 4
        assert len(world.engine.batches) == 1
        published.set()
        await world.rest(3)
        world.batch()
        await world.rest(3)
        assert [item.version for item in world.published] == [1, 2]
        await world.stop()

    run_virtual(scenario())


def test_a_body_of_a_version_that_is_superseded_meanwhile_is_not_used(tmp_path):
    """Its tokens answer the prompts of a version that the swarm no longer means."""

    async def scenario():
        world = World(tmp_path)
        genesis = world.replica.ledger.head
        world.version()
        world.batch()
        batching = Batching(world.context, Task())
        found = asyncio.create_task(batching.next(1))
        await asyncio.sleep(0.01)
        world.take(world.world.checkpoint(genesis, 1, term=1, policy=digest(b"another")))
        assert await found is None

    run_virtual(scenario())
