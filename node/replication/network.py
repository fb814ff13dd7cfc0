"""What a role can say and ask (``roles.flow.Network``), over gossip, direct streams and blobs."""

from collections.abc import Callable, Sequence

import structlog

from node.gossip.driver import Gossip
from node.replication.anti_entropy import AntiEntropy
from node.replication.message_log import MessageLog
from node.replication.rollout_bodies import RolloutBodies
from node.streams.deadline import within
from node.streams.framing import read_frame, write_frame
from node.streams.limits import Bounded
from node.streams.protocols import MESSAGE, topic_name
from protocol.crypto import Signer
from protocol.faults import Fault
from protocol.messages import MessageT, RolloutCommit, Signed, seal
from protocol.replica import Received, Replica
from protocol.types import PeerId, Topic, ValidationResult
from roles.flow import ChangeSignal
from roles.ports.clock import Clock
from roles.ports.swarm import RefusedError
from roles.ports.transport import Stream, Streams, TransportError

log = structlog.get_logger()

SEND_SECONDS = MESSAGE.stall_seconds

_ACKNOWLEDGED = b"\x06"

Accepted = Callable[[bytes, Received], None]


class SwarmNetwork:
    """One node's voice and ears."""

    def __init__(
        self,
        signer: Signer,
        replica: Replica,
        *,
        message_log: MessageLog,
        gossip: Gossip,
        streams: Streams,
        bodies: RolloutBodies,
        anti_entropy: AntiEntropy,
        clock: Clock,
        heard: Callable[[Received], None],
        accepted: Accepted,
        changes: ChangeSignal,
    ) -> None:
        self._signer = signer
        self._replica = replica
        self._message_log = message_log
        self._gossip = gossip
        self._streams = streams
        self._bodies = bodies
        self._anti_entropy = anti_entropy
        self._clock = clock
        self._heard = heard
        self._accepted = accepted
        self._changes = changes
        self._protocol = MESSAGE.on(replica.run_id)

    @property
    def synchronised(self) -> bool:
        """Whether a peer has told us since our start what we had missed."""
        return self._anti_entropy.synchronised

    @property
    def forgetful(self) -> bool:
        """Whether this key was here before with a disk that is lost."""
        return self._anti_entropy.former is not None

    def topic(self, topic: Topic) -> str:
        """Return the name of a topic on the wire."""
        return topic_name(topic, self._replica.run_id)

    async def start(self) -> None:
        """Serve direct messages and subscribe to every topic."""
        await self._streams.handle(self._protocol, Bounded(self._serve, MESSAGE))
        for topic in Topic:
            # A record is news for an epoch, and a large swarm gossips little else.
            may_wait = topic is Topic.ROSTER
            self._gossip.subscribe(self.topic(topic), self._validator(topic), may_wait=may_wait)

    def _validator(self, topic: Topic) -> Callable[[PeerId, bytes], ValidationResult]:
        def validate(_author: PeerId, envelope: bytes) -> ValidationResult:
            received = self._replica.receive_topic(topic, envelope, self._clock.now())
            self._heard(received)
            self._take(envelope, received)
            return received.result

        return validate

    def _take(self, envelope: bytes, received: Received) -> None:
        if received.result is ValidationResult.ACCEPT:
            self._accepted(envelope, received)
        elif received.fault is not None:
            log.info(
                "message refused",
                fault=str(received.fault),
                kind=received.signed.message.kind if received.signed else "",
                signer=received.signed.signer[-8:] if received.signed else "",
            )

    # What a role says

    async def publish(self, topic: Topic, message: MessageT) -> Signed[MessageT]:
        """Sign, store durably, apply to our own replica, and gossip; in this order."""
        signed = await self.record(message)
        await self.announce(topic, signed.envelope)
        return signed

    async def record(self, message: MessageT) -> Signed[MessageT]:
        """Sign, store durably and apply to our own replica, without gossip."""
        signed = seal(message, self._replica.run_id, self._signer)
        new = await self._message_log.keep(signed.envelope)
        received = self._replica.receive(signed.envelope, self._clock.now())
        if received.result is not ValidationResult.ACCEPT:
            if new:  # or a restart would take it for said
                await self._message_log.forget(signed.envelope)
            raise RefusedError(str(received.fault or "no longer news"))
        self._changes.notify()
        return signed

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Gossip a message that is already stored."""
        await self._gossip.publish(self.topic(topic), envelope)

    async def send(self, peer: PeerId, envelope: bytes) -> bool:
        """Hand a signed message to one peer; False when it could not be delivered in time."""
        try:
            return await within(SEND_SECONDS, self._deliver(peer, envelope))
        except TransportError:
            return False

    async def _deliver(self, peer: PeerId, envelope: bytes) -> bool:
        stream = await self._streams.open_stream(peer, self._protocol)
        try:
            await write_frame(stream, envelope)
            return await stream.read_exactly(1) == _ACKNOWLEDGED
        finally:
            await stream.close()

    async def _serve(self, stream: Stream) -> None:
        envelope = await within(SEND_SECONDS, read_frame(stream, MESSAGE.opener_bytes_max))
        if isinstance(envelope, Fault):
            return
        self._take(envelope, self._replica.receive(envelope, self._clock.now()))
        await within(SEND_SECONDS, stream.write(_ACKNOWLEDGED))

    # What a role asks

    async def fetch_body(
        self, commit: Signed[RolloutCommit], sources: Sequence[PeerId]
    ) -> bytes | None:
        """Return a commit's body from here or from the first source that has it, else None."""
        return await self._bodies.fetch(commit, sources)
