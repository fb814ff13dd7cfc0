"""Records what one honest node sees, for the pages that a living node serves, too."""

import asyncio

from node.api.v1.node_source import NodeSource
from node.api.v1.recording import RecordedSwarm, record
from node.daemon import Daemon
from simulations.cluster.machine import SimMachine
from simulations.cluster.world import World

LOOK_SECONDS = 1.0
BEFORE_END_SECONDS = 1e-3
"""The last look is taken so long before the end, while there are nodes to look at."""


class ViewRecorder:
    """An actor of a world; ``recorded`` is there when the run came to its end."""

    def __init__(self) -> None:
        self.recorded: RecordedSwarm | None = None
        self._daemon: Daemon | None = None
        self._source: NodeSource | None = None

    async def __call__(self, world: World) -> None:
        """Look each second until the end, at the same node for as long as it runs."""
        end = world.scenario.seconds - BEFORE_END_SECONDS
        while world.loop.time() + LOOK_SECONDS < end:
            self._look(world)
            await asyncio.sleep(LOOK_SECONDS)
        await world.wait_until(end)
        self._look(world)
        if self._source is not None:
            self.recorded = await record(self._source, world.scenario.name)

    def _look(self, world: World) -> None:
        machine = next(filter(_sees_all, world.machines.values()), None)
        if machine is None or machine.daemon is None:
            return
        running = {one.daemon for one in world.machines.values() if one.running}
        if self._daemon is None or self._daemon not in running:
            self._daemon = daemon = machine.daemon
            self._source = NodeSource(daemon.status, machine.host.clock, machine.name)
            self._source.join(daemon.view())
        if self._source is not None:
            self._source.look()


def _sees_all(machine: SimMachine) -> bool:
    """Return whether a machine is an honest validator that runs: they hold many bodies."""
    return machine.running and machine.role == "validator" and not machine.behaviour
