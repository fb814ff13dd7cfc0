"""GossipSub v1.1 router: ``handle(event, now) -> effects``, without clock, socket or task.

Every input is checked before anything changes. A peer's fault is an effect, ``PeerFault``. A
mistake of our own application (a message over the limit) is a ``ValueError``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from protocol.core.containers import SizeGauge, Table
from protocol.core.crypto import Signer, Verifier, verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import (
    DUPLICATE,
    Deliver,
    Discard,
    DiscardReason,
    Effect,
    Event,
    Flush,
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    PeerFault,
    PeerLocated,
    Priority,
    Publish,
    RpcReceived,
    Send,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
    send_each,
)
from protocol.gossipsub.forwarding import LANE_WAITING_BYTES_MAX, Flood, Forwarder
from protocol.gossipsub.gossip import LazyGossip, Promises
from protocol.gossipsub.inspection import PeerReport, reports
from protocol.gossipsub.mesh import GraftAnswer, Mesh, PeerSet, nobody
from protocol.gossipsub.message import (
    Decoders,
    GossipMessage,
    decode_message,
    encode_message,
    sign_message,
    source_bytes,
    verify_message,
)
from protocol.gossipsub.message_cache import SeenCache
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import Deliveries, Opinions, Scores, no_opinions
from protocol.gossipsub.peer_state import PeerState, PeerStates
from protocol.gossipsub.rpc import Prune, Rpc, Subscription, check_topic, encode_rpc, only_message

_NANOSECONDS = 10**9


@dataclass(slots=True)
class _PendingValidation:
    """A message in validation, and all its senders so far."""

    message: GossipMessage
    senders: dict[PeerId, None]


class Router:
    """Gossip state of one node; ``signer`` is also its identity.

    ``opinions`` are the application's peer scores, ``chosen`` the outbound peers, ``trusted`` the
    trusted ones, and ``is_trusted`` tells whether an author has reputation.
    """

    def __init__(
        self,
        signer: Signer,
        params: Params,
        rng: Rng,
        verifier: Verifier = verify,
        opinions: Opinions = no_opinions,
        chosen: PeerSet = nobody,
        trusted: PeerSet = nobody,
        decoding: Decoders | None = None,
        *,
        is_trusted: Callable[[PeerId], bool] = lambda _author: False,
    ) -> None:
        self._signer = signer
        self._params = params
        self._verifier = verifier
        self._score = Scores(params.score, opinions)
        self._deliveries = Deliveries(params.score, self._score)
        self._promises = Promises(params.score, rng.child("promises"))
        self._decoding = decoding or Decoders()
        self._own_source = source_bytes(signer.peer_id)
        self._seqno = 0
        self._peers = PeerStates(params)
        self._mesh = Mesh(params, rng.child("mesh"), self._score, chosen, trusted)
        self.is_meshed = self._mesh.holds
        """Tells whether a peer is in any mesh of ours."""
        self.mesh_peers = self._mesh.members
        """Returns the mesh of a topic; empty if we are not subscribed."""
        self.score: Callable[[PeerId], float] = self._score
        """Returns the score of a peer."""
        self._flood = Flood(params.flood_peers_max, rng.child("flood"), trusted)
        self._lazy = LazyGossip(params, rng.child("lazy"), trusted)
        self._seen = SeenCache(params.seen_seconds, params.seen_max)
        self._pending: dict[bytes, _PendingValidation] = {}
        self._relay = Forwarder(params, rng.child("relay"), self._lazy.cache, is_trusted)
        self.tables: tuple[Table, ...] = (
            self._mesh.backoffs,
            *self._deliveries.tables,
            *self._promises.tables,
            *self._seen.tables,
            SizeGauge("cache_bytes", params.cache_bytes_max, lambda: self._lazy.cache.size_bytes),
            SizeGauge(
                "untrusted_bytes", LANE_WAITING_BYTES_MAX, lambda: self._relay.untrusted_bytes
            ),
            SizeGauge("pending", params.pending_max, self._pending.__len__),
            SizeGauge("retained_scores", params.score.retained_max, lambda: self._score.retained),
        )

    @property
    def topics(self) -> list[str]:
        """Our subscriptions."""
        return self._mesh.topics

    def above_gossip_threshold(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return the peers with a score that allows gossip."""
        return self._score.at_least(self._params.gossip_score_min, peers)

    def report(self, now: float) -> list[PeerReport]:
        """Return the state of each connected peer, in the order of connection."""
        return reports(self._peers.all(), self._mesh, self._score, self._params, now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Process one event; raises ``ValueError`` for invalid input of our application."""
        if isinstance(event, RpcReceived):  # nearly all are; ``match`` costs more than this
            return self._on_rpc(event.peer, event.rpc, now)
        match event:
            case Validated(message_id, verdict):
                return self._on_validated(message_id, verdict, now)
            case Publish(topic, data):
                return self._on_publish(topic, data, now)
            case Heartbeat():
                return self._on_heartbeat(now)
            case Flush():
                return self._relay.flush()
            case PeerConnected(peer):
                return self._on_connected(peer, now)
            case PeerDisconnected() | PeerLocated():
                return self._on_peer(event, now)
            case Subscribe(topic, may_wait):
                return self._on_subscribe(topic, now, may_wait=may_wait)
            case Unsubscribe(topic):
                return self._on_unsubscribe(topic, now)
            case _:
                assert_never(event)

    def _on_connected(self, peer: PeerId, now: float) -> list[Effect]:
        if not self._peers.add(peer):
            return []
        self._score.connect(peer, now)
        if not self.topics:
            return []
        hello = Rpc(subscriptions=tuple(Subscription(True, topic) for topic in self.topics))
        return [Send(peer, encode_rpc(hello), Priority.CONTROL)]

    def _on_peer(self, event: PeerDisconnected | PeerLocated, now: float) -> list[Effect]:
        peer = event.peer
        if isinstance(event, PeerLocated):
            self._score.place(peer, event.addresses)
            return []
        empty = self._mesh.drop(peer, self._peers.remove(peer))
        self._score.disconnect(peer, now)
        self._relay.forget(peer)
        return _grafting(self._mesh.refill(empty, self._peers.subscribers, now))

    def _on_subscribe(self, topic: str, now: float, *, may_wait: bool) -> list[Effect]:
        if topic in self._mesh:
            return []
        check_topic(topic)
        if len(self.topics) >= self._params.topics_max:
            raise ValueError(f"more than {self._params.topics_max} topics")
        if may_wait:
            self._relay.subscribe(topic)
        grafted = self._mesh.join(topic, self._peers.subscribers(topic), now)
        return self._tell_all(Subscription(True, topic), Rpc(graft=(topic,)), grafted)

    def _on_unsubscribe(self, topic: str, now: float) -> list[Effect]:
        if topic not in self._mesh:
            return []
        prune = Prune(topic, self._params.unsubscribe_backoff_seconds)
        pruned = self._mesh.leave(topic, now)
        self._relay.unsubscribe(topic)
        return self._tell_all(Subscription(False, topic), Rpc(prune=(prune,)), pruned)

    def _tell_all(self, subscription: Subscription, extra: Rpc, some: list[PeerId]) -> list[Effect]:
        """Send a subscription to all peers, followed by ``extra`` for ``some`` of them."""
        plain = encode_rpc(Rpc(subscriptions=(subscription,)))
        longer = plain + encode_rpc(extra)  # protobuf: concatenation merges
        return [
            Send(peer, longer if peer in some else plain, Priority.CONTROL)
            for peer in self._peers.all()
        ]

    def _on_publish(self, topic: str, data: bytes, now: float) -> list[Effect]:
        check_topic(topic)
        if len(data) > self._params.message_bytes_max:
            raise ValueError(f"{len(data)} bytes, limit {self._params.message_bytes_max}")
        self._seqno = max(self._seqno + 1, int(now * _NANOSECONDS))
        message = sign_message(self._signer, topic, data, self._seqno)
        encoded = encode_message(message)
        self._seen.add(message.message_id, now)
        self._deliveries.accepted(message.message_id, topic, (), now)
        self._lazy.cache.put(message.message_id, topic, encoded)
        rpc = encode_rpc(Rpc(publish=(encoded,)))
        floor = self._params.publish_score_min
        trusted = self._score.at_least(floor, self._peers.subscribers(topic))
        receivers = self._flood.receivers(self._mesh.members(topic), trusted)
        return [Send(peer, rpc, Priority.PUBLISH) for peer in receivers]

    def _on_rpc(self, peer: PeerId, data: bytes, now: float) -> list[Effect]:
        state = self._peers.get(peer)
        if state is None or self._score.below(peer, self._params.graylist_score_min):
            return []
        encoded = only_message(data)
        if encoded is not None:
            return self._on_message(peer, encoded, now)
        rpc = self._decoding.rpc(data)
        if isinstance(rpc, Fault):
            return [PeerFault(peer, rpc)]
        state.fields_read += 1 + rpc.fields_read  # an RPC without fields costs time, too
        if state.fields_read > self._params.rpc_fields_max:
            self._score.breach(peer)
            return [PeerFault(peer, Fault(FaultCode.RPC_FLOOD))]
        effects = self._on_subscriptions(peer, rpc)
        for encoded in rpc.publish:
            effects += self._on_message(peer, encoded, now)
        effects += self._on_mesh_control(peer, state, rpc, now)
        if not self._score.below(peer, self._params.gossip_score_min):
            effects += self._on_lazy_control(peer, state, rpc, now)
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
        message = self._decoding.messages.get_or_compute(encoded, decode_message)
        if isinstance(message, Fault):
            self._score.breach(sender)  # no topic is known
            return [PeerFault(sender, message)]
        topic, message_id = message.topic, message.message_id
        if topic not in self._mesh:
            self._promises.fulfil(message_id)  # we left the topic after the request
            return []
        if len(message.data) > self._params.message_bytes_max:
            self._score.invalid(sender, topic)
            detail = f"{len(message.data)} bytes"
            return [PeerFault(sender, Fault(FaultCode.MESSAGE_OVERSIZE, detail))]
        if (pending := self._pending.get(message_id)) is not None:
            pending.senders[sender] = None
        if pending is not None or message_id in self._seen or message.source == self._own_source:
            self._relay.drop(sender, message)
            self._deliveries.repeated(message_id, topic, sender, now)
            return [Discard(sender, topic, message_id, DUPLICATE)]
        if len(self._pending) >= self._params.pending_max:
            self._promises.fulfil(message_id)  # it arrived; the lack of room is ours
            return [Discard(sender, topic, message_id, DiscardReason.PENDING_FULL)]
        if not verify_message(message, self._verifier):
            self._score.invalid(sender, topic)
            return [PeerFault(sender, Fault(FaultCode.MESSAGE_SIGNATURE, "does not verify"))]
        self._seen.add(message_id, now)
        self._promises.fulfil(message_id)
        self._pending[message_id] = _PendingValidation(message, {sender: None})
        return [Validate(message_id, sender, message.author, topic, message.data)]

    def _on_validated(
        self, message_id: bytes, verdict: ValidationResult, now: float
    ) -> list[Effect]:
        if (pending := self._pending.pop(message_id, None)) is None:
            return []
        match verdict:
            case ValidationResult.ACCEPT:
                return self._accept(pending, now)
            case ValidationResult.IGNORE:
                return []
            case ValidationResult.REJECT:
                topic, senders = pending.message.topic, pending.senders
                self._deliveries.rejected(message_id, topic, senders, now)
                return [PeerFault(peer, Fault(FaultCode.MESSAGE_REJECTED)) for peer in senders]
            case _:
                assert_never(verdict)

    def _accept(self, pending: _PendingValidation, now: float) -> list[Effect]:
        message = pending.message
        if message.topic not in self._mesh:
            return []  # we left the topic meanwhile
        message_id, topic, author = message.message_id, message.topic, message.author
        self._deliveries.accepted(message_id, topic, pending.senders, now)
        knowing = {author, *pending.senders}
        peers = [peer for peer in self._mesh.members(topic) if peer not in knowing]
        effects = self._relay.add(message, peers)
        effects.append(Deliver(message_id, author, topic, message.data))
        return effects

    def _on_mesh_control(
        self, peer: PeerId, state: PeerState, rpc: Rpc, now: float
    ) -> list[Effect]:
        for entry in rpc.prune:
            self._mesh.pruned_by(entry.topic, peer, entry.backoff_seconds, now)
        effects: list[Effect] = []
        refused: dict[str, None] = {}
        taken: dict[str, None] = {}
        for topic in rpc.graft:
            if topic not in state.topics:
                continue  # a mesh holds subscribers only
            answer = self._mesh.grafted_by(topic, peer, now)
            if answer is GraftAnswer.ACCEPT:
                taken[topic] = None
            elif answer is not GraftAnswer.IGNORE:
                refused[topic] = None
            if answer in (GraftAnswer.BREACH, GraftAnswer.FLOOD):
                self._score.breach(peer, 2 if answer is GraftAnswer.FLOOD else 1)
                effects.append(PeerFault(peer, Fault(FaultCode.GRAFT_IN_BACKOFF, topic)))
        if refused:
            effects.append(Send(peer, encode_rpc(self._prune(refused)), Priority.CONTROL))
        if taken and (offer := self._lazy.offer(taken)):
            effects.append(Send(peer, encode_rpc(Rpc(ihave=offer)), Priority.IHAVE))
        return effects

    def _on_lazy_control(
        self, peer: PeerId, state: PeerState, rpc: Rpc, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        if rpc.ihave:
            urgent_first = sorted(rpc.ihave, key=lambda offer: self._relay.may_wait(offer.topic))
            asked = self._lazy.ask(peer, state, urgent_first, self._wanted)
            if asked:
                self._promises.add(peer, asked, now)
                effects.append(Send(peer, encode_rpc(Rpc(iwant=asked)), Priority.IWANT))
        served = self._lazy.serve(peer, state, rpc.iwant)
        replies = (encode_rpc(Rpc(publish=(encoded,))) for encoded in served)
        return effects + [Send(peer, reply, Priority.RELAY) for reply in replies]

    def _wanted(self, topic: str, message_ids: Sequence[bytes]) -> list[bytes]:
        if topic not in self._mesh:
            return []
        unseen = self._seen.unseen(message_ids)
        return [item for item in unseen if not item.startswith(self._own_source)]

    def _on_heartbeat(self, now: float) -> list[Effect]:
        self._peers.start_heartbeat()
        for peer in self._promises.take_broken(now):
            self._score.breach(peer)
        self._score.heartbeat(now)
        self._mesh.expire(now)
        self._seen.expire(now)
        grafts, prunes = self._mesh.maintain_all(self._peers.subscribers, now)
        told = self._lazy.advertise(self._audience)
        effects = [
            *_grafting(grafts),
            *send_each({peer: self._prune(prunes[peer]) for peer in prunes}, Priority.CONTROL),
            *send_each({peer: Rpc(ihave=told[peer]) for peer in told}, Priority.IHAVE),
        ]
        self._lazy.heartbeat()
        return effects + self._relay.heartbeat(self._mesh.members)

    def _prune(self, topics: Iterable[str]) -> Rpc:
        backoff = self._params.prune_backoff_seconds
        return Rpc(prune=tuple(Prune(topic, backoff) for topic in topics))

    def _audience(self, topic: str) -> tuple[list[PeerId], list[PeerId]]:
        """Return the subscribers that may get our IHAVE, outside and inside the mesh."""
        members = dict.fromkeys(self._mesh.members(topic))
        outside = [peer for peer in self._peers.subscribers(topic) if peer not in members]
        return self.above_gossip_threshold(outside), self.above_gossip_threshold(members)


def _grafting(grafts: dict[PeerId, list[str]]) -> list[Effect]:
    return send_each({peer: Rpc(graft=tuple(grafts[peer])) for peer in grafts}, Priority.CONTROL)
