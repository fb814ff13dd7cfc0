import asyncio

from memory_transport import eventually, run_virtual
from swarm_world import SwarmWorld

from protocol.types import Role

SMALL = [
    ("relay", Role.RELAY),
    ("trainer", Role.TRAINER),
    ("worker-0", Role.INFERENCE),
    ("worker-1", Role.INFERENCE),
    ("validator-0", Role.VALIDATOR),
    ("validator-1", Role.VALIDATOR),
    ("validator-2", Role.VALIDATOR),
]


def test_a_swarm_trains_on_certified_rollouts_only(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL, grpo__steps=5)
        world.start_all()
        relay = world.machines["relay"].daemon
        await eventually(lambda: relay.replica.ledger.version == 5, 300)
        await asyncio.sleep(5)
        status = relay.status()
        await world.stop()
        return status

    status = run_virtual(scenario())
    assert status.state == "ready"
    assert status.rollouts.certified >= 20
    assert status.rollouts.trained == 20
    assert status.rollouts.rejected == 0
    assert sum(point.trained_without_certificate for point in status.checkpoints) == 0
    assert status.policy_lag_max <= 2
    assert {member.policy_version for member in status.members} == {5}
