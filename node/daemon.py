"""The daemon: one node of one run, wired from ports.

It depends on no hivemind, SQLite, sockets or threads: ``node.process.runner`` passes live ports, a
simulation its own. Every service is a task of one ``TaskGroup``: a failure in any stops the node.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from node.api.observer import Observer
from node.api.reader import NodeReader
from node.api.status import NodeStatus, Snapshot, Stage
from node.api.why import Why
from node.context import NodeContext, Ports, run_service
from node.membership.admission import OwnAdmission
from node.membership.announcer import About, Announcer, NodeFacts
from node.membership.key_guard import KeyGuard
from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.connections.manager import ConnectionManager, PeerValue
from node.network.gossip.config import params_for_epoch
from node.network.gossip.driver import Gossip
from node.network.reachability.autonat import Reachability
from node.network.reachability.observations import ReachabilityProber
from node.network.relay.circuits import Circuits
from node.network.streams.deadline import loop_time
from node.network.streams.protocols import BLOBS
from node.replication.anti_entropy import AntiEntropy
from node.replication.clock_watch import ClockWatch
from node.replication.evaluations import EvaluationCollector
from node.replication.history_guard import HistoryGuard
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.manifest_exchange import serve_manifest
from node.replication.message_log import MessageLog
from node.replication.rollout_bodies import RolloutBodies
from node.replication.swarm_client import SwarmClient
from node.weights.downloads import Downloads
from node.weights.library import PolicyLibrary
from node.weights.run_files import RunFiles
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import Output, Signer, Verifier, reveal_output, verify
from protocol.core.types import PeerId, Role, Topic
from protocol.gossipsub.message import Decoders
from protocol.ledger.reputation import has_reputation
from protocol.messages import Opened
from protocol.replica.replica import Replica
from protocol.run.manifest import SignedManifest
from roles.inference.flow import InferenceFlow
from roles.ports.engines import Engine, EngineError, Engines, Environment, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.ports.transport import TransportError, Trust
from roles.runtime.context import ChangeSignal, Conditions, RoleContext
from roles.runtime.retry import fill
from roles.trainer.flow import TrainerFlow
from roles.trainer.round_flow import RoundFlow
from roles.validator.council import CouncilFlow
from roles.validator.flow import ValidatorFlow

log = structlog.get_logger()

STOP_SECONDS = 15.0
"""Deadline of each shutdown step: announce the departure, flush the message log."""

LEAVING_SECONDS = 0.2
"""Time for the last record to reach the outbound streams."""


class Daemon:
    """One node; ``run`` returns after ``stop``, or raises the error of a failed service.

    ``machine`` is the fingerprint of machine and data directory. ``trusted_page`` must be in the
    history that peers show. ``shadows``: as a trainer, repeat the leader's steps. ``refusal`` is
    the reason of an unrequested stop, or empty. Raises ``ValueError`` when this machine cannot run
    the task.
    """

    def __init__(
        self,
        manifest: SignedManifest,
        signer: Signer,
        about: About,
        ports: Ports,
        engines: Engines,
        initial_peers: Sequence[str],
        *,
        verifier: Verifier = verify,
        output: Output = reveal_output,
        opened: Opened | None = None,
        decoding: Decoders | None = None,
        upload_bytes_per_second: int | None = None,
        machine: bytes = b"",
        trusted_page: TrustedPage | None = None,
        shadows: bool = True,
        p2pd_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._signed_manifest = manifest
        self._manifest = manifest.manifest
        self._about = about
        self._engines = engines
        self._shadows = shadows
        computes = [role for role in about.roles if role is not Role.RELAY]
        self._environment = engines.environment(self._manifest) if computes else None
        self._task: Environment | None = None
        self._stop = asyncio.Event()
        replica = Replica(self._manifest, verifier, output, opened)
        trusted = partial(has_reputation, manifest=self._manifest, ledger=replica.ledger)
        self._peers = self._make_peers(ports, replica, initial_peers, trusted)
        trust = Trust(trusted, self._peers.block_of, replica.roster.__contains__)
        self._context = context = NodeContext(
            signer, replica, ports, self._peers, ChangeSignal(), Conditions(), trust
        )
        self._gossip = self._make_gossip(verifier, decoding)
        self._exchange = self._make_exchange(upload_bytes_per_second)
        self._downloads = downloads = Downloads(ports, replica, self._exchange)
        self._prober = ReachabilityProber(context)
        self._reachability = reachability = Reachability(
            context, self._prober.finding_seconds, upload_bytes_per_second
        )
        self._circuits = Circuits(context, about.roles, reachability, self._exchange.upload_cap)
        self._run_files = RunFiles(ports, replica, downloads, context.conditions)
        self._policies = PolicyLibrary(
            ports, replica, self._exchange, downloads, context.changes, context.conditions
        )
        self._bodies = RolloutBodies(replica, ports.blobs, self._exchange)
        self._evaluation = EvaluationCollector(context, self._bodies)
        self._message_log = MessageLog(ports.store)
        self._key_guard = KeyGuard(context, machine)
        self.refusal = ""
        self._inbox = MessageIntake(
            context, self._message_log, self._key_guard, about.roles, self._policies.news
        )
        self._anti_entropy = AntiEntropy(context, self._inbox, self._exchange.upload_cap)
        self.history = HistoryGuard(context, self._anti_entropy.other_histories, trusted_page)
        self._network = SwarmClient(
            context, self._inbox, self._gossip, self._bodies, self._anti_entropy, self._key_guard
        )
        self._announcer = self._make_announcer()
        self._observer = self._make_observer(p2pd_pid)
        self._reader = NodeReader(self._observer)
        for role in computes:
            context.conditions.prepare(role, "opening the run's task")
        for owner in (replica, self._peers, self._gossip, self._exchange):
            context.tables.register(*owner.tables)

    def _make_peers(
        self,
        ports: Ports,
        replica: Replica,
        initial: Sequence[str],
        trusted: Callable[[PeerId], bool],
    ) -> ConnectionManager:
        value = PeerValue(
            trusted,
            lambda peers: self._gossip.above_gossip_threshold(peers),  # noqa: PLW0108 - made later
            lambda: self._gossip.meshed(),  # noqa: PLW0108
        )
        rng = ports.rng.child("connections")
        return ConnectionManager(ports.transport, ports.clock, rng, initial, replica.roster, value)

    def _make_exchange(self, upload_bytes_per_second: int | None) -> BlobExchange:
        context = self._context
        return BlobExchange(
            self._peers,
            context.ports.blobs,
            protocol=BLOBS.on(context.replica.run_id),
            limits=ExchangeLimits(upload_bytes_per_second=upload_bytes_per_second),
            trust=context.trust,
            on_fault=self._peers.blame,
            on_worth=partial(self._peers.inbound.openings.adjust, cost=-1),
            http=context.ports.http,
            http_port=context.http_port,
        )

    def _make_gossip(self, verifier: Verifier, decoding: Decoders | None) -> Gossip:
        ports = self._context.ports
        return Gossip(
            self._peers,
            self._context.signer,
            ports.clock,
            ports.rng.child("gossip"),
            trust=self._context.trust,
            params=params_for_epoch(self._manifest.epochs.seconds),
            verifier=verifier,
            decoding=decoding,
        )

    def _make_announcer(self) -> Announcer:
        inbox = self._inbox
        return Announcer(
            self._context,
            self._key_guard,
            OwnAdmission(self._context, self._about.invite),
            self._about,
            self._network,
            self._facts,
            # Records only: an untrusted peer can store arbitrary bytes in the directory.
            hint=lambda record: inbox.take(record, MessageOrigin.DIRECTORY, topic=Topic.ROSTER),
            synchronised=self._anti_entropy.wait_until_synchronised,
        )

    def _facts(self) -> NodeFacts:
        return NodeFacts(
            reachable=self._reachability.reachable,
            observations=self._prober.findings(),
            policy_version=self._policies.newest_version(),
            relay_addresses=self._circuits.addresses,
        )

    def _make_observer(self, p2pd_pid: Callable[[], int | None]) -> Observer:
        observer = Observer(
            manifest=self._signed_manifest,
            context=self._context,
            roles=self._about.roles,
            peers=self._peers,
            gossip=self._gossip,
            exchange=self._exchange,
            circuits=self._circuits,
            policies=self._policies,
            downloads=self._downloads.arrivals,
            inbox=self._inbox,
            addresses=lambda: self._announcer.addresses,
            anti_entropy=self._anti_entropy,
            p2pd_pid=p2pd_pid,
            task=lambda: self._task,
            forest=self._downloads.members,
            round_trips=lambda: self._anti_entropy.answer_seconds,
            started_at=self._context.ports.clock.now(),
            monotonic=loop_time,
            trusted_page=lambda: str(self.history.page or ""),
        )
        self._inbox.listen(observer.note)
        self._inbox.listen(ClockWatch(self._context).note)
        return observer

    @property
    def replica(self) -> Replica:
        """The replicated state of the run, as this node computed it."""
        return self._context.replica

    @property
    def context(self) -> NodeContext:
        """State shared by the services."""
        return self._context

    @property
    def exchange(self) -> BlobExchange:
        """Upload and download of blobs."""
        return self._exchange

    @property
    def policies(self) -> PolicyLibrary:
        """Policy versions stored on this machine."""
        return self._policies

    def reachable_addresses(self) -> list[str]:
        """Return addresses through which a later start can join."""
        return self._peers.reachable_addresses()

    def status(self) -> NodeStatus:
        """Return the status of this node and its view of the swarm."""
        return self._reader.status()

    def snapshot(self) -> Snapshot:
        """Return the subset of the status that is cheap to compute."""
        return self._observer.snapshot()

    def stage(self) -> Stage:
        """Return the current stage, for example ``joining`` or ``ready``."""
        return self._observer.stage()

    def why(self) -> Why:
        """Explain the node's state and its failed rollouts."""
        return self._reader.why()

    @property
    def reader(self) -> NodeReader:
        """Reader of this node, for the HTTP API."""
        return self._reader

    def stop(self) -> None:
        """Start to drain; ``run`` returns when the node has drained."""
        self._observer.draining = True
        self._stop.set()

    async def run(self) -> None:
        """Serve and work until ``stop``."""
        context = self._context
        context.training.restore(context.ports.store)
        context.evaluation.restore(context.ports.store)
        await self._key_guard.begin()
        await self._inbox.restore()
        await self._bodies.restore()
        self._inbox.advance()
        await self._message_log.compact(context.replica)
        self.refusal = await self.history.begin()
        if self.refusal:
            return
        await self._policies.restore()
        self._observer.restored = True
        if not self._run_files.complete:
            for role in self._about.roles:
                context.conditions.resign(role)
        await self._exchange.start()
        await self._prober.start()
        await self._circuits.start()
        await serve_manifest(self._peers, self._signed_manifest, context.trust, context.tables)
        await self._anti_entropy.start()
        await self._network.start()
        await self._gossip.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(run_service(name, service), name=name)
                    for name, service in self._services().items()
                ]
                await self._stop.wait()
                for task in services:
                    task.cancel()
        finally:
            await self._leave()

    def _services(self) -> dict[str, Coroutine[Any, Any, None]]:
        evaluated = self._manifest.evaluation is not None
        evaluation = {"evaluation": self._evaluation.run()} if evaluated else {}
        return evaluation | {
            "peers": self._peers.run(),
            "membership": self._announcer.run(),
            "reachability": self._reachability.run(),
            "circuits": self._circuits.run(self._announcer.renew),
            "anti-entropy": self._anti_entropy.run(),
            "inbox": self._inbox.run(),
            "policies": self._policies.run(),
            "bodies": self._bodies.run(),
            "evidence": self._network.publish_evidence(),
            "key": self._leave_to_duplicate(),
            "history": self._leave_history(),
            "council": self._vote(),
            "roles": self._work(),
        }

    async def _leave_to_duplicate(self) -> None:
        """Stop without an announcement when a duplicate process uses this key.

        Other nodes would attribute the announcement to the duplicate.
        """
        self.refusal = await self._key_guard.wait_duplicate()
        self.stop()
        await asyncio.Event().wait()

    async def _leave_history(self) -> None:
        """Stop when no history can be followed: roles and votes must not take sides."""
        self.refusal = await self.history.wait_refused()
        self.stop()
        await asyncio.Event().wait()

    async def _vote(self) -> None:
        """Act in the council; the files of the run are not needed for that."""
        await self._key_guard.wait_alone()
        await self._anti_entropy.wait_until_synchronised()
        await CouncilFlow(self._role_context()).run()

    async def _work(self) -> None:
        """Start the roles after the run's files are here; a relay fetches them to serve them."""
        await self._run_files.fetch()
        await self._key_guard.wait_alone()
        if self._environment is not None and await self._opened(self._environment):
            await self._take_up_roles()
            async with asyncio.TaskGroup() as group:
                for name, flow in self._flows(self._environment).items():
                    group.create_task(run_service(name, flow), name=name)
        await asyncio.Event().wait()

    async def _take_up_roles(self) -> None:
        """Announce the roles that the node withdrew while files were missing."""
        conditions = self._context.conditions
        resigned = [role for role in self._about.roles if conditions.has_resigned(role)]
        for role in resigned:
            conditions.take_up(role)
        try:
            if resigned:
                await self._announcer.announce()
        except TransportError as error:  # the next record repeats it
            log.warning("record not announced", error=str(error))

    async def _opened(self, environment: Environment) -> bool:
        """Open the task of the run; on failure return False and act as a relay only."""
        try:
            await environment.open()
        except Exception as error:  # untrusted files and their parsers
            reason = EngineError.of(error)
            log.exception("the run's task cannot be opened")
            self._context.conditions.set("task", f"the run's task cannot be opened: {reason}")
            return False
        self._task = environment
        return True

    def _flows(self, environment: Environment) -> dict[Role, Coroutine[Any, Any, None]]:
        context, engines, manifest = self._role_context(), self._engines, self._manifest
        flows: dict[Role, tuple[Engine, Coroutine[Any, Any, None]]] = {}
        if Role.INFERENCE in self._about.roles:
            generation = engines.generation(manifest)
            flows[Role.INFERENCE] = (
                generation,
                InferenceFlow(context, generation, environment).run(),
            )
        if Role.VALIDATOR in self._about.roles:
            checking = engines.verification(manifest)
            flows[Role.VALIDATOR] = checking, ValidatorFlow(context, checking, environment).run()
        if Role.TRAINER in self._about.roles:
            training = engines.training(manifest)
            trainer = self._trainer(context, training, environment)
            flows[Role.TRAINER] = training, trainer.run()
        return {role: fill(context, role, *made) for role, made in flows.items()}

    def _trainer(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> TrainerFlow:
        if self._manifest.grpo.outer is not None:
            return RoundFlow(context, engine, environment)
        return TrainerFlow(context, engine, environment, shadows=self._shadows)

    def _role_context(self) -> RoleContext:
        context, ports = self._context, self._context.ports
        return RoleContext(
            signer=context.signer,
            manifest=self._manifest,
            replica=context.replica,
            clock=ports.clock,
            background=ports.background,
            blobs=ports.blobs,
            files=ports.files,
            rows=ports.rows,
            store=ports.store,
            network=self._network,
            policies=self._policies,
            changes=context.changes,
            conditions=context.conditions,
            policy_swaps=context.policy_swaps,
            durations=context.durations,
            training=context.training,
            shadow=context.shadow,
        )

    async def _leave(self) -> None:
        """Announce the departure and flush the message log, each within ``STOP_SECONDS``."""
        try:
            if not self.refusal:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._announcer.announce(leaving=True)
                    await asyncio.sleep(LEAVING_SECONDS)
        except (TimeoutError, TransportError) as error:
            log.warning("departure not announced", error=str(error))
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._message_log.flush()
        except (TimeoutError, StorageFullError) as error:  # anti-entropy restores it
            log.warning("message log not flushed", error=str(error))
        await self._gossip.stop()
