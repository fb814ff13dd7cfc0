"""GossipSub driver: runs the pure router over streams to connected peers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from node.context import PeerView
from node.network.gossip.config import GossipLimits
from node.network.gossip.peer_streams import PeerStreamCounters, PeerStreams
from node.network.gossip.tasks import Tasks, surface
from protocol.core.crypto import Signer, Verifier, verify
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import (
    DUPLICATE,
    Deliver,
    Discard,
    Event,
    Flush,
    FlushLater,
    Heartbeat,
    PeerFault,
    Publish,
    Send,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.inspection import PeerReport
from protocol.gossipsub.message import Decoders
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from roles.ports.clock import Clock
from roles.ports.transport import Trust

Validator = Callable[[PeerId, bytes], ValidationResult | Awaitable[ValidationResult]]
"""``(author, data) -> verdict`` before forwarding; the author's signature is already verified."""

Delivery = Callable[[PeerId, bytes], None]
"""``(author, data)`` of an accepted message; runs in the loop and must not block."""


FAULT_SCORE = -1.0
"""P5 (application score) per fault; a guess. One fault costs an untrusted peer its mesh slot; a
peer that delivers messages keeps its own. Several faults lead to a ban."""


@dataclass(slots=True)
class GossipCounters:
    """Message counters since the start."""

    published: int = 0
    received: int = 0
    """New messages with a valid signature, passed to a validator."""
    verdicts: Counter[ValidationResult] = field(default_factory=Counter)
    duplicates: int = 0
    overflows: int = 0
    """Dropped because the validation queue was full; peers offer them again by IHAVE."""
    faults: int = 0
    """Protocol violations and rejected messages of peers."""


@dataclass(frozen=True, slots=True)
class _Topic:
    validate: Validator
    deliver: Delivery | None


