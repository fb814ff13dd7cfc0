"""Recorder of one honest node's view, for the pages that a live node serves."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from node.api.contributors import ContributorRow, ContributorsPage
from node.api.v1.node_source import NodeSource
from node.api.v1.recording import RecordedSwarm, record
from node.daemon import Daemon
from protocol.core.types import PeerId
from simulations.cluster.machine import SimMachine
from simulations.cluster.world import World

LOOK_SECONDS = 1.0
BEFORE_END_SECONDS = 1e-3
"""The last sample precedes the end by this much, while nodes still exist."""


class ViewRecorder:
    """An actor of a world; ``recorded`` is set at the end of the run."""

    def __init__(self) -> None:
        self.recorded: RecordedSwarm | None = None
        self._daemon: Daemon | None = None
        self._source: NodeSource | None = None

    async def __call__(self, world: World) -> None:
        """Sample one node each second until the end; switch nodes when it stops."""
        end = world.scenario.seconds - BEFORE_END_SECONDS
        while world.loop.time() + LOOK_SECONDS < end:
            self._look(world)
            await asyncio.sleep(LOOK_SECONDS)
        await world.wait_until(end)
        self._look(world)
        if self._source is not None:
            recorded = await record(self._source, world.scenario.name)
            names = {one.signer.peer_id: _name(one) for one in world.machines.values()}
            self.recorded = replace(recorded, contributors=_named(recorded.contributors, names))

    def _look(self, world: World) -> None:
        machine = next(filter(_sees_all, world.machines.values()), None)
        if machine is None or machine.daemon is None:
            return
        running = {one.daemon for one in world.machines.values() if one.running}
        if self._daemon is None or self._daemon not in running:
            self._daemon = daemon = machine.daemon
            self._source = NodeSource(daemon.reader.summary, machine.host.clock, machine.name)
            self._source.join(daemon.reader)
        if self._source is not None:
            self._source.look()


def _name(machine: SimMachine) -> str:
    return f"{machine.name} ({machine.behaviour})" if machine.behaviour else machine.name


def _named(page: ContributorsPage, names: Mapping[PeerId, str]) -> ContributorsPage:
    """Return the page with the names of the simulated machines, whose records have none."""

    def named(row: ContributorRow) -> ContributorRow:
        return replace(row, name=names.get(PeerId(row.peer_id), ""))

    own = None if page.own is None else named(page.own)
    return replace(page, rows=tuple(map(named, page.rows)), own=own)


def _sees_all(machine: SimMachine) -> bool:
    """Return whether a machine is a running honest validator: validators hold many bodies."""
    return machine.running and machine.role == "validator" and not machine.behaviour
