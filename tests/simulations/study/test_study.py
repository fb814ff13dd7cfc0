"""A whole run: progress, errors, and a quiet end."""

import time

import pytest

from simulations.cluster.calm import calm_after_seconds
from simulations.scenario.scenario import parse_scenario
from simulations.study.study import RunPlan, run_plan

PLAN = RunPlan("quiet-20", seed=3, nodes=9, minutes=0.8)

HEAD = """
name = "calm"
description = "x"
minutes = 30
[nodes]
start_seconds = 7
"""


def outcome(plan=PLAN, **options):
    return run_plan(plan, clock=time.perf_counter, **options)


def test_progress_is_told_and_ends_at_the_end():
    told = []
    outcome(on_progress=lambda now, end: told.append((now, end)))
    assert [end for _, end in told] == [48.0] * len(told)
    times = [now for now, _ in told]
    assert times == sorted(times)
    assert 0 < times[-1] <= 48.0


def test_a_daemon_that_fails_is_a_violation_and_no_traceback():
    async def break_one(world):
        daemon = world.machines["relay-0"].daemon
        daemon.replica.advance = lambda _now: 1 / 0

    async def later(world):
        world.loop.call_later(20, lambda: world.spawn(break_one(world)))

    failed = outcome(actors=[later])
    assert failed.violation.rule == "no-node-fails"
    assert failed.violation.node == "relay-0"
    assert "ZeroDivisionError" in failed.violation.what
    assert failed.result.virtual_s < 48


def fault(kind, minute, rest):
    return f'[[faults]]\nkind = "{kind}"\nminute = {minute}\n{rest}'


def churn(rest):
    hour = '{kind = "exponential", mean_seconds = 3600}'
    return f"[[churn]]\nsession = {hour}\ndowntime = {hour}\n{rest}"


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        ("", 7.0),
        (fault("partition", 2, "seconds = 50\nislands = [0.5]"), 170.0),
        (fault("crash", 2, "nodes = {share = 0.5}"), 120.0),
        (fault("leave", 2, "nodes = {count = 3}\nreturn_after_seconds = 9"), 129.0),
        (fault("rolling-restart", 1, "nodes = {names = ['a', 'b']}\npause_seconds = 10"), 85.0),
        (fault("rolling-restart", 1, "nodes = {roles = ['validator']}\npause_seconds = 9"), 101.0),
        (churn("until_minute = 12"), 720.0),
        (churn(""), None),
    ],
)
def test_calm_begins_when_the_last_plan_is_over(plan, seconds):
    assert calm_after_seconds(parse_scenario(HEAD + plan)) == seconds


def test_workers_generate_faster_and_the_command_says_so():
    """Only workers are faster."""
    plan = RunPlan("quiet-20", worker_speed=4)
    assert plan.command.endswith(" --worker-speed 4")
    for before, after in zip(RunPlan("quiet-20").load().compute, plan.load().compute, strict=True):
        assert after.generate_tokens_per_second == 4 * before.generate_tokens_per_second
        assert after.faster_generation(1 / 4) == before


@pytest.mark.parametrize(
    ("attack", "window"), [("graft-flood", (90.0, 180.0)), ("cold-boot", (30.0, 120.0))]
)
def test_untrusted_peers_that_come_later_do_all_later_and_nobody_else_does(attack, window):
    """In an older swarm the run's length, and each adversary's start and times, move alike."""
    plan = RunPlan(
        f"attack-{attack}", 1, 8, 0.3, untrusted_per_node=0.5, untrusted_after_minutes=0.5
    )
    assert plan.command.endswith("--minutes 0.3 --untrusted-per-node 0.5 --untrusted-after 0.5")
    assert plan.load().attack_seconds == window
    there = {}

    async def look(world):
        assert world.scenario.seconds == pytest.approx(48)
        for at in (29.9, 30.1 if attack == "cold-boot" else 41):
            await world.wait_until(at)
            running = [machine for machine in world.machines.values() if machine.running]
            there[at] = sum(machine.untrusted_peer for machine in running), len(running)

    assert outcome(plan, actors=[look]).violation is None
    assert list(there.values()) == [(0, 8), (4, 12)]
