import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import (
    Deliver,
    Discard,
    DiscardReason,
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
from protocol.gossipsub.message import decode_message, verify_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import TOPIC_BYTES_MAX, IHave, Prune, Rpc, Subscription
from tests.protocol.gossipsub.nodes import (
    ENTER,
    PEERS,
    SELF,
    TOPIC,
    blames,
    received,
    router,
    rpc_of,
    sends,
    signed,
)
from tests.protocol.gossipsub.nodes import joined_router as joined

A, B, C = (each.peer_id for each in PEERS[:3])
AUTHOR = PEERS[20]


def offer(node: Router, peer: PeerId, *encoded: bytes, now: float = 1):
    return node.handle(received(peer, Rpc(publish=encoded)), now)


def message_id(encoded: bytes) -> bytes:
    message = decode_message(encoded)
    assert not isinstance(message, Fault)
    return message.message_id


def test_a_new_peer_hears_our_subscriptions_and_again_when_it_returns():
    node = joined(0)
    for _ in range(2):
        (effect,) = node.handle(PeerConnected(A), 0)
        assert rpc_of(effect) == Rpc(subscriptions=(Subscription(True, TOPIC),))
        assert effect.priority is Priority.CONTROL


def test_without_subscriptions_there_is_no_hello():
    assert router().handle(PeerConnected(A), 0) == []


def test_subscribing_tells_everybody_and_grafts_subscribers():
    node = router()
    node.handle(PeerConnected(A), 0)
    node.handle(PeerConnected(B), 0)
    node.handle(received(A, ENTER), 0)
    assert dict(sends(node.handle(Subscribe(TOPIC), 0))) == {
        A: Rpc(subscriptions=(Subscription(True, TOPIC),), graft=(TOPIC,)),
        B: Rpc(subscriptions=(Subscription(True, TOPIC),)),
    }
    assert node.mesh_peers(TOPIC) == [A]
    assert node.handle(Subscribe(TOPIC), 0) == []


def test_unsubscribing_prunes_with_its_shorter_back_off():
    node = joined(1)
    (sent,) = sends(node.handle(Unsubscribe(TOPIC), 0))
    assert sent == (
        A,
        Rpc(subscriptions=(Subscription(False, TOPIC),), prune=(Prune(TOPIC, 10),)),
    )
    assert node.topics == []
    assert node.handle(Unsubscribe(TOPIC), 0) == []
    node.handle(Subscribe(TOPIC), 5)
    assert node.mesh_peers(TOPIC) == []
    node.handle(Heartbeat(), 10.5)
    assert node.mesh_peers(TOPIC) == []
    node.handle(Heartbeat(), 11)
    assert node.mesh_peers(TOPIC) == [A]


@pytest.mark.parametrize("topic", ["", "x" * (TOPIC_BYTES_MAX + 1)])
@pytest.mark.parametrize("event", [Subscribe, lambda topic: Publish(topic, b"")])
def test_a_bad_topic_of_our_own_is_an_error(topic, event):
    with pytest.raises(ValueError, match="a topic has"):
        router().handle(event(topic), 0)


def test_too_many_topics_of_our_own_are_an_error():
    node = router(Params(topics_max=1))
    node.handle(Subscribe("one"), 0)
    with pytest.raises(ValueError, match="more than 1 topics"):
        node.handle(Subscribe("two"), 0)
    assert node.topics == ["one"]


def test_publishing_floods_to_subscribers_whether_we_subscribe_or_not():
    node = router()
    for peer in (A, B, C):
        node.handle(PeerConnected(peer), 0)
    node.handle(received(A, ENTER), 0)
    node.handle(received(C, ENTER), 0)
    effects = node.handle(Publish(TOPIC, b"data"), 5)
    assert [peer for peer, _ in sends(effects)] == [A, C]
    message = decode_message(rpc_of(effects[0]).publish[0])
    assert (message.author, message.data) == (SELF.peer_id, b"data")
    assert verify_message(message, verify)
    assert effects[0].priority is Priority.PUBLISH
    assert effects[0].rpc is effects[1].rpc  # one body for all queues


def test_a_trusted_peer_is_sent_our_own_messages_before_untrusted_peers_take_the_line():
    node = Router(SELF, Params(), Rng(b""), trusted=lambda: {B, C})
    for peer in (A, B, C):
        node.handle(PeerConnected(peer), 0)
        node.handle(received(peer, ENTER), 0)
    effects = node.handle(Publish(TOPIC, b"data"), 5)
    assert [peer for peer, _ in sends(effects)] == [B, C, A]


def test_of_many_subscribers_the_mesh_and_the_proven_get_our_messages():
    params = Params(
        mesh_low=1,
        mesh_size=1,
        mesh_high=1,
        mesh_keep_by_score=0,
        mesh_outbound=0,
        flood_peers_max=3,
    )
    everybody = [each.peer_id for each in PEERS[:20]]
    for trusted in everybody:
        node = Router(SELF, params, Rng(b""), trusted=lambda one=trusted: {one})
        node.handle(Subscribe(TOPIC), 0)
        for peer in everybody:
            node.handle(PeerConnected(peer), 0)
            node.handle(received(peer, ENTER), 0)
        node.handle(Heartbeat(), 1)
        got = [peer for peer, _ in sends(node.handle(Publish(TOPIC, b"data"), 5))]
        assert len(set(got)) == 3
        assert got[0] == trusted
        assert set(node.mesh_peers(TOPIC)) <= set(got)


def test_publishing_over_the_limit_is_an_error_and_spends_no_seqno():
    node = joined(1, Params(message_bytes_max=10))
    with pytest.raises(ValueError, match="11 bytes, limit 10"):
        node.handle(Publish(TOPIC, bytes(11)), 0)
    assert len(sends(node.handle(Publish(TOPIC, bytes(10)), 0))) == 1


def test_seqnos_rise_strictly_even_when_the_clock_steps_back():
    node = joined(1)
    seqnos = []
    for now in (100.0, 100.0, 50.0, 0.0, 200.0):
        (effect,) = node.handle(Publish(TOPIC, b""), now)
        seqnos.append(int.from_bytes(decode_message(rpc_of(effect).publish[0]).seqno, "big"))
    assert seqnos == [100 * 10**9 + extra for extra in range(4)] + [200 * 10**9]


def test_nothing_moves_before_the_verdict():
    node = joined()
    encoded = signed(AUTHOR, b"data", 1)
    (effect,) = offer(node, A, encoded)
    assert effect == Validate(message_id(encoded), A, AUTHOR.peer_id, TOPIC, b"data")
    effects = node.handle(Validated(effect.message_id, ValidationResult.ACCEPT), 1)
    assert dict(sends(effects)) == {B: Rpc(publish=(encoded,)), C: Rpc(publish=(encoded,))}
    assert effects[-1] == Deliver(effect.message_id, AUTHOR.peer_id, TOPIC, b"data")
    assert node.handle(Validated(effect.message_id, ValidationResult.ACCEPT), 1) == []


def test_an_ignored_message_goes_nowhere_and_costs_nothing():
    node = joined()
    encoded = signed(AUTHOR, b"data", 1)
    offer(node, A, encoded)
    assert node.handle(Validated(message_id(encoded), ValidationResult.IGNORE), 1) == []
    (again,) = offer(node, B, encoded)
    assert again.reason is DiscardReason.DUPLICATE


def test_a_rejected_message_costs_everybody_who_sent_it():
    node = joined()
    encoded = signed(AUTHOR, b"data", 1)
    offer(node, A, encoded)
    offer(node, B, encoded)
    effects = node.handle(Validated(message_id(encoded), ValidationResult.REJECT), 1)
    assert effects == [
        PeerFault(A, Fault(FaultCode.MESSAGE_REJECTED)),
        PeerFault(B, Fault(FaultCode.MESSAGE_REJECTED)),
    ]


def test_a_message_is_not_sent_back_to_senders_or_its_author():
    node = joined(4)
    author = PEERS[3]
    encoded = signed(author, b"data", 1)
    offer(node, A, encoded)
    (duplicate,) = offer(node, B, encoded)
    assert duplicate == Discard(B, TOPIC, message_id(encoded), DiscardReason.DUPLICATE)
    effects = node.handle(Validated(message_id(encoded), ValidationResult.ACCEPT), 1)
    assert [peer for peer, _ in sends(effects)] == [C]


def test_a_verdict_after_we_left_the_topic_moves_nothing():
    node = joined()
    encoded = signed(AUTHOR, b"data", 1)
    offer(node, A, encoded)
    node.handle(Unsubscribe(TOPIC), 1)
    assert node.handle(Validated(message_id(encoded), ValidationResult.ACCEPT), 1) == []


def test_our_own_message_coming_back_is_a_duplicate_even_after_it_was_forgotten():
    node = joined()
    encoded = signed(SELF, b"data", 1)
    (effect,) = offer(node, A, encoded)
    assert effect.reason is DiscardReason.DUPLICATE


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"garbage", "message-malformed"),
        (signed(AUTHOR, bytes(101), 1), "message-oversize"),
        (signed(AUTHOR, b"data", 1)[:-1] + b"\x00", "message-signature"),
    ],
)
def test_a_bad_message_is_blamed_and_leaves_no_trace(encoded, reason):
    node = joined(3, Params(message_bytes_max=100))
    good = signed(AUTHOR, b"data", 1)
    effects = offer(node, A, encoded)
    assert blames(effects) == [reason]
    (effect,) = offer(node, A, good)
    assert isinstance(effect, Validate)


