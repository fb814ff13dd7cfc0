"""Router invariants under any history of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.core.containers import table_sizes
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import ValidationResult
from protocol.gossipsub.events import (
    Deliver,
    Effect,
    Event,
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    PeerFault,
    Publish,
    RpcReceived,
    Send,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.message import decode_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import IHave, Prune, Rpc, Subscription, encode_rpc
from tests.protocol.gossipsub.nodes import PEERS, SELF, router, rpc_of, signed

LIMITS = Params(
    mesh_size=2,
    mesh_low=1,
    mesh_high=3,
    mesh_keep_by_score=1,
    mesh_outbound=1,
    peers_max=5,
    topics_per_peer_max=2,
    topics_max=2,
    pending_max=2,
    seen_max=64,
    cache_bytes_max=600,
    backoffs_max=4,
    message_bytes_max=100,
    ihave_ids_max=3,
    asked_max=4,
)
peers = st.sampled_from([each.peer_id for each in PEERS[:7]])
topics = st.sampled_from(["a", "b", "c"])
owned_topics = st.sampled_from(["a", "b"])
authors = st.sampled_from([*PEERS[5:8], SELF])
messages = st.builds(
    lambda author, topic, seqno, size: signed(author, bytes(size), seqno, topic),
    authors,
    topics,
    st.integers(0, 9),
    st.sampled_from([0, 1, 101]),
)
ids = messages.map(lambda encoded: decode_message(encoded).message_id)


def some(each):
    return st.lists(each, max_size=3).map(tuple)


rpcs = st.builds(
    Rpc,
    subscriptions=some(st.builds(Subscription, st.booleans(), topics)),
    publish=some(messages | st.binary(max_size=20)),
    ihave=some(st.builds(IHave, topics, some(ids))),
    iwant=some(ids),
    graft=some(topics),
    prune=some(st.builds(Prune, topics, st.integers(0, 200))),
)


def state_of(node, now: float) -> tuple:
    """Return the state that a rejected input must not change (except budgets of a heartbeat)."""
    return (
        {topic: node.mesh_peers(topic) for topic in node.topics},
        [(report.peer, report.backoff_seconds) for report in node.report(now)],
        table_sizes(node.tables),
    )


class RouterMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.scores = dict.fromkeys((each.peer_id for each in PEERS), 0.0)
        self.node = router(
            LIMITS,
            opinions=lambda: self.scores,
            chosen=lambda: {PEERS[0].peer_id},
        )
        self.now = 1000.0
        self.connected = {}
        self.seqno = 0
        self.accepted = {}
        self.published = {}
        self.delivered = {}
        self.waiting = {}
        self.latest = self.now
        self.seen_at = {}

    def act(self, event: Event) -> list[Effect]:
        backoffs = {
            (topic, report.peer)
            for report in self.node.report(self.now)
            for topic in report.backoff_seconds
        }
        before = {topic: self.node.mesh_peers(topic) for topic in self.node.topics}
        effects = self.node.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, Send):
                self.check_send(effect, backoffs)
            elif isinstance(effect, Deliver):
                assert effect.message_id in self.accepted
                self.check_once(effect.message_id)
        for topic in self.node.topics:
            for peer in self.node.mesh_peers(topic):
                assert peer in before.get(topic, ()) or (topic, peer) not in backoffs
        return effects

    def check_once(self, message_id: bytes) -> None:
        """Check that a message is delivered at most once until its id may be forgotten."""
        last = self.delivered.get(message_id)
        assert last is None or self.latest >= last + LIMITS.seen_seconds
        self.delivered[message_id] = self.seen_at[message_id]

    def check_send(self, effect: Send, backoffs: set) -> None:
        assert effect.peer in self.connected
        rpc = rpc_of(effect)
        for topic in rpc.graft:
            assert (topic, effect.peer) not in backoffs
            assert self.node.score(effect.peer) >= 0
        for encoded in rpc.publish:
            message = decode_message(encoded)
            own = message.source == decode_message(signed(SELF, b"", 0)).source
            assert message.message_id in (self.published if own else self.accepted)
        for entry in rpc.ihave:
            for message_id in entry.message_ids:
                assert message_id in self.accepted or message_id in self.published

    @rule(peer=peers)
    def connect(self, peer):
        if peer in self.connected or len(self.connected) < LIMITS.peers_max:
            self.connected.setdefault(peer, {})
        self.act(PeerConnected(peer))

    @rule(peer=peers)
    def disconnect(self, peer):
        self.connected.pop(peer, None)
        assert self.act(PeerDisconnected(peer)) == []

    @rule(topic=owned_topics)
    def subscribe(self, topic):
        self.act(Subscribe(topic))

    @rule(topic=owned_topics)
    def unsubscribe(self, topic):
        self.act(Unsubscribe(topic))

    @rule(topic=topics)
    def publish(self, topic):
        source = decode_message(signed(SELF, b"", 0)).source
        self.seqno = max(self.seqno + 1, int(self.now * 10**9))
        self.published[source + self.seqno.to_bytes(8, "big")] = None
        self.act(Publish(topic, b"own"))

    @rule(peer=peers, rpc=rpcs)
    def receive(self, peer, rpc):
        is_read = self.node.score(peer) >= LIMITS.graylist_score_min
        effects = self.act(RpcReceived(peer, encode_rpc(rpc)))
        for effect in effects:
            is_read = is_read and not isinstance(effect, PeerFault)
            if isinstance(effect, Validate):
                self.waiting[effect.message_id] = None
                self.seen_at[effect.message_id] = self.now
        if peer in self.connected:
            for entry in rpc.subscriptions:
                if entry.subscribe:
                    self.connected[peer][entry.topic] = None
                elif is_read:
                    self.connected[peer].pop(entry.topic, None)

    @rule(peer=peers, data=st.binary(min_size=1, max_size=30).map(lambda each: each + b"\x07"))
    def receive_garbage(self, peer, data):
        before = state_of(self.node, self.now)
        effects = self.act(RpcReceived(peer, data))
        if [type(effect) for effect in effects] == [PeerFault]:
            assert state_of(self.node, self.now) == before

    @rule(peer=peers, topic=topics)
    def receive_forged(self, peer, topic):
        before = state_of(self.node, self.now)
        forged = signed(PEERS[9], b"x", 1, topic)[:-1] + b"\x00"
        for effect in self.act(RpcReceived(peer, encode_rpc(Rpc(publish=(forged,))))):
            allowed = [Fault(FaultCode.MESSAGE_SIGNATURE, "does not verify")]
            pending_full = table_sizes(self.node.tables)["pending"] == LIMITS.pending_max
            assert pending_full or (isinstance(effect, PeerFault) and effect.fault in allowed)
        assert state_of(self.node, self.now) == before

    @rule(data=st.data(), verdict=st.sampled_from(ValidationResult))
    def answer(self, data, verdict):
        if not self.waiting:
            return
        message_id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[message_id]
        if verdict is ValidationResult.ACCEPT:
            self.accepted[message_id] = None
        self.act(Validated(message_id, verdict))

    @rule(seconds=st.sampled_from([-5.0, 0.0, 0.5, 1.0, 12.0, 61.0]))
    def heartbeat(self, seconds):
        self.now += seconds
        self.latest = max(self.latest, self.now)
        self.act(Heartbeat())

    @rule(peer=peers, score=st.sampled_from([-100.0, -60.0, -20.0, -1.0, 0.0, 1.0]))
    def rate(self, peer, score):
        self.scores[peer] = score

    @invariant()
    def meshes_hold_connected_subscribers(self):
        for topic in self.node.topics:
            members = self.node.mesh_peers(topic)
            assert set(members) <= set(self.connected)
            assert all(topic in self.connected[peer] for peer in members)
            assert len(members) <= LIMITS.mesh_high

    @invariant()
    def every_table_is_bounded(self):
        peers = [report.peer for report in self.node.report(self.now)]
        assert set(peers) == set(self.connected)
        assert len(peers) <= LIMITS.peers_max
        assert len(self.node.topics) <= LIMITS.topics_max
        assert all(len(table) <= table.limit for table in self.node.tables)


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
