"""Small swarm of real daemons in virtual time, driven step by step by a test.

It is the simulator's world on a fast local network, with the simulator's checkers. Announced
messages are stored, no key contradicts itself, certificates and versions are valid. No message of
one node deletes what another one needs. ``finish`` raises reports of violations.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from node.daemon import Daemon
from protocol.replica.replica import Replica
from protocol.run.toml import load_recipe
from simulations.adversaries import BEHAVIOURS
from simulations.checkers import CheckerTolerances, Watch, attach_checkers
from simulations.cluster.world import World
from simulations.runtime.trace import Trace
from simulations.scenario.scenario import (
    ComputeClass,
    DirectoryQuality,
    LineClass,
    NetworkSection,
    Nodes,
    Scenario,
    Workload,
)
from tests.worlds.messages import RECIPE
from tests.worlds.network import eventually

CHANGED = ("sampling", "grpo", "committee", "epochs", "shardcast")
"""Sections taken from the testnet, with epochs of a second."""

QUICK = {
    "sampling": {"group_size": 4, "prompts_per_rollout": 2},
    "grpo": {"steps": 200},
    "committee": {"escalated_size": 2},
}
PATIENCE = CheckerTolerances(converge_epochs=60, progress_epochs=60)
STORAGE_EVENTS = ("blob-owned", "blobs-released", "blob-deleted")
ROLES = ("inference", "validator", "trainer", "relay")


def scenario(nodes: dict[str, int], changes: dict[str, Any]) -> Scenario:
    """Return a swarm on one local network; ``changes`` are recipe keys, as ``grpo__steps``."""
    testnet = load_recipe(RECIPE.read_text()).model_dump()
    protocol = {name: testnet[name] | QUICK.get(name, {}) for name in CHANGED}
    for path, value in changes.items():
        section, _, key = path.partition("__")
        protocol[section][key] = value
    fast = {"generate_tokens_per_second": 600, "check_tokens_per_second": 1200}
    return Scenario(
        name="test",
        description="A swarm for a test.",
        minutes=100_000,
        sample_seconds=1.0,
        nodes=Nodes(**{"relay": 1, "trainer": 1, "validator": 2, "inference": 1} | nodes),
        lines=(LineClass(name="lan", share=1, upload_mbit=1000, download_mbit=1000, roles=ROLES),),
        compute=(
            ComputeClass(
                name="fast",
                share=1,
                roles=ROLES,
                train_tokens_per_second=500,
                load_seconds=0.01,
                **fast,
            ),
        ),
        network=NetworkSection(regions={"here": 1.0}, same_region_ms=2.0, jitter=0.0),
        directory=DirectoryQuality(
            delay_seconds=0.0, lookup_seconds=0.01, missing=0.0, failing=0.0
        ),
        workload=Workload(weights_bytes=200_000, tokens_mean=4, skill=0.5),
        protocol=protocol,
    )


class Swarm(World):
    """``Swarm(validator=3, grpo__steps=5)``: numbers of nodes per role, and recipe keys.

    Checkers skip ``unseen`` kinds of events, with which the test itself harms a machine. One of the
    ``tolerated`` rules may be broken, which ends the check.
    """

    def __init__(
        self, *, unseen: Iterable[str] = (), tolerated: Iterable[str] = (), **options: Any
    ) -> None:
        self._tolerated = tolerated
        nodes = {role: options.pop(role) for role in ROLES if role in options}
        trace, self.watch = Trace(), Watch()
        attach_checkers(self.watch, PATIENCE)
        trace.listen(lambda event: None if event.kind in unseen else self.watch.see(event))
        super().__init__(scenario(nodes, options), 1, trace, behaviours=BEHAVIOURS)
        self.begin()
        self.spawn(self._recorder.sample(self.machines))

    # Sessions

    def start_all(self, *, but: Iterable[str] = ()) -> None:
        for name in self.machines:
            if name not in but:
                self.start(name)

    def daemon(self, name: str = "trainer-0") -> Daemon:
        daemon = self.machines[name].daemon
        assert daemon is not None, f"{name} does not run"
        return daemon

    def replica(self, name: str = "trainer-0") -> Replica:
        return self.daemon(name).replica

    def ledger(self, name: str = "trainer-0"):
        return self.replica(name).ledger

    def die_at(self, name: str, touch: int) -> None:
        """Crash a running node at its n-th disk access from now.

        Every durable write has two accesses, one before it and one after.
        """
        touches = 0

        async def touched() -> None:
            nonlocal touches
            touches += 1
            if touches == touch:
                self.crash(name)
                await asyncio.Event().wait()  # the writer goes no further

        self.machines[name].session.at_write = touched

    async def died(self, name: str) -> None:
        await eventually(lambda: not self.machines[name].running, 300)

    # Versions

    async def reach(self, version: int, name: str = "trainer-0", seconds: float = 300) -> None:
        await eventually(
            lambda: self._is_well() and self.ledger(name).chain.version >= version, seconds
        )

    async def more(self, versions: int, name: str = "trainer-0", seconds: float = 300) -> None:
        """Wait until a node knows ``versions`` more."""
        await self.reach(self.ledger(name).chain.version + versions, name, seconds)

    def _is_well(self) -> bool:
        if self.ended.done():
            self.ended.result()
        violation = self.watch.violation
        assert violation is None or violation.rule in self._tolerated, violation
        return True

    async def finish(self) -> None:
        """Stop all nodes; raises errors of daemons and reports of checkers."""
        await asyncio.gather(*(self.leave(name) for name in self.running))
        self.watch.finish(self.now)
        self._is_well()
