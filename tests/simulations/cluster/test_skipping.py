"""A worker that leaves out slots loses rollouts beyond its allowance, and honest workers none."""

import time

from simulations.checkers import CheckerTolerances
from simulations.study.study import RunPlan, run_plan

MINUTES = 8
GAP_MAX = 2
SWARM = f"""
name = "skipping"
description = "One worker leaves out the slots with problems that it dislikes."
minutes = {MINUTES}
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 3
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 6
[protocol.credit]
gap_max = {GAP_MAX}
[[adversaries]]
role = "inference"
behaviour = "skipped-slots"
count = 1
"""
PATIENCE = CheckerTolerances(converge_epochs=9, progress_epochs=36)


def played(tmp_path, seed):
    """Return the outcome of a run, and the accounts of its workers by name."""
    accounts, names = {}, {}

    async def at_the_end(world):
        await world.wait_until(60 * MINUTES - 1)
        for name, machine in world.machines.items():
            names[machine.daemon.context.signer.peer_id] = name
        replica = world.machines["relay-0"].daemon.replica
        accounts.update(replica.intake.accounts.all())

    file = tmp_path / "skipping.toml"
    file.write_text(SWARM)
    plan = RunPlan(str(file), seed)
    outcome = run_plan(plan, clock=time.perf_counter, actors=(at_the_end,), patience=PATIENCE)
    assert outcome.violation is None
    return outcome, {names[peer]: one for peer, one in accounts.items() if one.rollouts}


def test_a_worker_that_skips_slots_loses_credit_and_an_honest_one_does_not(tmp_path):
    for seed in range(1, 9):  # in some runs its first rollouts are few
        outcome, workers = played(tmp_path, seed)
        skipping = max(workers, key=lambda name: workers[name].gaps)
        chooser = workers.pop(skipping)
        if chooser.gaps > GAP_MAX + 2:
            break
    assert chooser.gaps > GAP_MAX + 2
    assert 0 < chooser.forgiven <= chooser.gaps - GAP_MAX
    tokens = outcome.result.ledger.tokens // outcome.result.ledger.rollouts
    assert chooser.tokens < chooser.rollouts * tokens
    assert len(workers) == 2
    assert {one.forgiven for one in workers.values()} == {0}
