"""A whole swarm in one process: the machines of a scenario, with a real daemon on each.

Churn and faults are actors: coroutines over the world.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from node.context import Ports
from node.daemon import Daemon
from node.membership.announcer import About
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import Signer
from protocol.core.rng import Rng
from protocol.core.types import PeerId, Role
from protocol.gossipsub.message import DECODED_MAX, Decoded, Decoders
from protocol.messages import OPENED_MAX, Hardware, Opened
from protocol.run.manifest import Genesis, RunManifest, SignedManifest, sign_manifest
from simulations.cluster.appointment import appoint
from simulations.cluster.machine import SimMachine
from simulations.cluster.placement import Placement, bytes_per_second
from simulations.cluster.recorder import Recorder
from simulations.network.connections import LinkConditions
from simulations.network.links import SimClock
from simulations.network.meshsight import mesh_pipes
from simulations.network.network import SimNetwork
from simulations.network.transport import address_of
from simulations.ports.blobs import SimBlobs
from simulations.ports.directory import SharedDirectory
from simulations.ports.engines import SimEngines
from simulations.ports.parts import Behaviour, Parts
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.signing import Scheme, TracedSigner, traced
from simulations.ports.signing import charged as charged_output
from simulations.ports.storage import Session, SimStore
from simulations.ports.sums import policy_seed
from simulations.runtime.content import Extent, policy_digest
from simulations.runtime.cores import Core, charged
from simulations.runtime.loop import START, SimBackground, VirtualLoop
from simulations.runtime.trace import Emit, Trace
from simulations.scenario.plans import ALL_ROLES, RoleName
from simulations.scenario.scenario import Scenario

SHORT_NAMES = {
    "inference": "worker",
    "validator": "validator",
    "trainer": "trainer",
    "relay": "relay",
}
"""Name prefixes of nodes; a number from 0 follows."""

REMEMBERED_PER_NODE = 4
"""Checked messages that all nodes share: a record and its successor, and as many commits and
certificates. A message evicted before a node needs it is checked and kept again."""

Actor = Callable[["World"], Coroutine[Any, Any, None]]


class NodeFailedError(Exception):
    """A daemon ended with an error of its own: a defect, which ends the simulation."""


class World:
    """One simulation inside a ``VirtualLoop``; ``behaviours`` are those of dishonest nodes."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        trace: Trace,
        *,
        behaviours: Mapping[str, Behaviour] = MappingProxyType({}),
    ) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise TypeError("a world needs a VirtualLoop")
        self.scenario = scenario
        self.trace = trace
        self.loop = loop
        self._recorder = Recorder(trace, self.halt, scenario)
        self.emit = self._recorder.emit
        """Records an event, for actors as well."""
        self.rng = Rng(seed.to_bytes(8, "big")).child(scenario.name)
        self.machines: dict[str, SimMachine] = {}
        """By name, in order of creation."""
        self._behaviours = behaviours
        self._accomplices: dict[str, dict[PeerId, Signer]] = {}
        self._scheme = Scheme(scenario.signatures, self.rng.child("secret").bytes(32))
        self._placement = Placement(scenario)
        conditions = LinkConditions(
            self.rng.child("conditions"), scenario.network.jitter, scenario.network.loss
        )
        self.network = SimNetwork(
            loop, self.rng.child("paths"), conditions, scenario.network.round_trip_seconds
        )
        self.network.pipe_makers["gossip"] = mesh_pipes(self.emit)
        self.network.on_misdial = lambda opener, name: self.emit(opener, "misdial", door=name)
        self._directory = SharedDirectory(SimClock(loop, Core(loop)), scenario.directory)
        self._counts = dict.fromkeys(ALL_ROLES, 0)
        self._opened = Opened(max(OPENED_MAX, REMEMBERED_PER_NODE * scenario.nodes.total))
        self._decoded = Decoded(max(DECODED_MAX, REMEMBERED_PER_NODE * scenario.nodes.total))
        self.ended: asyncio.Future[None] = loop.create_future()
        """Raises the error that ended the simulation early."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        for role in ("relay", "trainer", "validator", "inference"):
            for _ in range(scenario.nodes.count(role)):
                self.add(role)
        appoint(scenario, self.machines, self._add_untrusted_peer, self.rng)
        self.manifest: SignedManifest = self._found_run()

    # Machines

    def add(self, role: RoleName, *, untrusted_peer: bool = False) -> str:
        """Make a machine without starting it; return its name.

        Nodes never receive the address of an ``untrusted_peer`` as a bootstrap peer.
        """
        name = f"{SHORT_NAMES[role]}-{self._counts[role]}"
        self._counts[role] += 1
        rng = self.rng.child(f"machine/{name}")
        signer = self._scheme.signer(rng.child("key").bytes(32))
        line, nat = self._placement.line(role)
        skew = self.scenario.skew_seconds_max * (2 * rng.child("skew").uniform() - 1)
        host = self.network.add_host(
            name,
            signer.peer_id,
            region=self._placement.region(role),
            upload_bytes_per_second=bytes_per_second(line.upload_mbit),
            download_bytes_per_second=bytes_per_second(line.download_mbit),
            nat=nat,
            skew_seconds=skew,
        )
        relays = [
            machine
            for machine in self.machines.values()
            if machine.role == "relay" and not machine.untrusted_peer
        ]
        known = rng.child("bootstrap").sample(relays, self.scenario.nodes.bootstrap_peers)
        self.machines[name] = SimMachine(
            name,
            role,
            host,
            signer,
            self._placement.compute(role),
            role == "validator" or (role == "inference" and self.scenario.nodes.workers_validate),
            tuple(address_of(machine.host) for machine in known),
            untrusted_peer=untrusted_peer,
        )
        return name

    def _add_untrusted_peer(self, role: RoleName) -> SimMachine:
        return self.machines[self.add(role, untrusted_peer=True)]

    def _found_run(self) -> SignedManifest:
        creator = self._scheme.signer(self.rng.child("creator").bytes(32))
        seed = policy_seed(self.scenario.workload.skill, b"genesis")
        genesis = Extent.of(seed, 0, self.scenario.workload.weights_bytes)
        manifest = RunManifest(
            **dict(self.scenario.recipe()),
            genesis=Genesis(
                creator=creator.peer_id,
                created_at=round(START),
                policy=policy_digest(genesis).hex(),
                trainers=self._peers("trainer"),
                validators=self._peers("validator"),
            ),
        )
        for machine in self.machines.values():
            if machine.role == "trainer":
                machine.disk.files[machine.genesis] = genesis
        return sign_manifest(manifest, creator)

    def _peers(self, role: RoleName) -> tuple[str, ...]:
        machines = self.machines.values()
        return tuple(machine.signer.peer_id for machine in machines if machine.role == role)

    @property
    def running(self) -> list[str]:
        """The names of the running nodes, in order of creation."""
        return [name for name, machine in self.machines.items() if machine.running]

    def trusted_page(self) -> TrustedPage | None:
        """Return the page that a join command names now, on the honest node that knows most."""
        machines = [one for one in self.machines.values() if one.running and not one.behaviour]
        trees = [one.daemon.replica.pages for one in machines if one.daemon is not None]
        return TrustedPage.of(max(trees, key=lambda tree: tree.root.epoch))

    @property
    def now(self) -> float:
        """Virtual unix seconds."""
        return START + self.loop.time()

    async def wait_until(self, seconds: float) -> None:
        """Sleep until ``seconds`` after the start in virtual time; return at once if passed."""
        await asyncio.sleep(max(0.0, seconds - self.loop.time()))

    # Sessions

    def start(self, name: str) -> None:
        """Start a daemon with the state that its machine kept, if any; no effect while it runs."""
        machine = self.machines[name]
        if machine.running:
            return
        machine.session = session = Session()
        machine.starts += 1
        emit = self._recorder.emitter(machine.name, session)
        emit(
            "node-up",
            role=machine.role,
            validates=machine.validates,
            peer=machine.signer.peer_id,
            restart=machine.starts > 1,
            behaviour=machine.behaviour,
            upload=round(machine.host.up.bytes_per_second),
            download=round(machine.host.down.bytes_per_second),
            nat=machine.host.nat,
        )
        machine.daemon = self._daemon(machine, session, emit)
        machine.task = self.loop.create_task(machine.daemon.run(), name=name)
        machine.task.add_done_callback(lambda task: self._daemon_ended(name, session, task))

    def crash(self, name: str, *, lose_state: bool = False) -> None:
        """End a daemon as ``kill -9`` does: it sends and writes nothing more."""
        machine = self.machines[name]
        if not machine.running or machine.task is None:
            return
        self.emit(name, "node-down", how="lost" if lose_state else "crash")
        self._end_session(machine)
        machine.task.cancel()
        if lose_state:
            machine.disk.wipe()

    async def leave(self, name: str) -> None:
        """Drain a daemon and wait until it has ended."""
        machine = self.machines[name]
        if not machine.running or machine.daemon is None or machine.task is None:
            return
        session = machine.session
        machine.daemon.stop()
        await asyncio.wait([machine.task])
        if session.alive:
            self.emit(name, "node-down", how="leave")
            self._end_session(machine)

    def _end_session(self, machine: SimMachine) -> None:
        machine.session.alive = False
        machine.daemon = None
        self.network.detach(machine.name)

    def _daemon_ended(self, name: str, session: Session, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and session.alive:
            self.halt(NodeFailedError(f"{name}: {_root(error)!r}"), error)
        machine = self.machines[name]
        refusal = machine.daemon.history.refusal if machine.daemon is not None else ""
        if error is None and session.alive and refusal:
            self.emit(name, "node-down", how="refused", reason=refusal)
            self._end_session(machine)

    def _daemon(self, machine: SimMachine, session: Session, emit: Emit) -> Daemon:
        rng = self.rng.child(f"life/{machine.name}/{machine.starts}")
        transport = self.network.attach(machine.name, self._handler_failed)
        sighting = self._recorder.sighting(emit)
        parts = Parts(
            TracedSigner(machine.signer, sighting),
            Ports(
                clock=machine.host.clock,
                rng=rng.child("daemon"),
                transport=transport,
                directory=self._directory.directory(machine.signer.peer_id, rng.child("directory")),
                blobs=SimBlobs(machine.disk, session, emit, machine.compute),
                store=SimStore(machine.disk, session, self._recorder.on_put(emit)),
                files=SimPolicyFiles(
                    machine.disk,
                    session,
                    machine.weights,
                    machine.genesis,
                    machine.run_files,
                    patch_share=self.scenario.workload.patch_share,
                    compute=machine.compute,
                ),
                background=SimBackground(),
            ),
            SimEngines(
                machine.disk,
                machine.compute,
                self.scenario.workload,
                rng.child("engines"),
                emit,
                session,
            ),
            machine.disk,
            session,
            machine.replica,
            lambda: machine.acts_from <= self.loop.time() < machine.acts_until,
            self._accomplices.setdefault(machine.behaviour, {}),
        )
        if machine.behaviour:
            parts = self._behaviours[machine.behaviour](parts, rng.child("behaviour"))
        upload_limit = round(machine.host.up.bytes_per_second * self.scenario.upload_limit_share)
        return Daemon(
            self.manifest,
            parts.signer,
            About(
                tuple(map(Role, machine.roles)),
                Hardware(),
                reachable=True,
                software="simulated",
                upload_bytes_per_second=upload_limit,
            ),
            parts.ports,
            parts.engines,
            machine.bootstrap,
            verifier=traced(self._scheme.verifier, sighting, machine.host.core),
            output=charged_output(self._scheme.output, machine.host.core),
            opened=self._opened,
            decoding=Decoders(self._decoded, charged(machine.host.core)),
            upload_bytes_per_second=upload_limit,
            trusted_page=machine.trusted_page,
        )

    # Running

    async def run(self, actors: Iterable[Actor] = ()) -> None:
        """Run the scenario to its end; raises earlier errors of listeners and daemons."""
        self.begin()
        for work in (
            self._start_all(),
            self._recorder.sample(self.machines),
            *(actor(self) for actor in actors),
        ):
            self.spawn(work)
        try:
            async with asyncio.timeout(self.scenario.seconds):
                await self.ended
        except TimeoutError:
            pass
        finally:
            await self._stop_all()

    def begin(self) -> None:
        """Record the identity of this run as the first event."""
        self.loop.set_exception_handler(self._loop_failed)
        self.emit(
            "world",
            "run",
            name=self.scenario.name,
            manifest=self.manifest.manifest.encoded(),
            signatures=self.scenario.signatures,
        )

    async def _start_all(self) -> None:
        rng, within = self.rng.child("start"), self.scenario.nodes.start_seconds
        starts = [
            (machine.joins_at + (0.0 if _starts_first(machine) else within * rng.uniform()), name)
            for name, machine in self.machines.items()
        ]
        for at, name in sorted(starts, key=lambda start: start[0]):
            await self.wait_until(at)
            self.start(name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the daemons until the end; its failure ends the simulation."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.halt(error)

    def halt(self, error: BaseException, cause: BaseException | None = None) -> None:
        """End the simulation: ``run`` raises ``error``; only the first one counts."""
        if not self.ended.done():
            error.__cause__ = cause or error.__cause__
            self.ended.set_exception(error)

    def _handler_failed(self, error: BaseException) -> None:
        self.halt(NodeFailedError(f"a stream handler failed: {error!r}"), error)

    def _loop_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.halt(NodeFailedError(f"{context['message']}: {error!r}"), error)

    async def _stop_all(self) -> None:
        """Crash every daemon: events after the end are not part of the run."""
        self.loop.set_exception_handler(lambda _loop, _context: None)
        machines = [machine for machine in self.machines.values() if machine.running]
        for machine in machines:
            self._end_session(machine)
        tasks = [*self._tasks, *(machine.task for machine in machines if machine.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _starts_first(machine: SimMachine) -> bool:
    """Return whether a machine starts at once: bootstrap peers, and the earliest adversaries."""
    if machine.untrusted_peer:
        return bool(machine.behaviour) and machine.acts_from <= machine.joins_at
    return machine.role == "relay"


def _root(error: BaseException) -> BaseException:
    """Return the first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