class Gossip:
    """Publish and subscribe among the connected peers; reports faults to ``peers``."""

    def __init__(
        self,
        peers: PeerView,
        signer: Signer,
        clock: Clock,
        rng: Rng,
        *,
        trust: Trust | None = None,
        params: Params | None = None,
        limits: GossipLimits | None = None,
        verifier: Verifier = verify,
        decoding: Decoders | None = None,
    ) -> None:
        self._params = params or Params()
        self._limits = limits or GossipLimits()
        self._peers = peers
        self._clock = clock
        trust = trust or Trust()
        self._router = Router(
            signer,
            self._params,
            rng,
            verifier,
            self._opinions,
            lambda: peers.chosen,
            lambda: peers.trusted,
            decoding,
            is_trusted=trust.trusted,
        )
        self._topics: dict[str, _Topic] = {}
        self._tasks = Tasks()
        self._flush: asyncio.TimerHandle | None = None
        self._links = PeerStreams(
            peers,
            trust,
            self._limits,
            self._params.peers_max,
            self._apply,
            self._blame,
            ignored=self._ignored,
            meshed=self._router.is_meshed,
            core_seconds=clock.core_seconds,
        )
        self.tables = (*self._router.tables, *self._links.tables)
        self.counters = GossipCounters()

    @property
    def link_counters(self) -> PeerStreamCounters:
        """Frame and byte counters of the streams."""
        return self._links.counters

    async def start(self) -> None:
        """Serve the protocol and follow the connected peers; raises ``TransportError``."""
        await self._links.start()
        self._tasks.spawn(self._beat())

    async def stop(self) -> None:
        """End every task and stream; idempotent."""
        if self._flush is not None:
            self._flush.cancel()
        await self._tasks.cancel()
        await self._links.stop()

    def subscribe(
        self,
        topic: str,
        validate: Validator,
        deliver: Delivery | None = None,
        *,
        may_wait: bool = False,
    ) -> None:
        """Join ``topic``; raises ``ValueError`` for an invalid topic, or for one too many.

        With ``may_wait`` messages are forwarded in batches, at the latest at the next heartbeat.
        ``validate`` runs before a message is forwarded; ``deliver`` receives each accepted message
        once. Own messages are not delivered.
        """
        self._apply(Subscribe(topic, may_wait))
        self._topics[topic] = _Topic(validate, deliver)

    def unsubscribe(self, topic: str) -> None:
        """Leave ``topic``; idempotent."""
        self._topics.pop(topic, None)
        self._apply(Unsubscribe(topic))

    async def publish(self, topic: str, data: bytes) -> None:
        """Sign ``data`` and send it to every subscriber; raises ``ValueError`` if it is too large.

        Waits up to ``publish_wait_seconds`` while most send queues are congested, to avoid drops.
        """
        await self._links.wait_for_room()
        self._apply(Publish(topic, data))
        self.counters.published += 1

    def mesh_peers(self, topic: str) -> list[PeerId]:
        """Return the peers in our mesh of ``topic``."""
        return self._router.mesh_peers(topic)

    def meshed(self) -> frozenset[PeerId]:
        """Return the mesh peers of all topics."""
        return frozenset().union(*map(self.mesh_peers, self._router.topics))

    def above_gossip_threshold(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """Return the peers at or above the gossip threshold."""
        return self._router.above_gossip_threshold(peers)

    def report(self) -> list[PeerReport]:
        """Return the state of each peer, in order of arrival."""
        return self._router.report(self._clock.now())

    def _opinions(self) -> Mapping[PeerId, float]:
        """Return P5 per peer, from the faults that all services reported."""
        return {peer: FAULT_SCORE * count for peer, count in self._peers.faults().items()}

    def _ignored(self, peer: PeerId) -> bool:
        return self._router.score(peer) < self._params.graylist_score_min

    def _apply(self, event: Event) -> None:
        for effect in self._router.handle(event, self._clock.now()):
            # Ordered by frequency; ``match`` takes three times as long.
            if isinstance(effect, Send):
                self._links.send(effect)
            elif isinstance(effect, Discard):
                self._discard(effect)
            elif isinstance(effect, Validate):
                self._validate(effect)
            elif isinstance(effect, Deliver):
                self._deliver(effect)
            elif isinstance(effect, FlushLater):
                loop = asyncio.get_running_loop()
                self._flush = loop.call_later(effect.seconds, self._apply, Flush())
            elif isinstance(effect, PeerFault):
                self._blame(effect.peer, effect.fault)
            else:
                assert_never(effect)

    def _discard(self, effect: Discard) -> None:
        if effect.reason is DUPLICATE:
            self.counters.duplicates += 1
        else:
            self.counters.overflows += 1

    def _blame(self, peer: PeerId, fault: Fault) -> None:
        self.counters.faults += 1
        self._peers.blame(peer, fault)

    def _deliver(self, effect: Deliver) -> None:
        topic = self._topics.get(effect.topic)
        if topic is None or topic.deliver is None:
            return
        try:
            topic.deliver(effect.author, effect.data)
        except Exception as error:  # noqa: BLE001 - the application's fault must not stop relaying
            surface(error)

    def _validate(self, effect: Validate) -> None:
        self.counters.received += 1
        verdict: ValidationResult | Awaitable[ValidationResult] = ValidationResult.IGNORE
        topic = self._topics.get(effect.topic)  # None: a validator has just unsubscribed
        try:
            if topic is not None:
                verdict = topic.validate(effect.author, effect.data)
        except Exception as error:  # noqa: BLE001 - the application's fault must not stop relaying
            surface(error)
        if isinstance(verdict, ValidationResult):
            self._judge(effect.message_id, verdict)
        else:
            self._tasks.spawn(self._await_verdict(effect.message_id, verdict))

    async def _await_verdict(self, message_id: bytes, answer: Awaitable[ValidationResult]) -> None:
        verdict = ValidationResult.IGNORE
        try:
            async with asyncio.timeout(self._limits.validate_seconds):
                verdict = await answer
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - the application's fault must not stop relaying
            surface(error)
        self._judge(message_id, verdict)

    def _judge(self, message_id: bytes, verdict: ValidationResult) -> None:
        self.counters.verdicts[verdict] += 1
        self._apply(Validated(message_id, verdict))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._params.heartbeat_seconds)
            self._apply(Heartbeat())
            self._links.interrupt_stalled()
