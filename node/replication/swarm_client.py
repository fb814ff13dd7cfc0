"""Roles' interface to the swarm (``roles.ports.swarm.Network``) over gossip, streams and blobs."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from typing_extensions import override

from node.context import NodeContext
from node.membership.key_guard import KeyGuard
from node.network.gossip.driver import Gossip
from node.network.resources.stream_limiter import StreamLimiter
from node.network.streams.deadline import within
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import MESSAGE, REQUEST_SECONDS, topic_name
from node.replication.anti_entropy import AntiEntropy
from node.replication.inbox import MessageIntake, MessageOrigin
from node.replication.rollout_bodies import RolloutBodies
from protocol.core.faults import Fault
from protocol.core.types import PeerId, Topic
from protocol.messages import MessageT, RolloutCommit, Signed, seal
from roles.ports.storage import StorageFullError
from roles.ports.swarm import Network, RefusedError
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

SEND_SECONDS = MESSAGE.stall_seconds

_ACKNOWLEDGED = b"\x06"


class SwarmClient(Network):
    """The swarm as seen by the roles of one node."""

    def __init__(
        self,
        context: NodeContext,
        inbox: MessageIntake,
        gossip: Gossip,
        bodies: RolloutBodies,
        anti_entropy: AntiEntropy,
        key_guard: KeyGuard,
    ) -> None:
        self._context = context
        self._inbox = inbox
        self._gossip = gossip
        self._bodies = bodies
        self._anti_entropy = anti_entropy
        self._key_guard = key_guard
        self._run_id = context.replica.run_id
        self._protocol = MESSAGE.on(self._run_id)

    @property
    @override
    def synchronised(self) -> bool:
        return self._anti_entropy.synchronised

    @property
    @override
    def first_slot(self) -> int | None:
        return self._key_guard.first_slot

    @override
    def may_have_evaluated(self, version: int) -> bool:
        return self._key_guard.may_have_evaluated(version)

    @override
    def may_have_judged(self, epoch: int) -> bool:
        return self._key_guard.may_have_judged(epoch)

    @override
    def may_have_voted(self, epoch: int) -> bool:
        return self._key_guard.may_have_voted(epoch)

    async def publish_evidence(self) -> None:
        """Publish the equivocations that this node finds, until cancelled."""
        replica = self._context.replica
        while True:
            for evidence in replica.verdicts.evidence_due():
                try:
                    await self.publish(Topic.EVIDENCE, evidence)
                except (RefusedError, StorageFullError) as error:  # other nodes found it too
                    log.info("evidence not published", error=str(error))
            await asyncio.sleep(replica.manifest.epochs.seconds / 4)

    async def start(self) -> None:
        """Register the handler of direct messages and subscribe to every topic."""
        bounded = StreamLimiter(self._serve, MESSAGE, self._context.trust)
        self._context.tables.register(*bounded.tables)
        await self._context.peers.handle(self._protocol, bounded)
        for topic in Topic:
            # A record stays news for an epoch, and is most of a large swarm's gossip.
            may_wait = topic is Topic.ROSTER
            name = topic_name(topic, self._run_id)
            validate = partial(self._inbox.validate, topic)
            self._gossip.subscribe(name, validate, may_wait=may_wait)

    # Sending

    @override
    async def publish(self, topic: Topic, message: MessageT) -> Signed[MessageT]:
        signed = await self.record(message)
        await self.announce(topic, signed.envelope)
        return signed

    @override
    async def record(self, message: MessageT) -> Signed[MessageT]:
        signed = seal(message, self._run_id, self._context.signer)
        await self._inbox.record(signed)
        if isinstance(message, RolloutCommit) and not message.evaluation:
            await self._key_guard.use(message.slot)
        return signed

    @override
    async def announce(self, topic: Topic, envelope: bytes) -> None:
        await self._gossip.publish(topic_name(topic, self._run_id), envelope)

    @override
    async def send(self, peer: PeerId, envelope: bytes) -> bool:
        try:
            return await within(SEND_SECONDS, self._deliver(peer, envelope))
        except TransportError:
            return False

    async def _deliver(self, peer: PeerId, envelope: bytes) -> bool:
        stream = await self._context.peers.open_stream(peer, self._protocol)
        try:
            await write_frame(stream, envelope)
            return await stream.read_exactly(1) == _ACKNOWLEDGED
        finally:
            await stream.close()

    async def _serve(self, stream: Stream) -> None:
        envelope = await within(REQUEST_SECONDS, read_frame(stream, MESSAGE.opener_bytes_max))
        if isinstance(envelope, Fault):
            self._context.peers.blame(stream.peer, envelope)
            return
        self._inbox.take(envelope, MessageOrigin.DIRECT, sender=stream.peer)
        await within(SEND_SECONDS, stream.write(_ACKNOWLEDGED))

    # Fetching

    @override
    async def catch_up(self, peer: PeerId) -> None:
        await self._anti_entropy.pull(peer)

    @override
    async def fetch_body(
        self, commit: Signed[RolloutCommit], sources: Sequence[PeerId]
    ) -> bytes | None:
        return await self._bodies.fetch(commit, sources)
