"""Key grinding for easy first problems, in a swarm of real daemons."""

import asyncio

import pytest

from protocol.core.types import PeerId
from simulations.adversaries import BEHAVIOURS
from simulations.cluster.world import World
from simulations.runtime.loop import run_virtual
from simulations.runtime.trace import Trace
from simulations.scenario.scenario import Scenario, parse_scenario

SWARM = """
name = "grinding"
description = "Eleven nodes, one of which makes keys."
minutes = {minutes}
signatures = "ed25519"

[nodes]
relay = 2
trainer = 1
validator = 4
inference = 4

[protocol.admission]
work_bits = 4
work_kib = 8
probation_epochs = {probation}
settled_epochs = {settled}

[[adversaries]]
role = "relay"
behaviour = "chosen-problems"
names = ["relay-1"]
"""


def scenario(probation: int, settled: int, minutes: float) -> Scenario:
    return parse_scenario(SWARM.format(probation=probation, settled=settled, minutes=minutes))


class Found:
    """State of the honest validators and the trainer at the end."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.judged: dict[PeerId, int] = {}
        self.taken: dict[PeerId, int] = {}

    def note(self, world: World) -> None:
        everybody = {machine.signer.peer_id for machine in world.machines.values()}
        for machine in world.machines.values():
            if machine.role not in ("validator", "trainer"):
                continue
            ledger = machine.replica().ledger
            self.versions.append(ledger.chain.version)
            for entry in (*ledger.commits.entries.values(), *ledger.commits.kept.values()):
                signer = entry.commit.signer
                if signer not in everybody:
                    self.taken[signer] = self.taken.get(signer, 0) + 1
                    self.judged[signer] = self.judged.get(signer, 0) + entry.timely


def lived(swarm: Scenario, seed: int) -> Found:
    found = Found()

    async def run() -> None:
        async def at_the_end(world: World) -> None:
            await asyncio.sleep(swarm.seconds - 1)
            found.note(world)

        await World(swarm, seed, Trace(), behaviours=BEHAVIOURS).run((at_the_end,))

    run_virtual(run())
    return found


@pytest.mark.long
def test_problems_that_were_chosen_count_for_nothing():
    """With a probation no validator judges these commits, whatever their date; without, all do."""
    open_to_all, on_probation = lived(scenario(0, 0, 2.5), 1), lived(scenario(2, 24, 6.5), 1)
    assert sum(open_to_all.judged.values()) > 20, "it is an attack where nothing keeps it out"
    assert sum(on_probation.taken.values()) > 20, "they are heard of"
    assert set(on_probation.judged.values()) == {0}
    assert min(on_probation.versions) >= 3, "honest workers are at work after their own probation"