def test_one_bad_message_does_not_spoil_the_rest_of_its_rpc():
    effects = offer(joined(), A, b"garbage", signed(AUTHOR, b"data", 1))
    assert [type(effect) for effect in effects] == [PeerFault, Validate]


def test_messages_of_other_topics_are_dropped():
    assert offer(joined(), A, signed(AUTHOR, b"data", 1, topic="other")) == []


def test_pending_messages_are_bounded_and_a_dropped_one_may_come_again():
    node = joined(3, Params(pending_max=1))
    one, two = signed(AUTHOR, b"one", 1), signed(AUTHOR, b"two", 2)
    offer(node, A, one)
    (effect,) = offer(node, A, two)
    assert effect == Discard(A, TOPIC, message_id(two), DiscardReason.PENDING_FULL)
    node.handle(Validated(message_id(one), ValidationResult.ACCEPT), 1)
    (effect,) = offer(node, A, two)
    assert isinstance(effect, Validate)


def test_untrusted_peers_and_graylisted_peers_are_not_heard():
    scores = {A: 0.0}
    node = joined(1, opinions=lambda: scores)
    assert node.handle(RpcReceived(B, b"\xff"), 0) == []
    assert blames(node.handle(RpcReceived(A, b"\xff"), 0)) == ["rpc-malformed"]
    scores[A] = -81.0
    node.handle(Heartbeat(), 0)
    assert node.handle(RpcReceived(A, b"\xff"), 0) == []


