"""Rate-limited forwarding of messages from untrusted authors: round robin, per peer."""

from dataclasses import replace

import pytest

from protocol.core.faults import Fault
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import Heartbeat, PeerDisconnected, Validated
from protocol.gossipsub.forwarding import LANE_BYTES, LANE_WAITING_BYTES_MAX, UntrustedForwardQueue
from protocol.gossipsub.message import GossipMessage, decode_message
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import IHave, Prune, Rpc
from tests.protocol.gossipsub.nodes import PEERS, TOPIC, joined_router, received, sends, signed

A, B, C = (each.peer_id for each in PEERS[:3])
KNOWN, *UNTRUSTED = PEERS[3:]
HALF = LANE_BYTES // 2
"""With its frame, only one of two messages of this size fits."""


def joined(count: int = 3) -> Router:
    """Return a router that may delay TOPIC, with ``count`` subscribed peers in its mesh."""
    return joined_router(count, may_wait=True, is_trusted={KNOWN.peer_id})


def accept(node: Router, sender: PeerId, *messages: bytes) -> None:
    for encoded in messages:
        node.handle(received(sender, Rpc(publish=(encoded,))), 1)
        node.handle(Validated(decoded(encoded).message_id, ValidationResult.ACCEPT), 1)


def decoded(encoded: bytes) -> GossipMessage:
    message = decode_message(encoded)
    assert not isinstance(message, Fault)
    return message


def relayed(node: Router, now: float = 2) -> dict[PeerId, tuple[bytes, ...]]:
    """Return the messages of the next heartbeat by peer."""
    effects = node.handle(Heartbeat(), now)
    return {peer: rpc.publish for peer, rpc in sends(effects) if rpc.publish}


def test_messages_of_untrusted_authors_are_forwarded_in_parts_that_fit_the_lane():
    node = joined(2)
    messages = [signed(author, bytes(1000), 1) for author in UNTRUSTED]
    accept(node, A, *messages)
    parts = [relayed(node, 2 + heartbeat) for heartbeat in range(len(messages))]
    carried = [part[B] for part in parts if part]
    assert [message for part in carried for message in part] == messages
    assert all(part.keys() <= {B} for part in parts)
    assert {len(part) for part in carried[:-1]} == {LANE_BYTES // len(messages[0])}


def test_a_message_that_is_larger_than_the_lane_goes_alone():
    node = joined(2)
    first, second = (signed(author, bytes(LANE_BYTES), 1) for author in UNTRUSTED[:2])
    accept(node, A, first, second)
    assert [relayed(node, now) for now in (2, 3, 4)] == [{B: (first,)}, {B: (second,)}, {}]


def test_a_trusted_peer_does_not_wait_for_new_nodes():
    node = joined(2)
    spam = [signed(author, bytes(HALF), 1) for author in UNTRUSTED]
    known = [signed(KNOWN, bytes(HALF), number) for number in range(1, 9)]
    accept(node, A, *spam, *known)
    assert relayed(node) == {B: (*known, spam[0])}


def test_an_author_that_says_more_keeps_its_turn_and_has_no_second_one():
    node = joined(2)
    loud, quiet = UNTRUSTED[:2]
    says = [signed(loud, bytes(HALF), number) for number in range(1, 30)]
    word = signed(quiet, bytes(HALF), 1)
    accept(node, A, says[0], word, *says[1:])
    assert [relayed(node, now) for now in (2, 3, 4)] == [{B: (says[-1],)}, {B: (word,)}, {}]


def test_who_has_a_message_is_not_sent_it():
    node = joined()
    first, second = (signed(author, b"one", 1) for author in UNTRUSTED[:2])
    accept(node, A, first, second)
    node.handle(received(B, Rpc(publish=(first,))), 1)
    assert relayed(node) == {B: (second,), C: (first, second)}


def test_who_has_an_older_message_of_an_author_is_sent_the_newer_one():
    node = joined(2)
    older, newer = (signed(UNTRUSTED[0], b"word", number) for number in (1, 2))
    accept(node, A, older, newer)
    node.handle(received(B, Rpc(publish=(older,))), 1)
    assert relayed(node) == {B: (newer,)}


@pytest.mark.parametrize(
    "leave",
    [PeerDisconnected(B), received(B, Rpc(prune=(Prune(TOPIC, 60),)))],
    ids=["connection", "mesh"],
)
def test_nothing_waits_for_who_has_left(leave):
    node = joined()
    accept(node, A, *(signed(author, bytes(HALF), 1) for author in UNTRUSTED[:4]))
    assert relayed(node).keys() == {B, C}
    node.handle(leave, 3)
    assert relayed(node, 4).keys() == {C}


def test_messages_of_untrusted_authors_are_not_advertised():
    node = joined(2)
    accept(node, A, signed(UNTRUSTED[0], b"word", 1), known := signed(KNOWN, b"word", 1))
    node.handle(Heartbeat(), 2)
    told = [rpc.ihave for _, rpc in sends(node.handle(Heartbeat(), 3)) if rpc.ihave]
    assert set(told) == {(IHave(TOPIC, (decoded(known).message_id,)),)}


def test_only_so_much_waits_for_a_peer_and_the_oldest_leaves():
    lane, one = UntrustedForwardQueue(), decoded(signed(UNTRUSTED[0], b"word", 1))
    room = LANE_WAITING_BYTES_MAX // LANE_BYTES
    says = [
        replace(one, source=bytes([number]), encoded=bytes([number]) * LANE_BYTES)
        for number in range(room + 3)
    ]
    for message in says:
        lane.add(message, [A])
        lane.add(message, [A])  # a duplicate takes no more room
    assert lane.size_bytes == room * LANE_BYTES
    lane.drop(A, says[-1])
    assert lane.size_bytes == (room - 1) * LANE_BYTES
    taken = [lane.take([A]).get(A) for _ in says]
    assert taken == [(message.encoded,) for message in says[3:-1]] + 4 * [None]
    assert lane.size_bytes == 0
