"""Accounts of nodes that missed final pages: new ones, restarted ones, and those without a disk."""

import time

import pytest

from protocol.ledger.final_ledger import FinalLedger
from simulations.checkers import CheckerTolerances
from simulations.study.study import RunPlan, run_plan

MINUTES = 3.9
SWARM = f"""
name = "away"
description = "Two workers are away for longer than commits are kept, and two nodes join late."
minutes = {MINUTES}
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 6
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
[protocol.committee]
expire_after_epochs = 4
[[faults]]
kind = "crash"
minute = 0.75
nodes = {{ names = ["worker-0"] }}
return_after_seconds = 125
[[faults]]
kind = "crash"
minute = 0.75
nodes = {{ names = ["worker-1"] }}
return_after_seconds = 125
lose_state = true
[[faults]]
kind = "flash-crowd"
minute = 2.75
seconds = 10
count = 2
"""
MISSED = ("worker-0", "worker-1", "worker-6", "worker-7")
PATIENCE = CheckerTolerances(converge_epochs=9, progress_epochs=36)


@pytest.mark.parametrize("history_epochs", [pytest.param(1440, marks=pytest.mark.long), 4])
def test_nodes_that_missed_pages_have_the_accounts_of_the_others(
    monkeypatch, tmp_path, history_epochs
):
    """They walk back through the pages, or adopt a snapshot if these are too many."""
    monkeypatch.setattr("protocol.ledger.final_ledger.HISTORY_EPOCHS_MAX", history_epochs)
    adopted, held = [], {}
    adopt = FinalLedger.adopt

    def seen(ledger, leaves, statement):
        fault = adopt(ledger, leaves, statement)
        adopted.append((fault, len(leaves)))
        return fault

    async def at_the_end(world):
        await world.wait_until(60 * MINUTES - 1)
        for name, machine in world.machines.items():
            held[name] = machine.daemon.replica.intake.ledger

    monkeypatch.setattr(FinalLedger, "adopt", seen)
    file = tmp_path / "away.toml"
    file.write_text(SWARM)
    plan = RunPlan(str(file), 1)
    outcome = run_plan(plan, clock=time.perf_counter, actors=(at_the_end,), patience=PATIENCE)
    assert outcome.violation is None
    assert all(fault is None for fault, _ in adopted)
    assert len(adopted) == (0 if history_epochs > 100 else len(MISSED))
    epoch = min(ledger.accounts.header.epoch for ledger in held.values())
    assert len(held) == 13
    assert {ledger.root(epoch) for ledger in held.values()} == {held["relay-0"].root(epoch)}
    assert held["worker-6"].state(epoch).leaves == held["relay-0"].state(epoch).leaves
    assert outcome.result.ledger.rollouts > 20