def test_peers_and_their_topics_are_bounded():
    node = router(Params(peers_max=1, topics_per_peer_max=2))
    node.handle(PeerConnected(A), 0)
    node.handle(PeerConnected(B), 0)
    assert node.handle(RpcReceived(B, b"\xff"), 0) == []
    many = Rpc(subscriptions=tuple(Subscription(True, name) for name in "aabc"))
    assert blames(node.handle(received(A, many), 0)) == ["too-many-topics"]
    node.handle(received(A, Rpc(subscriptions=(Subscription(False, "a"),))), 0)
    assert node.handle(received(A, Rpc(subscriptions=(Subscription(True, "c"),))), 0) == []
    assert node.handle(Publish("a", b""), 0) == []
    assert len(node.handle(Publish("c", b""), 0)) == 1


def test_a_peer_that_leaves_the_topic_or_the_network_leaves_the_mesh():
    node = joined()
    assert sorted(node.mesh_peers(TOPIC)) == sorted([A, B, C])
    node.handle(received(A, Rpc(subscriptions=(Subscription(False, TOPIC),))), 0)
    node.handle(PeerDisconnected(B), 0)
    node.handle(PeerDisconnected(B), 0)
    assert node.mesh_peers(TOPIC) == [C]
    assert [peer for peer, _ in sends(node.handle(Publish(TOPIC, b""), 1))] == [C]


def test_a_mesh_that_has_lost_its_last_member_is_filled_at_once():
    """Untrusted members of the whole mesh may leave together, long before the next heartbeat."""
    node = joined(
        3, Params(mesh_size=2, mesh_low=1, mesh_high=2, mesh_outbound=0, mesh_keep_by_score=1)
    )
    first, second = node.mesh_peers(TOPIC)
    (spare,) = {A, B, C} - {first, second}
    assert node.handle(PeerDisconnected(first), 1) == [], "one is left"
    assert sends(node.handle(PeerDisconnected(second), 1)) == [(spare, Rpc(graft=(TOPIC,)))]
    assert node.mesh_peers(TOPIC) == [spare]
    assert node.handle(PeerDisconnected(spare), 1) == [], "nobody is left"


