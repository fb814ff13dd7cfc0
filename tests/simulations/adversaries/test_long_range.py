"""Old keys of a former council show joining nodes another history."""

import time
from importlib import resources

import pytest

from simulations.study.study import RunPlan, run_plan

HONEST = "validator-9"
LOOK_SECONDS = 0.1
"""A node that is shown both histories runs for less than a second."""


def run(scenario):
    """Run a scenario and return what became of the nodes that joined."""
    joined = {}

    async def look(world):
        there = set(world.machines)
        await world.wait_until(60 * world.scenario.faults[-1].minute)
        while world.loop.time() < world.scenario.seconds - 1:
            await world.wait_until(world.loop.time() + LOOK_SECONDS)
            for name, machine in world.machines.items():
                if name in there or not machine.starts:
                    continue
                seen = joined.setdefault(name, {"councils": set(), "page": machine.trusted_page})
                seen["running"] = machine.running
                if machine.daemon is not None:
                    seen["daemon"] = machine.daemon
                    seen["ready"] = machine.daemon.status().state == "ready"
                    seen["councils"] |= machine.daemon.replica.pages.councils.keys()
        true = world.machines[HONEST].daemon.replica.pages.councils.keys()
        for seen in joined.values():
            seen["true"], seen["false"] = true, seen["councils"] - true

    plan = RunPlan(scenario, seed=1)
    outcome = run_plan(plan, clock=time.perf_counter, actors=[look])
    assert outcome.violation is None, f"{outcome.violation}\n{plan.command}"
    assert len(joined) == 4
    return joined


@pytest.mark.long
def test_nodes_with_the_page_of_a_join_command_follow_the_true_history():
    joined = run("long-range")
    for seen in joined.values():
        assert seen["page"] is not None
        assert seen["false"] == set()
        assert seen["running"]
        assert seen["ready"]
    shown = [len(seen["daemon"].history.others) for seen in joined.values()]
    assert sum(shown) >= 2, "most of them were shown the forged history first"


@pytest.mark.long
def test_without_it_they_are_misled_and_stop_when_they_see_both_histories(tmp_path):
    """So the attack is one; the proof of two final histories is valid and names both."""
    text = (resources.files("simulations") / "scenarios" / "long-range.toml").read_text()
    path = tmp_path / "without.toml"
    path.write_text(text.replace("with_page = true", "with_page = false"))
    joined = run(str(path))
    stopped = [seen for seen in joined.values() if not seen["running"]]
    assert len(stopped) >= 2
    for seen in stopped:
        assert seen["page"] is None
        assert seen["daemon"].refusal == seen["daemon"].history.refusal
        conflict = seen["daemon"].history.conflict
        pages = [one.page for chain in (conflict.first, conflict.second) for one in chain]
        seats = {page.digest for page in pages if page.message.changes_council}
        assert len(seats) == 2
        assert len(seats & seen["true"]) == 1
        assert "two histories of this run are final" in seen["daemon"].refusal
