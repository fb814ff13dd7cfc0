"""Joining nodes find the run and work in it despite untrusted peers that deny its messages."""

import time

import pytest

from simulations.study.study import RunPlan, run_plan

PER_NODE = 6
"""As ``sybil-joining`` with a third of the untrusted peers, in a tenth of the time."""

JOINED_SECONDS_MAX = 60.0
WORKED_SECONDS_MAX = 180.0


@pytest.mark.long
def test_new_nodes_among_untrusted_peers_that_lie_are_ready_soon_and_commit_to_honest_work():
    ready, worked = {}, {}

    async def look(world):
        there = set(world.machines)
        while world.loop.time() < world.scenario.seconds - 1:
            await world.wait_until(world.loop.time() + 1)
            untrusted = (one for one in world.machines.values() if one.name not in there)
            for machine in (one for one in untrusted if one.daemon is not None):
                ledger = machine.daemon.replica.ledger
                if machine.daemon.status().state == "ready":
                    ready.setdefault(machine.name, world.loop.time())
                if machine.signer.peer_id in ledger.workers.counts:
                    worked.setdefault(machine.name, world.loop.time())

    plan = RunPlan("sybil-joining", seed=1, minutes=2.5, untrusted_per_node=PER_NODE)
    outcome = run_plan(plan, clock=time.perf_counter, actors=[look])
    assert outcome.violation is None, f"{outcome.violation}\n{plan.command}"
    joined_at = 60.0 * load_minute()
    assert len(ready) == len(worked) == 2
    assert max(ready.values()) - joined_at <= JOINED_SECONDS_MAX
    assert max(worked.values()) - joined_at <= WORKED_SECONDS_MAX
    rollouts = outcome.result.rollouts
    assert rollouts.certified > 0
    assert outcome.result.certified_false == rollouts.rejected == 0


def load_minute():
    """Return the minute in which the scenario's nodes join."""
    (crowd,) = RunPlan("sybil-joining").load().faults
    return crowd.minute
