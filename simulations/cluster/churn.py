"""Independent churn: one coroutine per node, for the duration of a plan."""

import asyncio
import math

from protocol.core.rng import Rng
from simulations.cluster.world import Actor, World
from simulations.scenario.plans import Churn, Duration, Exponential, Weibull


def churn_actor(plan: Churn, number: int) -> Actor:
    """Return the actor of the scenario's churn plan ``number``."""

    async def act(world: World) -> None:
        await world.wait_until(60 * plan.from_minute)
        for name, machine in world.machines.items():
            if machine.role in plan.roles:
                rng = world.rng.child(f"churn/{number}/{name}")
                world.spawn(_come_and_go(world, name, plan, rng))

    return act


async def _come_and_go(world: World, name: str, plan: Churn, rng: Rng) -> None:
    """Alternate sessions and downtimes; a node that runs at the end of the plan stays."""
    end = world.scenario.seconds if plan.until_minute is None else 60 * plan.until_minute
    while True:
        await asyncio.sleep(draw_seconds(plan.session, rng))
        if world.loop.time() >= end:
            return
        if rng.uniform() < plan.graceful_share:
            await world.leave(name)
        else:
            world.crash(name, lose_state=rng.uniform() < plan.lose_state_share)
        back_at = world.loop.time() + draw_seconds(plan.downtime, rng)
        await world.wait_until(min(back_at, max(end, world.loop.time())))
        world.start(name)


def draw_seconds(duration: Duration, rng: Rng) -> float:
    """Draw a duration in whole milliseconds, so that it is the same on all platforms."""
    return round(_draw(duration, rng), 3)


def _draw(duration: Duration, rng: Rng) -> float:
    if isinstance(duration, Exponential):
        return -duration.mean_seconds * math.log(1 - rng.uniform())
    if isinstance(duration, Weibull):
        spread = -math.log(1 - rng.uniform())
        return duration.scale_seconds * float(spread ** (1 / duration.shape))
    return duration.seconds[int(rng.uniform() * len(duration.seconds))]