def test_a_graft_of_a_subscriber_is_accepted_once():
    node = joined(0)
    node.handle(PeerConnected(A), 0)
    assert node.handle(received(A, Rpc(graft=(TOPIC,))), 0) == []
    assert node.mesh_peers(TOPIC) == []
    node.handle(received(A, ENTER), 0)
    for _ in range(2):
        assert node.handle(received(A, Rpc(graft=(TOPIC, "unknown"))), 0) == []
    assert node.mesh_peers(TOPIC) == [A]


def test_a_graft_inside_the_back_off_is_refused_blamed_and_prolongs_it():
    node = joined(1)
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 30),))), 0)
    assert node.mesh_peers(TOPIC) == []
    effects = node.handle(received(A, Rpc(graft=(TOPIC,))), 29)
    assert blames(effects) == ["graft-in-backoff"]
    assert sends(effects) == [(A, Rpc(prune=(Prune(TOPIC, 60),)))]
    node.handle(Heartbeat(), 88)
    assert node.mesh_peers(TOPIC) == []
    assert node.handle(received(A, Rpc(graft=(TOPIC,))), 89) == []
    assert node.mesh_peers(TOPIC) == [A]


@pytest.mark.parametrize(("asked", "granted"), [(0, 60), (10**18, 3600)])
def test_a_back_off_has_a_default_and_an_upper_bound(asked, granted):
    node = joined(1)
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, asked), Prune("unknown", 5)))), 0)
    node.handle(Heartbeat(), granted + 0.9)
    assert node.mesh_peers(TOPIC) == []
    node.handle(Heartbeat(), granted + 1)
    assert node.mesh_peers(TOPIC) == [A]


def test_a_graft_is_refused_when_the_mesh_is_full_or_the_score_is_bad():
    scores = {each.peer_id: 0.0 for each in PEERS}
    params = Params(mesh_low=1, mesh_size=1, mesh_high=2, mesh_keep_by_score=1, mesh_outbound=0)
    node = joined(4, params, lambda: scores)
    (first,) = node.mesh_peers(TOPIC)
    others = [each.peer_id for each in PEERS[:4] if each.peer_id != first]
    scores[others[0]] = -1.0
    node.handle(Heartbeat(), 0)
    effects = node.handle(received(others[0], Rpc(graft=(TOPIC,))), 0)
    assert sends(effects) == [(others[0], Rpc(prune=(Prune(TOPIC, 60),)))]
    assert blames(effects) == []
    assert node.handle(received(others[1], Rpc(graft=(TOPIC,))), 0) == []
    effects = node.handle(received(others[2], Rpc(graft=(TOPIC,))), 0)
    assert sends(effects) == [(others[2], Rpc(prune=(Prune(TOPIC, 60),)))]


def test_the_heartbeat_fills_a_thin_mesh_to_its_size():
    node = joined(0)
    for each in PEERS[:10]:
        node.handle(PeerConnected(each.peer_id), 0)
        node.handle(received(each.peer_id, ENTER), 0)
    sent = sends(node.handle(Heartbeat(), 1))
    assert [rpc for _, rpc in sent] == [Rpc(graft=(TOPIC,))] * 6
    assert sorted(peer for peer, _ in sent) == sorted(node.mesh_peers(TOPIC))
    assert node.handle(Heartbeat(), 2) == []


def test_the_heartbeat_thins_a_full_mesh_and_keeps_the_best():
    scores = {each.peer_id: float(number) for number, each in enumerate(PEERS)}
    node = joined(0, opinions=lambda: scores)
    for each in PEERS[:14]:
        node.handle(PeerConnected(each.peer_id), 0)
        node.handle(received(each.peer_id, ENTER), 0)
        node.handle(received(each.peer_id, Rpc(graft=(TOPIC,))), 0)
    full = node.mesh_peers(TOPIC)
    assert full == [each.peer_id for each in PEERS[:12]]
    pruned = [peer for peer, rpc in sends(node.handle(Heartbeat(), 1)) if rpc.prune]
    thinned = node.mesh_peers(TOPIC)
    assert len(thinned) == 6
    assert sorted(thinned + pruned) == sorted(full)
    assert {each.peer_id for each in PEERS[8:12]} <= set(thinned)


def test_bad_scores_leave_the_mesh_at_the_heartbeat_and_are_not_grafted_again():
    scores = {each.peer_id: 0.0 for each in PEERS}
    node = joined(3, opinions=lambda: scores)
    scores[A] = -1.0
    sent = sends(node.handle(Heartbeat(), 1))
    assert sent == [(A, Rpc(prune=(Prune(TOPIC, 60),)))]
    node.handle(Heartbeat(), 100)
    assert sorted(node.mesh_peers(TOPIC)) == sorted([B, C])


