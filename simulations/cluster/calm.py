"""Quiescence: the time after the last fault, when the swarm must converge and make progress.

The module also announces the start of adversaries that act for a part of the run.
"""

import asyncio

from simulations.cluster.world import World
from simulations.scenario.plans import Crash, FaultPlan, Leave, RollingRestart
from simulations.scenario.scenario import Scenario


def calm_after_seconds(scenario: Scenario) -> float | None:
    """Return when the last fault is over and the last node of a plan is back; None if never."""
    ends = [scenario.nodes.start_seconds]
    for churn in scenario.churn:
        if churn.until_minute is None:
            return None
        ends.append(60 * churn.until_minute)
    ends += [_end(scenario, fault) for fault in scenario.faults]
    ends += [60 * plan.until_minute for plan in scenario.adversaries if plan.until_minute]
    return max(ends)


def _end(scenario: Scenario, fault: FaultPlan) -> float:
    begin = 60 * fault.minute
    if isinstance(fault, Crash | Leave):
        return begin + (fault.return_after_seconds or 0.0)
    if isinstance(fault, RollingRestart):
        there = sum(scenario.nodes.count(role) for role in fault.nodes.roles)
        restarts = len(fault.nodes.names) or fault.nodes.size(there)
        return begin + restarts * fault.pause_seconds + fault.down_seconds
    return begin + float(getattr(fault, "seconds", 0.0))


async def announce_calm(world: World) -> None:
    """Announce quiescence to the checkers."""
    seconds = calm_after_seconds(world.scenario)
    if seconds is not None:
        await asyncio.sleep(seconds)
        world.emit("world", "calm")


async def announce_attack(world: World) -> None:
    """Record the start of adversaries that do not act from the beginning."""
    window = world.scenario.attack_seconds
    if window is not None:
        await world.wait_until(window[0])
        timed = [plan.behaviour for plan in world.scenario.adversaries if plan.timed]
        world.emit("world", "fault", what=",".join(dict.fromkeys(timed)))
