"""Messages that may wait: batched forwarding, IHAVE after that, never back to the sender."""

import pytest

from protocol.core.faults import Fault
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import (
    Deliver,
    Flush,
    FlushLater,
    Heartbeat,
    PeerDisconnected,
    Subscribe,
    Unsubscribe,
    Validated,
)
from protocol.gossipsub.forwarding import BATCH_BYTES_MAX, FRESH_MAX, Batches
from protocol.gossipsub.message import decode_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import IHave, Rpc
from tests.protocol.gossipsub.nodes import PEERS, TOPIC, joined_router, received, sends, signed

A, B, C = (each.peer_id for each in PEERS[:3])
AUTHOR = PEERS[20]


def joined(count: int = 3) -> Router:
    """Return a router that may delay TOPIC, with ``count`` subscribed peers in its mesh."""
    return joined_router(count, may_wait=True, is_trusted={AUTHOR.peer_id})


def message_id(encoded: bytes) -> bytes:
    message = decode_message(encoded)
    assert not isinstance(message, Fault)
    return message.message_id


def accept(node: Router, sender: PeerId, encoded: bytes):
    node.handle(received(sender, Rpc(publish=(encoded,))), 1)
    return node.handle(Validated(message_id(encoded), ValidationResult.ACCEPT), 1)


def published(effects) -> dict[PeerId, tuple[bytes, ...]]:
    return {peer: rpc.publish for peer, rpc in sends(effects) if rpc.publish}


def test_messages_are_delivered_at_once_and_relayed_together_at_the_heartbeat():
    node = joined()
    first, second = signed(AUTHOR, b"one", 1), signed(AUTHOR, b"two", 2)
    for sender, encoded in ((A, first), (B, second)):
        effects = accept(node, sender, encoded)
        assert [type(effect) for effect in effects] == [Deliver]
    assert published(node.handle(Heartbeat(), 2)) == {A: (second,), B: (first,), C: (first, second)}
    assert published(node.handle(Heartbeat(), 3)) == {}


def test_who_sends_us_a_message_meanwhile_is_not_sent_it():
    node = joined()
    encoded = signed(AUTHOR, b"one", 1)
    accept(node, A, encoded)
    node.handle(received(B, Rpc(publish=(encoded,))), 1)
    assert published(node.handle(Heartbeat(), 2)) == {C: (encoded,)}


def test_a_message_is_told_of_by_the_heartbeats_after_the_one_that_relays_it():
    node = joined(1)
    encoded = signed(AUTHOR, b"one", 1)
    accept(node, A, encoded)
    told = [[rpc.ihave for _, rpc in sends(node.handle(Heartbeat(), now))] for now in range(2, 7)]
    once = [(IHave(TOPIC, (message_id(encoded),)),)]
    assert told == [[], once, once, once, []]


def test_a_topic_that_was_left_and_entered_anew_is_in_a_hurry_again():
    node = joined()
    node.handle(Unsubscribe(TOPIC), 1)
    node.handle(Subscribe(TOPIC), 100)
    encoded = signed(AUTHOR, b"one", 1)
    node.handle(received(A, Rpc(publish=(encoded,))), 101)
    effects = node.handle(Validated(message_id(encoded), ValidationResult.ACCEPT), 101)
    assert set(published(effects)) == {B, C}


WAIT_SECONDS = 0.25


def in_a_hurry(count: int = 3) -> Router:
    """Return a router that forwards on ``Flush``, with ``count`` peers in its mesh."""
    return joined_router(count, Params(relay_wait_seconds=WAIT_SECONDS))


def test_one_flush_within_the_wait_relays_what_came_before_it():
    node = in_a_hurry()
    first, second = signed(AUTHOR, b"one", 1), signed(AUTHOR, b"two", 2)
    asked = [effect for effect in accept(node, A, first) if isinstance(effect, FlushLater)]
    assert len(asked) == 1
    assert 0 <= asked[0].seconds < WAIT_SECONDS
    assert [type(effect) for effect in accept(node, B, second)] == [Deliver]
    node.handle(received(C, Rpc(publish=(first,))), 1)
    assert published(node.handle(Flush(), 2)) == {A: (second,), B: (first,), C: (second,)}
    assert published(node.handle(Heartbeat(), 3)) == {}


def test_after_a_flush_the_next_message_asks_for_another_one():
    node = in_a_hurry()
    accept(node, A, signed(AUTHOR, b"one", 1))
    node.handle(Flush(), 2)
    effects = accept(node, A, signed(AUTHOR, b"two", 2))
    assert [type(effect) for effect in effects] == [FlushLater, Deliver]


def test_waits_differ_so_that_of_two_neighbours_one_is_first():
    node, waits = in_a_hurry(), []
    for number in range(20):
        effects = accept(node, A, signed(AUTHOR, b"data", number + 1))
        waits += [effect.seconds for effect in effects if isinstance(effect, FlushLater)]
        node.handle(Flush(), 2)
    assert len(set(waits)) == 20
    assert min(waits) < WAIT_SECONDS / 4
    assert max(waits) > 3 * WAIT_SECONDS / 4


def test_what_waits_for_a_flush_is_told_of_only_after_it():
    node = in_a_hurry(1)
    encoded = signed(AUTHOR, b"one", 1)
    accept(node, A, encoded)
    assert sends(node.handle(Heartbeat(), 2)) == []
    node.handle(Flush(), 2)
    once = [(IHave(TOPIC, (message_id(encoded),)),)]
    assert [rpc.ihave for _, rpc in sends(node.handle(Heartbeat(), 3))] == once


@pytest.mark.parametrize(("enter", "end"), [(joined, Heartbeat()), (in_a_hurry, Flush())])
def test_who_has_gone_is_sent_nothing(enter, end):
    node = enter()
    encoded = signed(AUTHOR, b"one", 1)
    accept(node, A, encoded)
    node.handle(PeerDisconnected(B), 1)
    assert published(node.handle(end, 2)) == {C: (encoded,)}


def test_too_much_to_wait_leaves_at_once():
    batches, size = Batches(), BATCH_BYTES_MAX // 2
    assert batches.add(b"1", TOPIC, bytes(size), [A]) == {}
    assert batches.add(b"2", TOPIC, bytes(size), [B]) == {}
    assert batches.add(b"3", TOPIC, bytes(size + 1), [A]) == {A: (bytes(size), bytes(size + 1))}
    assert batches.take() == {B: (bytes(size),)}


def test_what_a_peer_has_makes_room_in_its_batch():
    batches, size = Batches(), BATCH_BYTES_MAX // 2
    batches.add(b"1", TOPIC, bytes(size), [A])
    batches.drop(A, b"1")
    batches.drop(A, b"1")
    batches.drop(B, b"1")
    assert batches.add(b"2", TOPIC, bytes(size + 1), [A]) == {}
    assert batches.take() == {A: (bytes(size + 1),)}


def test_a_flood_of_messages_is_told_of_in_part():
    batches = Batches()
    for number in range(FRESH_MAX + 3):
        batches.add(number.to_bytes(4, "big"), TOPIC, b"", [])
    fresh = batches.take_fresh()
    assert len(fresh) == FRESH_MAX
    assert bytes(4) not in fresh
    assert batches.take_fresh() == {}