def lazy_pair(params: Params | None = None) -> tuple[Router, bytes]:
    """Return a router that holds one message, with A subscribed but outside the mesh."""
    node = joined(1, params)
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 60),))), 0)
    node.handle(PeerConnected(B), 0)
    encoded = signed(AUTHOR, b"data", 1)
    offer(node, B, encoded)
    node.handle(Validated(message_id(encoded), ValidationResult.ACCEPT), 1)
    return node, encoded


def test_who_is_outside_the_mesh_is_told_for_three_heartbeats():
    node, encoded = lazy_pair()
    told = [sends(node.handle(Heartbeat(), now)) for now in range(2, 6)]
    once = [(A, Rpc(ihave=(IHave(TOPIC, (message_id(encoded),)),)))]
    assert told == [once, once, once, []]


def test_whom_we_take_into_a_mesh_is_told_what_went_round():
    """A node without a mesh is one of hundreds that learn of a message by random IHAVE."""
    node, encoded = lazy_pair(Params(lazy_peers=0, gossip_factor=0.0))
    node.handle(PeerConnected(C), 1)
    node.handle(received(C, ENTER), 1)
    effects = node.handle(received(C, Rpc(graft=(TOPIC, TOPIC))), 1)
    assert sends(effects) == [(C, Rpc(ihave=(IHave(TOPIC, (message_id(encoded),)),)))]
    assert effects[0].priority is Priority.IHAVE
    assert node.handle(received(C, Rpc(graft=(TOPIC,))), 1) == [], "it is there already"
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 30),))), 1)
    refused = sends(node.handle(received(A, Rpc(graft=(TOPIC,))), 2))
    assert refused == [(A, Rpc(prune=(Prune(TOPIC, 60),)))], "who is refused is told nothing"


def test_what_is_asked_for_is_served_a_few_times():
    node, encoded = lazy_pair()
    ask = received(A, Rpc(iwant=(message_id(encoded), b"unknown")))
    answers = [node.handle(ask, 2) for _ in range(4)]
    assert [sends(answer) for answer in answers] == [[(A, Rpc(publish=(encoded,)))]] * 3 + [[]]
    assert answers[0][0].priority is Priority.RELAY


def test_bytes_served_to_a_peer_are_bounded_per_heartbeat():
    node, encoded = lazy_pair(Params(iwant_reply_bytes_max=1))
    ask = received(A, Rpc(iwant=(message_id(encoded),)))
    assert len(node.handle(ask, 2)) == 1
    assert node.handle(ask, 2) == []
    node.handle(Heartbeat(), 3)
    assert len(node.handle(ask, 3)) == 1


def test_an_unseen_message_is_asked_for_once_per_heartbeat():
    node = joined(2)
    wanted, foreign = message_id(signed(AUTHOR, b"", 1)), message_id(signed(SELF, b"", 1))
    have = Rpc(ihave=(IHave(TOPIC, (wanted, foreign, b"short")), IHave("other", (wanted,))))
    effects = node.handle(received(A, have), 1)
    assert sends(effects) == [(A, Rpc(iwant=(wanted,)))]
    assert effects[0].priority is Priority.IWANT
    assert node.handle(received(B, have), 1) == []
    node.handle(Heartbeat(), 2)
    assert sends(node.handle(received(B, have), 2)) == [(B, Rpc(iwant=(wanted,)))]
    offer(node, B, signed(AUTHOR, b"", 1))
    node.handle(Heartbeat(), 3)
    assert node.handle(received(A, have), 3) == []


def test_ihave_budgets():
    node = joined(2, Params(ihave_messages_max=2, ihave_ids_max=3))
    ids = [message_id(signed(AUTHOR, b"", number)) for number in range(6)]
    first = node.handle(received(A, Rpc(ihave=(IHave(TOPIC, tuple(ids[:2])),))), 1)
    second = node.handle(received(A, Rpc(ihave=(IHave(TOPIC, tuple(ids[2:])),))), 1)
    third = node.handle(received(A, Rpc(ihave=(IHave(TOPIC, tuple(ids[5:])),))), 1)
    assert [sends(each) for each in (first, second, third)] == [
        [(A, Rpc(iwant=tuple(ids[:2])))],
        [(A, Rpc(iwant=(ids[2],)))],
        [],
    ]


