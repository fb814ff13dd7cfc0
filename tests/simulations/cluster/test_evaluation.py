"""Evaluated versions in a swarm of real daemons."""

import asyncio

import pytest

from node.storage.evaluation_curve import EvaluationCurve
from simulations.cluster.world import World
from simulations.runtime.loop import VirtualLoop
from simulations.runtime.trace import Trace
from simulations.scenario.scenario import load_scenario

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

EVERY = 2


async def test_every_node_has_the_curve_and_no_batch_has_a_rollout_of_it():
    swarm = load_scenario("evaluation")
    curves, ledgers = {}, []

    async def at_the_end(world: World) -> None:
        await asyncio.sleep(swarm.seconds - 1)
        for name, machine in world.machines.items():
            context = machine.daemon.context
            curves[name] = context.evaluated()
            restarted = EvaluationCurve()
            restarted.restore(context.ports.store)
            manifest, ledger = context.replica.manifest, context.replica.ledger
            assert restarted.points(manifest.sampling, ledger.chain.checkpoints) == curves[name]
            ledgers.append(ledger)

    await World(swarm, 1, Trace()).run((at_the_end,))
    ledger = ledgers[0]
    assert ledger.chain.version > 2 * EVERY
    evaluated = {
        digest: entry for digest, entry in ledger.commits.entries.items() if entry.is_evaluation
    }
    assert {entry.version % EVERY for entry in evaluated.values()} == {0}
    learned = {commit for one in ledger.chain.checkpoints for commit in one.manifest.message.batch}
    assert learned
    assert not learned & evaluated.keys()
    for name, curve in curves.items():
        assert [point.version for point in curve][:3] == [0, EVERY, 2 * EVERY], name
        sampling = swarm.recipe().sampling
        for point in curve:
            assert point.problems % sampling.prompts_per_rollout == 0
            assert point.reward_low < point.reward_high
