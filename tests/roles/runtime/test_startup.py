"""A role is ready once its engine has started, a worker once a version is also loaded."""

import asyncio

import pytest

from protocol.core.types import Role
from roles.inference.flow import InferenceFlow
from roles.ports.engines import EngineError
from roles.runtime.retry import fill
from tests.worlds.flow_world import Engine, FlowWorld, Task

pytestmark = pytest.mark.virtual


class Slow(Engine):
    """An engine process that starts slowly, after ``broken`` failed attempts."""

    def __init__(self, broken=0):
        super().__init__()
        self.broken = broken
        self.started = asyncio.Event()

    async def start(self):
        await asyncio.sleep(30)
        if self.broken:
            self.broken -= 1
            raise EngineError("no device")
        self.started.set()


async def forever():
    await asyncio.Event().wait()


class Filled:
    """A flow that runs ``fill``."""

    def __init__(self, world, role, engine, flow):
        self.run = lambda: fill(world.context, role, engine, flow)


@pytest.mark.parametrize("role", [Role.VALIDATOR, Role.TRAINER])
async def test_a_role_waits_for_its_engine(tmp_path, role):
    world, engine = FlowWorld(tmp_path, "validator 0"), Slow()
    world.run(Filled(world, role, engine, forever()))
    await world.rest(29)
    assert world.conditions.preparing == "starting the engine"
    await world.rest(2)
    assert world.conditions.preparing == ""
    await world.stop()


async def test_an_engine_that_does_not_start_is_told_and_started_again(tmp_path):
    world, engine = FlowWorld(tmp_path, "validator 0"), Slow(broken=2)
    world.run(Filled(world, Role.VALIDATOR, engine, forever()))
    await world.rest(32)
    assert world.conditions.wrong == "validator engine failed: no device; trying again"
    assert world.conditions.preparing == "starting the engine"
    await asyncio.wait_for(engine.started.wait(), 300)
    await world.rest(1)
    assert (world.conditions.wrong, world.conditions.preparing) == ("", "")
    await world.stop()


async def test_a_worker_waits_for_its_first_version_though_nothing_is_wanted(tmp_path):
    world, engine = FlowWorld(tmp_path, "worker 0"), Slow()
    policy = world.policies.held.pop(0)
    world.network.synchronised = False  # no generation before synchronisation
    flow = InferenceFlow(world.context, engine, world.asked(Task()))
    world.run(Filled(world, Role.INFERENCE, engine, flow.run()))
    await world.rest(40)
    assert world.conditions.preparing == "starting the engine"
    engine.on_load = lambda: loading.append(
        (world.conditions.preparing, list(world.policies.in_use))
    )
    loading = []
    world.policies.held[0] = policy
    world.changes.notify()
    await world.rest(1)
    assert loading == [("loading version 0 into the engine", [0])]
    assert (engine.loads, world.conditions.preparing) == ([0], "")
    assert world.policies.in_use == []
    await world.stop()
