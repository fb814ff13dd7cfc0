"""Recorder of a simulated node's port calls as trace events."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from blake3 import blake3

from node.daemon import Daemon
from protocol.core.types import PeerId, Topic
from protocol.shardcast.forest import tree
from roles.ports.storage import Put
from simulations.cluster.machine import SimMachine
from simulations.ports.signing import Sighting
from simulations.ports.storage import OnPut, Session
from simulations.runtime.loop import START
from simulations.runtime.trace import Emit, Trace, Value
from simulations.scenario.scenario import Scenario

SIGHTINGS_FULL = 100
"""Larger swarms trace one gossiped message in nodes / ``SIGHTINGS_FULL``."""

NODES_ASKED_MAX = 64
"""Nodes sampled for agreement; drawing a committee costs one hash per validator."""

AFTER_EPOCHS = 2
"""Epochs between a commit and its sample; by then every node has drawn its committee."""


class Recorder:
    """Writes one trace; a listener that raises ends the simulation with its error (``halt``)."""

    def __init__(
        self, trace: Trace, halt: Callable[[BaseException], None], scenario: Scenario
    ) -> None:
        self._trace = trace
        self._halt = halt
        self._scenario = scenario
        self._loop = asyncio.get_running_loop()
        self._first_held_at: dict[int, float] = {}
        self._asked: dict[str, int] = {}
        """Node to the last epoch of commits for which its committees were sampled."""
        self._grown: dict[str, int] = {}
        """Node to the last version for which its forest was sampled."""

    def emit(self, node: str, kind: str, **facts: Value) -> None:
        """Record an event."""
        try:
            self._trace.emit(START + self._loop.time(), node, kind, **facts)
        except Exception as error:  # noqa: BLE001 - a checker's finding ends the run, not a daemon
            self._halt(error)

    def emitter(self, name: str, session: Session) -> Emit:
        """Return the emit function of one session's ports; it records nothing after its end."""

        def emit(kind: str, **facts: Value) -> None:
            if session.alive:
                self.emit(name, kind, **facts)

        return emit

    def on_put(self, emit: Emit) -> OnPut:
        """Return the callback for everything that becomes durable on a node."""

        def on_put(put: Put) -> None:
            emit("stored", table=put.table, key=put.key, value=put.value)
            if put.table == "policies":
                version = int.from_bytes(put.key, "big")
                now = self._loop.time()
                since = self._first_held_at.setdefault(version, now)
                emit(
                    "weights",
                    version=version,
                    seconds=round(now - since, 6),
                    bytes=self._scenario.workload.weights_bytes,
                )

        return on_put

    def sighting(self, emit: Emit) -> Sighting:
        """Return the callback for gossiped messages that a node makes or first sees.

        Members' records are left out: they also come by the directory, and a node that has one does
        not forward it.
        """
        one_in = max(1, self._scenario.nodes.total // SIGHTINGS_FULL)

        def sighting(topic: str, signature: bytes, ours: bool) -> None:
            if signature[0] % one_in == 0 and not topic.endswith(Topic.ROSTER):
                kind = "gossip-published" if ours else "gossip-first"
                emit(kind, topic=topic, id=signature[1:9].hex())

        return sighting

    async def sample(self, machines: Mapping[str, SimMachine]) -> None:
        """Record the numbers of every node periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._scenario.sample_seconds)
            one_in = -(-self._scenario.nodes.total // NODES_ASKED_MAX)
            bad = {item.signer.peer_id for item in machines.values() if item.behaviour}
            for number, machine in enumerate(machines.values()):
                if machine.daemon is not None:
                    self._sample(machine, machine.daemon)
                    if number % one_in == 0:
                        self._ask(machine, machine.daemon)
                        if bad and not machine.behaviour:
                            self._look_at_forest(machine, machine.daemon, bad)

    def _sample(self, machine: SimMachine, daemon: Daemon) -> None:
        snapshot, ledger = daemon.snapshot(), daemon.replica.intake.ledger
        counted = ledger.state(ledger.accounts.header.epoch)
        self.emit(
            machine.name,
            "sample",
            members=snapshot.members,
            state=snapshot.state,
            policy=snapshot.policy_version,
            version=snapshot.version,
            backlog=snapshot.backlog,
            committed=snapshot.committed,
            certified=snapshot.certified,
            rejected=snapshot.rejected,
            expired=snapshot.expired,
            final_epoch=daemon.replica.pages.root.epoch,
            counted_epoch=ledger.accounts.header.epoch,
            counted_root=None if counted is None else counted.root,
            gossip_received=snapshot.gossip_received,
            gossip_duplicates=snapshot.gossip_duplicates,
            gossip_dropped=snapshot.gossip_dropped,
            weights_received=snapshot.weights_received,
            core_seconds=round(machine.host.core.spent_seconds, 6),
            **snapshot.sizes,
        )
        for protocol, meter in sorted(machine.host.meters.items()):
            self.emit(
                machine.name,
                "bytes",
                protocol=protocol,
                sent=meter.sent,
                received=meter.received,
            )

    def _ask(self, machine: SimMachine, daemon: Daemon) -> None:
        """Record the committees that a node draws, once per epoch."""
        replica = daemon.replica
        epoch = replica.manifest.epoch_at(machine.host.clock.now()) - AFTER_EPOCHS
        if self._asked.get(machine.name) == epoch:
            return
        self._asked[machine.name] = epoch
        for entry in list(replica.ledger.commits.entries.values()):
            if entry.epoch == epoch:
                committee = replica.verdicts.committee(entry.commit)
                drawn = () if committee is None else committee.escalated
                members = blake3("/".join(drawn).encode()).hexdigest()[:16]
                self.emit(machine.name, "committee", commit=entry.commit.digest, members=members)

    def _look_at_forest(self, machine: SimMachine, daemon: Daemon, bad: Collection[PeerId]) -> None:
        """Record, once per version, how many honest members have a dishonest parent."""
        replica = daemon.replica
        head = replica.ledger.chain.head
        if head is None or self._grown.get(machine.name) == head.message.version:
            return
        self._grown[machine.name] = head.message.version
        members, rules = daemon.reader.observer.forest(), replica.manifest.shardcast
        parents = [
            parent
            for stripe in range(rules.stripes)
            for child, parent in tree(
                members, head.signer, head.digest, stripe, rules.stripes, rules.fanout
            ).parents.items()
            if child not in bad
        ]
        fed_badly = sum(parent in bad for parent in parents)
        self.emit(machine.name, "forest", children=len(parents), fed_badly=fed_badly)
