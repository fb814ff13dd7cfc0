"""Whole swarm in virtual time whose trainers crash at every durable write of a publication."""

import asyncio

import pytest

from tests.worlds.network import eventually
from tests.worlds.swarm import Swarm

pytestmark = pytest.mark.virtual

TOUCHES = 12
"""Disk accesses of a publication, before and after each write. The writes are the file's blobs, the
patch, its blobs, the state's blobs, the version's name, and the manifest."""


async def dies_in_publication(world, name, touch):
    """Crash a trainer at the n-th disk access of its next publication."""
    policies = world.daemon(name).policies
    release = policies.release

    async def dying(policy):
        world.die_at(name, touch)
        return await release(policy)

    policies.release = dying
    await world.died(name)


def leader(world):
    signer = world.ledger("validator-0").chain.head.signer
    return next(name for name, one in world.machines.items() if one.signer.peer_id == signer)


async def test_whenever_a_publisher_dies_the_other_trainer_goes_on_and_all_have_one_version():
    world = Swarm(trainer=2, epochs__record_epochs=6, epochs__refresh_epochs=2)
    workload = world.scenario.workload.model_copy(update={"patch_share": 0.02})
    world.scenario = world.scenario.model_copy(update={"workload": workload})
    world.start_all()
    await asyncio.gather(*(world.reach(2, name) for name in world.machines))
    for touch in range(1, TOUCHES + 1):
        dead = leader(world)
        announced = world.ledger("validator-0").chain.version
        await dies_in_publication(world, dead, touch)
        await eventually(lambda name=dead: leader(world) != name, 200)
        assert world.ledger("validator-0").chain.version >= announced
        world.start(dead)
    await world.more(2, "worker-0")
    assert world.ledger("worker-0").chain.head.message.encodings, "versions travelled as patches"

    def agree():
        heads = {world.ledger(name).chain.head.digest for name in world.machines}
        holds = {world.daemon(name).status().policy_version for name in world.machines}
        return len(heads) == len(holds) == 1

    await eventually(agree, 60)
    await world.finish()