def test_ihaves_of_one_peer_are_limited_per_heartbeat():
    node = joined(2, Params(ihave_messages_max=2))
    ids = [message_id(signed(AUTHOR, b"", number)) for number in range(4)]
    haves = [Rpc(ihave=(IHave(TOPIC, (each,)),)) for each in ids]
    asked = [sends(node.handle(received(A, have), 1)) for have in haves[:3]]
    assert asked == [[(A, Rpc(iwant=(each,)))] for each in ids[:2]] + [[]]
    assert sends(node.handle(received(B, haves[2]), 1)) == [(B, Rpc(iwant=(ids[2],)))]
    node.handle(Heartbeat(), 2)
    assert sends(node.handle(received(A, haves[3]), 2)) == [(A, Rpc(iwant=(ids[3],)))]


def test_who_was_pruned_is_not_grafted_when_it_comes_back_to_the_network():
    node = joined(1)
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 60),))), 0)
    node.handle(PeerDisconnected(A), 1)
    node.handle(PeerConnected(A), 2)
    node.handle(received(A, ENTER), 2)
    node.handle(Heartbeat(), 3)
    assert node.mesh_peers(TOPIC) == []
    assert blames(node.handle(received(A, Rpc(graft=(TOPIC,))), 59)) == ["graft-in-backoff"]


def test_in_a_small_swarm_mesh_peers_are_told_too():
    node = joined(2)
    (effect, _) = node.handle(Publish(TOPIC, b""), 1)
    have = Rpc(ihave=(IHave(TOPIC, (message_id(rpc_of(effect).publish[0]),)),))
    assert dict(sends(node.handle(Heartbeat(), 2))) == {A: have, B: have}


def test_many_ids_are_advertised_in_part():
    node = joined(1, Params(ihave_ids_max=3))
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 60),))), 0)
    node.handle(received(A, Rpc(subscriptions=(Subscription(True, "second"),))), 0)
    for _ in range(5):
        node.handle(Publish(TOPIC, b""), 1)
        node.handle(Publish("second", b""), 1)
    ((peer, rpc),) = sends(node.handle(Heartbeat(), 2))
    assert peer == A
    assert [(entry.topic, len(entry.message_ids)) for entry in rpc.ihave] == [(TOPIC, 3)]


def test_bad_scores_get_no_gossip_and_no_floods():
    score = {A: 0.0, B: 0.0}
    node, encoded = lazy_pair()
    node = joined(1, opinions=lambda: score)
    node.handle(Publish(TOPIC, b""), 1)
    node.handle(received(A, Rpc(prune=(Prune(TOPIC, 60),))), 1)
    score[A] = -11.0
    node.handle(Heartbeat(), 1)
    have = Rpc(ihave=(IHave(TOPIC, (message_id(encoded),)),))
    assert node.handle(received(A, have), 1) == []
    assert node.handle(Heartbeat(), 2) == []
    assert len(node.handle(Publish(TOPIC, b""), 2)) == 1
    score[A] = -51.0
    node.handle(Heartbeat(), 3)
    assert node.handle(Publish(TOPIC, b""), 3) == []


@given(st.lists(st.binary(max_size=120), max_size=5))
def test_random_rpcs_never_raise_and_never_enter(chunks):
    node = joined(2)
    for data in chunks:
        for effect in node.handle(RpcReceived(A, data), 1):
            assert isinstance(effect, PeerFault | Send)
    assert set(node.mesh_peers(TOPIC)) <= {A, B}


def test_the_same_seed_draws_the_same_mesh():
    meshes = []
    for seed in (b"1", b"1", b"2"):
        node = router(seed=seed)
        for each in PEERS:
            node.handle(PeerConnected(each.peer_id), 0)
            node.handle(received(each.peer_id, ENTER), 0)
        node.handle(Subscribe(TOPIC), 0)
        meshes.append(node.mesh_peers(TOPIC))
    assert meshes[0] == meshes[1] != meshes[2]


def test_a_router_needs_only_what_it_is_given():
    node = Router(SELF, Params(), Rng(b""), verifier=lambda *_: True)
    node.handle(PeerConnected(A), 0)
    node.handle(Subscribe(TOPIC), 0)
    forged = signed(AUTHOR, b"data", 1)[:-1] + b"\x00"
    (effect,) = offer(node, A, forged)
    assert isinstance(effect, Validate)
