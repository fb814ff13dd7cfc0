"""Fault injection: one coroutine over the world per planned fault, which also ends it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.core.rng import Rng
from simulations.cluster.placement import bytes_per_second
from simulations.cluster.world import Actor, World
from simulations.scenario.plans import (
    BreakStreams,
    Capacity,
    Crash,
    DiskFull,
    FaultPlan,
    Flapping,
    FlashCrowd,
    Leave,
    NodeSelection,
    OneWay,
    Partition,
    RollingRestart,
    Skew,
    Stall,
)

Work = Coroutine[Any, Any, None]

OfNodes = BreakStreams | Stall | Capacity | Skew | DiskFull | Crash | Leave | RollingRestart


def fault_actor(plan: FaultPlan, number: int) -> Actor:
    """Return the actor of the scenario's fault ``number``."""
    act_out: Callable[[World, Any, Rng], Work] = _ACTS[type(plan)]

    async def act(world: World) -> None:
        await world.wait_until(60 * plan.minute)
        await act_out(world, plan, world.rng.child(f"fault/{number}"))

    return act


def chosen(world: World, selection: NodeSelection, rng: Rng) -> list[str]:
    """Return the names of the nodes that a selection matches now, in order of creation.

    Nodes selected by name need not run; others are drawn from the running ones.
    """
    if selection.names:
        return [name for name in selection.names if name in world.machines]
    there = [name for name in world.running if world.machines[name].role in selection.roles]
    drawn = dict.fromkeys(rng.sample(there, selection.size(len(there))))
    return [name for name in there if name in drawn]


def _tell(world: World, kind: str, names: list[str]) -> None:
    world.emit("world", "fault", what=kind, nodes=",".join(names[:8]), count=len(names))


def _struck(world: World, plan: OfNodes, rng: Rng) -> list[str]:
    """Draw the nodes that a fault strikes, and record them."""
    names = chosen(world, plan.nodes, rng)
    _tell(world, plan.kind, names)
    return names


# The network


def _islands(world: World, plan: Partition | Flapping, rng: Rng) -> list[list[str]]:
    """Assign all nodes at random to the islands of a plan and record it; the rest form one more."""
    names = list(world.machines)
    shuffled = rng.sample(names, len(names))
    islands, start = [], 0
    for share in plan.islands:
        end = start + round(share * len(names))
        islands.append(shuffled[start:end])
        start = end
    _tell(world, plan.kind, shuffled[:start])
    return islands


async def _partition(world: World, plan: Partition, rng: Rng) -> None:
    islands = _islands(world, plan, rng)
    cut = world.network.partition(*islands)
    await asyncio.sleep(plan.seconds)
    world.network.heal(cut)


async def _flapping(world: World, plan: Flapping, rng: Rng) -> None:
    islands = _islands(world, plan, rng)
    end = world.loop.time() + plan.seconds
    while world.loop.time() < end:
        cut = world.network.partition(*islands)
        await world.wait_until(min(world.loop.time() + plan.period_seconds / 2, end))
        world.network.heal(cut)
        await asyncio.sleep(plan.period_seconds / 2)


async def _one_way(world: World, plan: OneWay, rng: Rng) -> None:
    source = chosen(world, plan.source, rng.child("source"))
    target = chosen(world, plan.target, rng.child("target"))
    _tell(world, plan.kind, source)
    cut = world.network.one_way(source, target)
    await asyncio.sleep(plan.seconds)
    world.network.heal(cut)


async def _break_streams(world: World, plan: BreakStreams, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    for name in names:
        if plan.connections:
            world.network.break_connections(name)
        else:
            world.network.break_streams(name)


# Machines


async def _stall(world: World, plan: Stall, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    for name in names:
        world.network.stall(name)
    await asyncio.sleep(plan.seconds)
    for name in names:
        world.network.stall(name, stalled=False)


async def _capacity(world: World, plan: Capacity, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    lines = {}
    upload, download = bytes_per_second(plan.upload_mbit), bytes_per_second(plan.download_mbit)
    for name in names:
        host = world.machines[name].host
        lines[name] = (host.up.bytes_per_second, host.down.bytes_per_second)
        _set_capacity(world, name, upload, download)
    await asyncio.sleep(plan.seconds)
    for name, (up, down) in lines.items():
        _set_capacity(world, name, up, down)


def _set_capacity(world: World, name: str, upload: float, download: float) -> None:
    world.network.set_capacity(name, upload, download)
    world.emit(name, "line", upload=round(upload), download=round(download))


async def _skew(world: World, plan: Skew, rng: Rng) -> None:
    names = _struck(world, plan, rng.child("nodes"))
    clocks = {name: world.machines[name].host.clock.skew_seconds for name in names}
    for name in names:
        world.network.set_skew(name, plan.skew_seconds * (2 * rng.uniform() - 1))
    await asyncio.sleep(plan.seconds)
    for name, skew_seconds in clocks.items():
        world.network.set_skew(name, skew_seconds)


async def _disk_full(world: World, plan: DiskFull, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    disks = [world.machines[name].disk for name in names]
    for disk in disks:
        disk.quota_bytes = disk.used_bytes
    await asyncio.sleep(plan.seconds)
    for disk in disks:
        disk.quota_bytes = None


# Sessions


async def _crash(world: World, plan: Crash, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    for name in names:
        world.crash(name, lose_state=plan.lose_state)
    await _return(world, names, plan.return_after_seconds)


async def _leave(world: World, plan: Leave, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    await asyncio.gather(*map(world.leave, names))
    await _return(world, names, plan.return_after_seconds)


async def _return(world: World, names: list[str], after_seconds: float | None) -> None:
    if after_seconds is not None:
        await asyncio.sleep(after_seconds)
        for name in names:
            world.start(name)


async def _flash_crowd(world: World, plan: FlashCrowd, rng: Rng) -> None:
    begin = world.loop.time()
    names = [world.add(plan.role) for _ in range(plan.count)]
    _tell(world, plan.kind, names)
    for after_seconds, name in sorted((plan.seconds * rng.uniform(), name) for name in names):
        await world.wait_until(begin + after_seconds)
        if plan.with_page:
            world.machines[name].trusted_page = world.trusted_page()
        world.start(name)


async def _rolling_restart(world: World, plan: RollingRestart, rng: Rng) -> None:
    names = _struck(world, plan, rng)
    for name in names:
        world.spawn(_restart(world, name, plan.down_seconds))
        await asyncio.sleep(plan.pause_seconds)


async def _restart(world: World, name: str, down_seconds: float) -> None:
    await world.leave(name)
    await asyncio.sleep(down_seconds)
    world.start(name)


_ACTS: dict[type[Any], Callable[[World, Any, Rng], Work]] = {
    Partition: _partition,
    Flapping: _flapping,
    OneWay: _one_way,
    BreakStreams: _break_streams,
    Stall: _stall,
    Capacity: _capacity,
    Skew: _skew,
    DiskFull: _disk_full,
    Crash: _crash,
    Leave: _leave,
    FlashCrowd: _flash_crowd,
    RollingRestart: _rolling_restart,
}
