"""The GossipSub v1.1 router: ``handle(event, now) -> effects``, no clock, no socket, no task.

Every input is checked before anything changes; what a peer did wrong comes out as ``PeerFault``.
What our own application does wrong (a message over the limit) is a ``ValueError``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from protocol.crypto import Signer, Verifier, verify
from protocol.faults import Fault, FaultCode
from protocol.gossip.batches import Batches
from protocol.gossip.cache import SeenCache
from protocol.gossip.events import (
    Deliver,
    Discard,
    DiscardReason,
    Effect,
    Event,
    Flush,
    FlushLater,
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    PeerFault,
    Priority,
    Publish,
    RpcReceived,
    Send,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
)
from protocol.gossip.lazy import LazyGossip
from protocol.gossip.mesh import GraftAnswer, Mesh, Score, neutral
from protocol.gossip.message import (
    DECODED_MAX,
    Decoded,
    Message,
    decode_message,
    encode_message,
    sign_message,
    source_bytes,
    verify_message,
)
from protocol.gossip.params import Params
from protocol.gossip.peers import Peers, PeerState
from protocol.gossip.rpc import (
    TOPIC_BYTES_MAX,
    IHave,
    Prune,
    Rpc,
    Subscription,
    decode_rpc,
    encode_rpc,
    only_message,
)
from protocol.rng import Rng
from protocol.types import PeerId, ValidationResult

_NANOSECONDS = 10**9


@dataclass(slots=True)
class _Pending:
    """A message at the application validator, and everybody who sent it to us."""

    message: Message
    senders: dict[PeerId, None]


class Router:
    """One node's gossip state; ``signer`` is also who we are."""

    def __init__(
        self,
        signer: Signer,
        params: Params,
        rng: Rng,
        verifier: Verifier = verify,
        score: Score = neutral,
        decoded: Decoded | None = None,
    ) -> None:
        self._signer = signer
        self._params = params
        self._verifier = verifier
        self._score = score
        self._decoded = decoded if decoded is not None else Decoded(DECODED_MAX)
        self._own_source = source_bytes(signer.peer_id)
        self._seqno = 0
        self._peers = Peers(params)
        self._mesh = Mesh(params, rng.child("mesh"), score)
        self._lazy = LazyGossip(params, rng.child("lazy"))
        self._seen = SeenCache(params.seen_seconds, params.seen_max)
        self._pending: dict[bytes, _Pending] = {}
        self._may_wait: dict[str, None] = {}
        self._for_heartbeat = Batches()
        self._for_flush = Batches()
        self._rng = rng.child("relay")

    @property
    def topics(self) -> list[str]:
        """Our subscriptions."""
        return self._mesh.topics

    def mesh_peers(self, topic: str) -> list[PeerId]:
        """Return the mesh of a topic; empty when we are not subscribed."""
        return self._mesh.members(topic)

    def sizes(self) -> dict[str, int]:
        """Return how full the bounded tables are, by name."""
        return {
            "backoffs": len(self._mesh.backoffs),
            "cache_bytes": self._lazy.cache.size_bytes,
            "pending": len(self._pending),
            "seen": len(self._seen),
        }

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event; raises ``ValueError`` for what our application must not ask."""
        if isinstance(event, RpcReceived):  # nearly all are, and ``match`` costs more than this
            return self._on_rpc(event.peer, event.rpc, now)
        match event:
            case Validated(message_id, verdict):
                return self._on_validated(message_id, verdict)
            case Publish(topic, data):
                return self._on_publish(topic, data, now)
            case Heartbeat():
                return self._on_heartbeat(now)
            case Flush():
                return self._release(self._for_flush)
            case PeerConnected(peer):
                return self._on_connected(peer)
            case PeerDisconnected(peer):
                self._mesh.drop(peer, self._peers.remove(peer))
                self._for_heartbeat.forget(peer)
                self._for_flush.forget(peer)
                return []
            case Subscribe(topic, may_wait):
                return self._on_subscribe(topic, now, may_wait=may_wait)
            case Unsubscribe(topic):
                return self._on_unsubscribe(topic, now)
            case _:
                assert_never(event)

    def _on_connected(self, peer: PeerId) -> list[Effect]:
        if not self._peers.add(peer) or not self.topics:
            return []
        hello = Rpc(subscriptions=tuple(Subscription(True, topic) for topic in self.topics))
        return [Send(peer, encode_rpc(hello), Priority.CONTROL)]

    def _on_subscribe(self, topic: str, now: float, *, may_wait: bool) -> list[Effect]:
        if topic in self._mesh:
            return []
        _check_topic(topic)
        if len(self.topics) >= self._params.topics_max:
            raise ValueError(f"more than {self._params.topics_max} topics")
        if may_wait:
            self._may_wait[topic] = None
        grafted = self._mesh.join(topic, self._peers.subscribers(topic), now)
        return self._tell_all(Subscription(True, topic), Rpc(graft=(topic,)), grafted)

    def _on_unsubscribe(self, topic: str, now: float) -> list[Effect]:
        if topic not in self._mesh:
            return []
        prune = Prune(topic, self._params.unsubscribe_backoff_seconds)
        pruned = self._mesh.leave(topic, now)
        self._may_wait.pop(topic, None)
        return self._tell_all(Subscription(False, topic), Rpc(prune=(prune,)), pruned)

    def _tell_all(self, subscription: Subscription, extra: Rpc, some: list[PeerId]) -> list[Effect]:
        """Tell everybody of a subscription, and ``some`` of them ``extra`` after it."""
        plain = encode_rpc(Rpc(subscriptions=(subscription,)))
        longer = plain + encode_rpc(extra)  # protobuf: concatenation merges
        return [
            Send(peer, longer if peer in some else plain, Priority.CONTROL)
            for peer in self._peers.all()
        ]

    def _on_publish(self, topic: str, data: bytes, now: float) -> list[Effect]:
        _check_topic(topic)
        if len(data) > self._params.message_bytes_max:
            raise ValueError(f"{len(data)} bytes, limit {self._params.message_bytes_max}")
        self._seqno = max(self._seqno + 1, int(now * _NANOSECONDS))
        message = sign_message(self._signer, topic, data, self._seqno)
        encoded = encode_message(message)
        self._seen.add(message.message_id, now)
        self._lazy.cache.put(message.message_id, topic, encoded)
        rpc = encode_rpc(Rpc(publish=(encoded,)))
        return [
            Send(peer, rpc, Priority.PUBLISH)
            for peer in self._peers.subscribers(topic)
            if self._score(peer) >= self._params.publish_score_min
        ]

    def _on_rpc(self, peer: PeerId, data: bytes, now: float) -> list[Effect]:
        state = self._peers.get(peer)
        if state is None or self._score(peer) < self._params.graylist_score_min:
            return []
        encoded = only_message(data)
        if encoded is not None:
            return self._on_message(peer, encoded, now)
        rpc = decode_rpc(data)
        if isinstance(rpc, Fault):
            return [PeerFault(peer, rpc)]
        effects = self._on_subscriptions(peer, rpc)
        for encoded in rpc.publish:
            effects += self._on_message(peer, encoded, now)
        effects += self._on_mesh_control(peer, state, rpc, now)
        if self._score(peer) >= self._params.gossip_score_min:
            effects += self._on_lazy_control(peer, state, rpc)
        return effects

    def _on_subscriptions(self, peer: PeerId, rpc: Rpc) -> list[Effect]:
        for entry in rpc.subscriptions:
            if not entry.subscribe:
                self._peers.unsubscribe(peer, entry.topic)
                self._mesh.drop(peer, (entry.topic,))
            elif not self._peers.subscribe(peer, entry.topic):
                return [PeerFault(peer, Fault(FaultCode.TOO_MANY_TOPICS))]
        return []

    def _on_message(self, sender: PeerId, encoded: bytes, now: float) -> list[Effect]:
        message = decode_message(encoded, self._decoded)
        if isinstance(message, Fault):
            return [PeerFault(sender, message)]
        topic, message_id = message.topic, message.message_id
        if topic not in self._mesh:
            return []
        if len(message.data) > self._params.message_bytes_max:
            detail = f"{len(message.data)} bytes"
            return [PeerFault(sender, Fault(FaultCode.MESSAGE_OVERSIZE, detail))]
        pending = self._pending.get(message_id)
        if pending is not None:
            pending.senders[sender] = None
        if pending is not None or message_id in self._seen or message.source == self._own_source:
            waiting = self._for_heartbeat if topic in self._may_wait else self._for_flush
            waiting.drop(sender, message_id)
            return [Discard(sender, topic, message_id, DiscardReason.DUPLICATE)]
        if len(self._pending) >= self._params.pending_max:
            return [Discard(sender, topic, message_id, DiscardReason.PENDING_FULL)]
        if not verify_message(message, self._verifier):
            return [PeerFault(sender, Fault(FaultCode.MESSAGE_SIGNATURE, "does not verify"))]
        self._seen.add(message_id, now)
        self._pending[message_id] = _Pending(message, {sender: None})
        return [Validate(message_id, sender, message.author, topic, message.data)]

    def _on_validated(self, message_id: bytes, verdict: ValidationResult) -> list[Effect]:
        pending = self._pending.pop(message_id, None)
        if pending is None:
            return []
        match verdict:
            case ValidationResult.ACCEPT:
                return self._accept(pending)
            case ValidationResult.IGNORE:
                return []
            case ValidationResult.REJECT:
                return [
                    PeerFault(peer, Fault(FaultCode.MESSAGE_REJECTED)) for peer in pending.senders
                ]
            case _:
                assert_never(verdict)

    def _accept(self, pending: _Pending) -> list[Effect]:
        message = pending.message
        if message.topic not in self._mesh:
            return []  # we left the topic in between
        message_id, topic, author = message.message_id, message.topic, message.author
        peers = [
            peer
            for peer in self._mesh.members(topic)
            if peer not in pending.senders and peer != author
        ]
        effects: list[Effect] = []
        if topic in self._may_wait:
            effects += _sends(self._for_heartbeat.add(message_id, topic, message.encoded, peers))
        elif self._params.relay_wait_seconds:
            if not self._for_flush:  # else a flush is under way
                effects.append(FlushLater(self._rng.uniform() * self._params.relay_wait_seconds))
            effects += _sends(self._for_flush.add(message_id, topic, message.encoded, peers))
        else:
            self._lazy.cache.put(message_id, topic, message.encoded)
            rpc = encode_rpc(Rpc(publish=(message.encoded,)))
            effects += [Send(peer, rpc, Priority.RELAY) for peer in peers]
        effects.append(Deliver(message_id, author, topic, message.data))
        return effects

    def _release(self, batches: Batches) -> list[Effect]:
        """Send what waited; only now can it be advertised, when those who get it have it soon."""
        for message_id, (topic, message) in batches.take_fresh().items():
            self._lazy.cache.put(message_id, topic, message)
        return _sends(batches.take())

    def _on_mesh_control(
        self, peer: PeerId, state: PeerState, rpc: Rpc, now: float
    ) -> list[Effect]:
        for entry in rpc.prune:
            self._mesh.pruned_by(entry.topic, peer, entry.backoff_seconds, now)
        effects: list[Effect] = []
        refused: dict[str, None] = {}
        for topic in rpc.graft:
            if topic not in state.topics:
                continue  # a mesh holds subscribers only
            answer = self._mesh.grafted_by(topic, peer, now)
            if answer is GraftAnswer.BREACH:
                effects.append(PeerFault(peer, Fault(FaultCode.GRAFT_IN_BACKOFF, topic)))
            if answer in (GraftAnswer.BREACH, GraftAnswer.REFUSE):
                refused[topic] = None
        if refused:
            effects.append(Send(peer, self._prune_rpc(refused), Priority.CONTROL))
        return effects

    def _on_lazy_control(self, peer: PeerId, state: PeerState, rpc: Rpc) -> list[Effect]:
        effects: list[Effect] = []
        if rpc.ihave:
            asked = self._lazy.ask(state, rpc.ihave, self._wanted)
            if asked:
                effects.append(Send(peer, encode_rpc(Rpc(iwant=asked)), Priority.IWANT))
        served = self._lazy.serve(peer, state, rpc.iwant)
        effects += [Send(peer, encode_rpc(Rpc(publish=(each,))), Priority.RELAY) for each in served]
        return effects

    def _wanted(self, topic: str, message_ids: Sequence[bytes]) -> list[bytes]:
        if topic not in self._mesh:
            return []
        unseen = self._seen.unseen(message_ids)
        return [item for item in unseen if not item.startswith(self._own_source)]

    def _on_heartbeat(self, now: float) -> list[Effect]:
        self._peers.start_heartbeat()
        self._mesh.expire(now)
        self._seen.expire(now)
        effects = self._maintain_meshes(now)
        encoded: dict[tuple[IHave, ...], bytes] = {}  # many peers are told the same
        for peer, entries in self._lazy.advertise(self._audience).items():
            if entries not in encoded:
                encoded[entries] = encode_rpc(Rpc(ihave=entries))
            effects.append(Send(peer, encoded[entries], Priority.IHAVE))
        self._lazy.heartbeat()
        return effects + self._release(self._for_heartbeat)

    def _maintain_meshes(self, now: float) -> list[Effect]:
        grafts: dict[PeerId, list[str]] = {}
        prunes: dict[PeerId, dict[str, None]] = {}
        for topic in self.topics:
            grafted, pruned = self._mesh.maintain(topic, self._peers.subscribers(topic), now)
            for peer in grafted:
                grafts.setdefault(peer, []).append(topic)
            for peer in pruned:
                prunes.setdefault(peer, {})[topic] = None
        effects: list[Effect] = []
        for peer, topics in grafts.items():
            effects.append(Send(peer, encode_rpc(Rpc(graft=tuple(topics))), Priority.CONTROL))
        for peer, pruned_topics in prunes.items():
            effects.append(Send(peer, self._prune_rpc(pruned_topics), Priority.CONTROL))
        return effects

    def _prune_rpc(self, topics: dict[str, None]) -> bytes:
        backoff = self._params.prune_backoff_seconds
        return encode_rpc(Rpc(prune=tuple(Prune(topic, backoff) for topic in topics)))

    def _audience(self, topic: str) -> tuple[list[PeerId], list[PeerId]]:
        """Return the subscribers that may hear of our messages, outside and inside the mesh."""
        members = self._mesh.members(topic)
        score, score_min = self._score, self._params.gossip_score_min
        outside = [
            peer
            for peer in self._peers.subscribers(topic)
            if peer not in members and score(peer) >= score_min
        ]
        return outside, [peer for peer in members if score(peer) >= score_min]


def _sends(batches: dict[PeerId, tuple[bytes, ...]]) -> list[Effect]:
    return [
        Send(peer, encode_rpc(Rpc(publish=messages)), Priority.RELAY)
        for peer, messages in batches.items()
    ]


def _check_topic(topic: str) -> None:
    if not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes")
