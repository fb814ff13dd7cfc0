"""The daemon: one node of one run, wired from ports.

Nothing here knows hivemind, SQLite, sockets or threads; ``node.live.node`` gives the live ports, a
simulation gives its own. Every service is a task of one group: if one fails, the node stops with
its error, because half a node is worse than none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from node.api.observer import Observer
from node.api.status import NodeStatus, Snapshot
from node.blobs.exchange import BlobExchange, ExchangeLimits
from node.context import Ports
from node.gossip.driver import Gossip
from node.membership.announcer import About, Membership, is_known
from node.membership.peers import Connections, DiallingTransport
from node.replication.anti_entropy import AntiEntropy
from node.replication.manifest_exchange import ManifestServer
from node.replication.message_log import MessageLog
from node.replication.network import SwarmNetwork
from node.replication.rollout_bodies import RolloutBodies
from node.streams.protocols import BLOBS
from node.weights.library import PolicyLibrary
from protocol.crypto import Signer, Verifier, verify
from protocol.faults import Fault
from protocol.gossip.message import Decoded
from protocol.gossip.params import Params
from protocol.manifest import SignedManifest
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Message,
    NodeRecord,
    Opened,
    RolloutCommit,
)
from protocol.replica import Received, Replica
from protocol.types import Digest, PeerId, Role, Topic, ValidationResult
from roles.flow import ChangeSignal, Conditions, RoleContext
from roles.inference.flow import InferenceFlow
from roles.ports.engines import Engines
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.ports.transport import Streams, TransportError
from roles.trainer.flow import TrainerFlow
from roles.validator.flow import ValidatorFlow

log = structlog.get_logger()

SYNCHRONISE_EPOCHS_MIN = 0.5
SYNCHRONISE_EPOCHS_MAX = 8
"""Gossip loses little; this bounds how long the loss lasts."""

STOP_SECONDS = 15.0
"""For each of the two things to do on leaving."""

HEARTBEAT_EPOCHS = 0.2
RELAY_HEARTBEATS = 0.05

COMPACT_EPOCHS = 60
"""A guess: the log then holds little more than the replica, and deleting is rare."""


class Daemon:
    """One node; ``run`` ends after ``stop``, or with the error of whatever failed."""

    def __init__(
        self,
        manifest: SignedManifest,
        signer: Signer,
        about: About,
        ports: Ports,
        engines: Engines,
        connections: Connections,
        *,
        verifier: Verifier = verify,
        opened: Opened | None = None,
        decoded: Decoded | None = None,
        upload_bytes_per_second: int | None = None,
        p2pd_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._manifest = manifest.manifest
        self._signer = signer
        self._about = about
        self._ports = ports
        self._engines = engines
        self._connections = connections
        self._stop = asyncio.Event()
        self._changes = ChangeSignal()
        self._conditions = Conditions()
        replica = connections.replica = Replica(self._manifest, verifier, opened)
        self._replica = replica
        self._message_log = MessageLog(ports.store)
        self._gossip = Gossip(
            ports.transport,
            signer,
            ports.clock,
            ports.rng.child("gossip"),
            params=_gossip_params(self._manifest.epochs.seconds),
            verifier=verifier,
            decoded=decoded,
        )
        streams = DiallingTransport(ports.transport, connections)
        self._exchange = BlobExchange(
            streams,
            ports.blobs,
            ports.clock,
            protocol=BLOBS.on(replica.run_id),
            limits=ExchangeLimits(upload_bytes_per_second=upload_bytes_per_second),
            on_fault=_log_fault,
        )
        self._anti_entropy = AntiEntropy(
            ports.transport,
            replica,
            ports.clock,
            self._accepted,
            blank=not is_known(ports.store),
        )
        self._manifest_server = ManifestServer(ports.transport, manifest)
        self._bodies = RolloutBodies(replica, ports.blobs, self._exchange)
        self._network = self._make_network(streams)
        self._policies = PolicyLibrary(
            ports, replica, self._exchange, self._changes, self._conditions
        )
        self._membership = self._make_membership()
        self._context = self._make_context()
        self._observer = self._make_observer(p2pd_pid)

    def _make_network(self, streams: Streams) -> SwarmNetwork:
        return SwarmNetwork(
            self._signer,
            self._replica,
            message_log=self._message_log,
            gossip=self._gossip,
            streams=streams,
            bodies=self._bodies,
            anti_entropy=self._anti_entropy,
            clock=self._ports.clock,
            heard=self._heard,
            accepted=self._accepted,
            changes=self._changes,
        )

    def _make_membership(self) -> Membership:
        return Membership(
            self._signer,
            self._replica,
            self._about,
            transport=self._ports.transport,
            directory=self._ports.directory,
            gossip=self._gossip,
            topic=self._network.topic(Topic.ROSTER),
            clock=self._ports.clock,
            store=self._ports.store,
            rng=self._ports.rng.child("membership"),
            policy_version=self._policies.newest_version,
            anti_entropy=self._anti_entropy,
        )

    def _make_context(self) -> RoleContext:
        return RoleContext(
            signer=self._signer,
            manifest=self._manifest,
            replica=self._replica,
            clock=self._ports.clock,
            blobs=self._ports.blobs,
            files=self._ports.files,
            store=self._ports.store,
            network=self._network,
            policies=self._policies,
            changes=self._changes,
            conditions=self._conditions,
        )

    def _make_observer(self, p2pd_pid: Callable[[], int | None]) -> Observer:
        return Observer(
            peer_id=self._signer.peer_id,
            roles=self._about.roles,
            replica=self._replica,
            clock=self._ports.clock,
            connections=self._connections,
            gossip=self._gossip,
            exchange=self._exchange,
            policies=self._policies,
            conditions=self._conditions,
            addresses=lambda: self._membership.addresses,
            synchronised=lambda: self._anti_entropy.synchronised,
            p2pd_pid=p2pd_pid,
            started_at=self._ports.clock.now(),
        )

    @property
    def replica(self) -> Replica:
        """What this node has concluded."""
        return self._replica

    def status(self) -> NodeStatus:
        """Return what this node says of itself and the swarm."""
        return self._observer.status()

    def snapshot(self) -> Snapshot:
        """Return the few numbers of the status that cost nothing to take."""
        return self._observer.snapshot()

    def why(self) -> Mapping[str, Any]:
        """Explain this node's state and its rollouts that failed."""
        return self._observer.why()

    def stop(self) -> None:
        """Begin to drain; ``run`` returns when that is done."""
        self._observer.draining = True
        self._stop.set()

    async def run(self) -> None:
        """Serve and work until ``stop``."""
        self._message_log.restore(self._replica)
        await self._bodies.restore()
        self._replica.advance(self._ports.clock.now())
        await self._message_log.compact(self._replica)
        await self._policies.restore()
        await self._exchange.start()
        await self._manifest_server.start()
        await self._anti_entropy.start()
        await self._network.start()
        await self._gossip.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(_for_ever(name, service), name=name)
                    for name, service in self._services().items()
                ]
                await self._stop.wait()
                for task in services:
                    task.cancel()
        finally:
            await self._leave()

    def _services(self) -> dict[str, Any]:
        services = {
            "connections": self._connections.run(),
            "membership": self._membership.run(),
            "synchronise": self._synchronise(),
            "policies": self._policies.run(),
            "housekeeping": self._keep_house(),
        }
        environment = self._engines.environment(self._manifest)
        if Role.INFERENCE in self._about.roles:
            generation = self._engines.generation(self._manifest)
            services["inference"] = InferenceFlow(self._context, generation, environment).run()
        if Role.VALIDATOR in self._about.roles:
            verification = self._engines.verification(self._manifest)
            services["validator"] = ValidatorFlow(self._context, verification, environment).run()
        if Role.TRAINER in self._about.roles:
            training = self._engines.training(self._manifest)
            services["trainer"] = TrainerFlow(self._context, training, environment).run()
        return services

    async def _leave(self) -> None:
        """Say goodbye and write what is pending, within a deadline."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._membership.announce(leaving=True)
                await asyncio.sleep(0.2)  # lets the goodbye reach the outbound streams
        except (TimeoutError, TransportError) as error:
            log.warning("left without a goodbye", error=str(error))
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._message_log.flush()
        except (TimeoutError, StorageFullError) as error:  # a synchronisation brings it back
            log.warning("what others said last is not stored", error=str(error))
        await self._gossip.stop()

    def _heard(self, received: Received) -> None:
        """Note which versions came to us as news: those can be judged by what we hold."""
        signed = received.signed
        if signed is None or not isinstance(signed.message, CheckpointManifest):
            return
        known = self._replica.ledger.checkpoint(signed.message.version)
        waits = received.fault is None and (known is None or known.digest != signed.digest)
        if self._anti_entropy.synchronised and (
            waits or received.result is ValidationResult.ACCEPT
        ):
            self._observer.judged[signed.digest] = None

    def _accepted(self, envelope: bytes, received: Received) -> None:
        """Keep a message that changed the replica, and wake the roles."""
        message = received.signed.message if received.signed is not None else None
        if isinstance(message, Certificate) and self._observer.first_certificate_at is None:
            self._observer.first_certificate_at = self._ports.clock.now()
        if isinstance(message, NodeRecord):
            return  # it comes again soon, and elections look at the clock anyway
        self._message_log.later(envelope)
        if isinstance(message, CheckpointManifest):
            self._policies.news.notify()
        if self._concerns_us(message):
            self._changes.notify()

    def _concerns_us(self, message: Message | None) -> bool:
        """Tell whether a role has something to do now, and not only at its next look."""
        if isinstance(message, RolloutCommit | Certificate) and not self._judges:
            if isinstance(message, RolloutCommit):
                return False
            entry = self._replica.ledger.entries.get(Digest(message.commit))
            return entry is not None and entry.commit.signer == self._signer.peer_id
        return True

    @property
    def _judges(self) -> bool:
        """Whether we look at the rollouts of others."""
        return Role.VALIDATOR in self._about.roles or Role.TRAINER in self._about.roles

    async def _synchronise(self) -> None:
        """Pull from one peer after another: at once when we come, then ever less often.

        The first peer may have just come too: after a power cut half of the swarm has.
        """
        rng = self._ports.rng.child("synchronise")
        pause_epochs = SYNCHRONISE_EPOCHS_MIN
        while True:
            for peer in rng.sample(self._connections.connected, 1):
                await self._anti_entropy.pull(peer)
            calm = self._anti_entropy.synchronised and not self._replica.behind
            pause_epochs = (
                min(2 * pause_epochs, SYNCHRONISE_EPOCHS_MAX) if calm else SYNCHRONISE_EPOCHS_MIN
            )
            await asyncio.sleep(pause_epochs * self._manifest.epochs.seconds)

    async def _keep_house(self) -> None:
        """Let time pass in the replica, write in batches, delete what nobody needs."""
        loop, epochs = asyncio.get_running_loop(), self._manifest.epochs
        compact_at = loop.time() + COMPACT_EPOCHS * epochs.seconds
        sweep_at = loop.time()
        while True:
            for signed in self._replica.advance(self._ports.clock.now()):
                self._accepted(signed.envelope, Received(ValidationResult.ACCEPT, signed))
            await self._publish_evidence()
            try:
                await self._message_log.flush()
                self._context.conditions.clear("archive")
            except StorageFullError as error:
                self._context.conditions.set("archive", f"disk full: {error}; waiting for room")
            if loop.time() >= compact_at:
                await self._message_log.compact(self._replica)
                compact_at = loop.time() + COMPACT_EPOCHS * epochs.seconds
            if loop.time() >= sweep_at:
                await self._bodies.sweep()
                sweep_at = loop.time() + epochs.seconds
            await asyncio.sleep(epochs.seconds / 4)

    async def _publish_evidence(self) -> None:
        for evidence in self._replica.evidence_due():
            try:
                await self._network.publish(Topic.EVIDENCE, evidence)
            except (
                RefusedError,
                StorageFullError,
            ) as error:  # others found it too
                log.info("evidence not published", error=str(error))


async def _for_ever(name: str, service: Coroutine[Any, Any, None]) -> None:
    """Run a service that must not end by itself, nor by a cancellation that was not meant for it.

    A group takes either in silence, and the node would go on as half a node.
    """
    try:
        await service
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the service {name} has ended by itself")


def _gossip_params(epoch_seconds: float) -> Params:
    """Return gossip's times: the specification's second, up to four when epochs are long.

    A heartbeat bounds how long a lost message is missed, and nothing is decided faster than an
    epoch; most of what an idle node does is its heartbeat. A relay waits a twentieth of it.
    """
    heartbeat_seconds = min(max(HEARTBEAT_EPOCHS * epoch_seconds, 1.0), 4.0)
    return Params(
        heartbeat_seconds=heartbeat_seconds, relay_wait_seconds=RELAY_HEARTBEATS * heartbeat_seconds
    )


def _log_fault(peer: PeerId, fault: Fault) -> None:
    log.warning("bad blob", peer=peer, fault=str(fault))
