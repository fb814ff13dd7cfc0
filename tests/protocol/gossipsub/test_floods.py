"""Floods of GRAFTs, IHAVEs, IWANTs and bad signatures: the cost of each is bounded."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.containers import table_sizes
from protocol.gossipsub.events import (
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    Publish,
    RpcReceived,
    Subscribe,
    Validate,
)
from protocol.gossipsub.inspection import ScoreLevel
from protocol.gossipsub.message import decode_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import IHave, Prune, Rpc, Subscription, encode_rpc
from tests.protocol.gossipsub.nodes import (
    ENTER,
    PEERS,
    TOPIC,
    blames,
    identity,
    joined_router,
    received,
    rpc_of,
    sends,
    signed,
)

HONEST = [identity(number) for number in range(2000, 2020)]
UNTRUSTED = [identity(number) for number in range(3000, 3005)]
FLOODER = UNTRUSTED[0].peer_id


def enter(node, peers, now):
    for each in peers:
        node.handle(PeerConnected(each.peer_id), now)
        node.handle(received(each.peer_id, ENTER), now)


def level(node, peer, now=0):
    return next(each.level for each in node.report(now) if each.peer == peer)


def unknown_ids(first, count):
    """Return ids of nonexistent messages."""
    message_id = decode_message(signed(identity(9), b"", 1)).message_id
    return tuple(
        message_id[:-8] + number.to_bytes(8, "big") for number in range(first, first + count)
    )


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 8),
    st.sampled_from(["stay", "return", "return after each"]),
    st.integers(0, 4),
)
def test_five_untrusted_peers_that_graft_on_and_on_are_in_a_part_of_our_mesh_and_then_in_none(
    grafts, way, away_seconds
):
    """A refused peer that asks again is penalised, also on new connections; members stay."""
    honest = {each.peer_id for each in HONEST}
    node = joined_router(0)
    enter(node, HONEST, 0)
    node.handle(Heartbeat(), 1)
    enter(node, UNTRUSTED, 1)
    for beat in range(60):
        now = 2 + beat * (1 + away_seconds)
        for each in UNTRUSTED:
            for number in range(grafts):
                node.handle(received(each.peer_id, Rpc(graft=(TOPIC,))), now)
                if way == "return after each" or (way == "return" and number == 0):
                    node.handle(PeerDisconnected(each.peer_id), now)
                    enter(node, [each], now)
        node.handle(Heartbeat(), now)
        members = node.mesh_peers(TOPIC)
        assert sum(peer in honest for peer in members) >= Params().mesh_keep_by_score
        assert len(members) <= Params().mesh_high


def test_repeated_grafts_into_a_full_mesh_graylist_the_peer():
    node = joined_router(12)
    for each in PEERS[:12]:
        node.handle(received(each.peer_id, Rpc(graft=(TOPIC,))), 0)
    enter(node, UNTRUSTED[:1], 0)
    answers = [
        sends(node.handle(received(FLOODER, Rpc(graft=(TOPIC,))), 1 + number / 10))
        for number in range(20)
    ]
    assert [bool(each) for each in answers] == [True] * 5 + [False] * 15, "no answer, no work"
    assert level(node, FLOODER) is ScoreLevel.GRAYLISTED
    assert FLOODER not in node.mesh_peers(TOPIC)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 20), st.integers(1, 700))
def test_an_ihave_flood_makes_us_ask_for_so_much_a_heartbeat_and_then_for_nothing(rpcs, ids):
    params = Params()
    node = joined_router(3)
    enter(node, UNTRUSTED[:1], 0)
    asked = []
    for beat in range(30):
        count = 0
        for number in range(rpcs):
            offer = IHave(TOPIC, unknown_ids((beat * rpcs + number) * ids, ids))
            for _, rpc in sends(node.handle(received(FLOODER, Rpc(ihave=(offer,))), 4 * beat)):
                count += len(rpc.iwant)
        assert count <= params.ihave_ids_max
        assert count <= params.ihave_messages_max * ids
        asked.append(count)
        node.handle(Heartbeat(), 4 * beat + 0.5)
        assert table_sizes(node.tables)["promises"] <= params.score.promises_max
    assert asked[0] > 0
    assert sum(count > 0 for count in asked[5:]) <= 5, "broken promises: now and then, once decayed"
    assert level(node, FLOODER) is not ScoreLevel.GOOD
    assert all(level(node, peer) is ScoreLevel.GOOD for peer in node.mesh_peers(TOPIC))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 30))
def test_an_iwant_flood_is_served_each_message_so_often_and_so_many_bytes(rpcs, repeats):
    params = Params(iwant_reply_bytes_max=20_000)
    node = joined_router(0, params)
    enter(node, UNTRUSTED[:1], 0)
    data = bytes(5000)
    published = [node.handle(Publish(TOPIC, data), number) for number in range(6)]
    encoded = [rpc_of(effects[0]).publish[0] for effects in published]
    ids = tuple(decode_message(each).message_id for each in encoded)
    flood = received(FLOODER, Rpc(iwant=ids * repeats))
    for beat in range(4):
        effects = [one for _ in range(rpcs) for one in node.handle(flood, 10 + beat)]
        assert set(blames(effects)) <= {"rpc-flood"}
        served = [message for _, rpc in sends(effects) for message in rpc.publish]
        assert sum(map(len, served)) <= params.iwant_reply_bytes_max + max(map(len, encoded))
        assert all(served.count(each) <= params.iwant_serves_max for each in encoded)
        node.handle(Heartbeat(), 10.5 + beat)


def test_untrusted_peers_that_ask_for_everything_share_what_is_served_and_trusted_peers_do_not():
    params = Params(iwant_reply_bytes_max=100_000, iwant_untrusted_bytes_max=100_000)
    trusted = HONEST[0].peer_id
    node = joined_router(0, params, trusted=lambda: {trusted})
    enter(node, UNTRUSTED + HONEST, 0)
    published = [node.handle(Publish(TOPIC, bytes(5000)), number) for number in range(30)]
    encoded = [rpc_of(effects[0]).publish[0] for effects in published]
    ids = tuple(decode_message(each).message_id for each in encoded)

    def served(peer, now):
        replies = sends(node.handle(received(peer, Rpc(iwant=ids)), now))
        return sum(len(message) for _, rpc in replies for message in rpc.publish)

    slack = max(map(len, encoded))
    assert 100_000 <= served(FLOODER, 40) <= 100_000 + slack
    node.handle(Heartbeat(), 41)
    parts = [served(each.peer_id, 41.1) for each in UNTRUSTED]  # how many will request is unknown
    for count, part in enumerate(parts, 1):
        assert 100_000 / count <= part <= 100_000 / count + slack
    node.handle(Heartbeat(), 42)
    for each in UNTRUSTED:
        assert 20_000 <= served(each.peer_id, 42.1) <= 20_000 + slack
    assert served(trusted, 42.2) >= 100_000
    node.handle(Heartbeat(), 43)
    node.handle(Heartbeat(), 44)
    assert served(FLOODER, 44.1) >= 100_000


def test_untrusted_peers_that_offer_what_nobody_has_share_what_is_asked_for():
    params = Params(ihave_ids_max=300, iwant_untrusted_ids_max=100)
    trusted = HONEST[0].peer_id
    node = joined_router(0, params, trusted=lambda: {trusted})
    enter(node, UNTRUSTED + HONEST, 0)
    first = itertools.count(step=1000)

    def asked(peer, now, count=200):
        offer = IHave(TOPIC, unknown_ids(next(first), count))
        effects = node.handle(received(peer, Rpc(ihave=(offer,))), now)
        return sum(len(rpc.iwant) for _, rpc in sends(effects))

    assert asked(FLOODER, 1, 60) == 60
    assert asked(FLOODER, 1) == 40
    node.handle(Heartbeat(), 2)
    for count, each in enumerate(UNTRUSTED, 1):
        assert asked(each.peer_id, 2.1) == 100 // count
    node.handle(Heartbeat(), 3)
    for each in UNTRUSTED:
        assert asked(each.peer_id, 3.1) == 100 // len(UNTRUSTED)
    assert asked(trusted, 3.2) == 200
    node.handle(Heartbeat(), 4)
    node.handle(Heartbeat(), 5)
    assert asked(FLOODER, 5.1) == 100


def test_urgent_messages_are_requested_before_deferrable_ones():
    node = joined_router(1, Params(iwant_untrusted_ids_max=3), may_wait=True)
    node.handle(Subscribe("urgent"), 0)
    offers = (IHave(TOPIC, unknown_ids(0, 2)), IHave("urgent", unknown_ids(2, 2)))
    effects = node.handle(received(PEERS[0].peer_id, Rpc(ihave=offers)), 1)
    roster, urgent = (offer.message_ids for offer in offers)
    assert sends(effects) == [(PEERS[0].peer_id, Rpc(iwant=(*urgent, roster[0])))]


SLOW_RPCS = {
    "fields that nobody knows": bytes((15 << 3, 0)) * 1000,
    "grafts elsewhere": encode_rpc(Rpc(graft=("elsewhere",) * 500)),
    "prunes elsewhere": encode_rpc(Rpc(prune=(Prune("elsewhere", 1),) * 400)),
    "one subscription": encode_rpc(Rpc(subscriptions=(Subscription(True, TOPIC),) * 400)),
    "requests for nothing": encode_rpc(Rpc(iwant=(b"nothing",) * 1000)),
}


@pytest.mark.parametrize("rpc", SLOW_RPCS.values(), ids=SLOW_RPCS)
def test_a_flood_of_rpcs_that_take_long_to_read_is_soon_not_read(rpc):
    node = joined_router(3)
    enter(node, UNTRUSTED[:1], 0)
    flood = RpcReceived(FLOODER, rpc)
    for _ in range(5):
        assert blames(node.handle(flood, 1)) == []
    found = []
    for _ in range(100):
        found += blames(node.handle(flood, 1.5))
    assert set(found) == {"rpc-flood"}
    assert len(found) <= 8, "of 100: those after them are not decoded"
    assert level(node, FLOODER) is ScoreLevel.GRAYLISTED
    assert all(level(node, peer) is ScoreLevel.GOOD for peer in node.mesh_peers(TOPIC))


def test_a_flood_of_empty_rpcs_is_soon_not_read():
    """An empty RPC is one byte on the wire, and costs as much as a useful one."""
    node = joined_router(3)
    enter(node, UNTRUSTED[:1], 0)
    empty = RpcReceived(FLOODER, b"")
    allowed = Params().rpc_fields_max
    assert not any(blames(node.handle(empty, 1)) for _ in range(allowed // 2))
    found = []
    for _ in range(allowed):
        found += blames(node.handle(empty, 1))
    assert set(found) == {"rpc-flood"}
    assert len(found) <= 8, "those after them are not decoded"


def test_peer_that_requests_all_offered_messages_is_answered():
    node = joined_router(3)
    enter(node, UNTRUSTED[:1], 0)
    offers = tuple(IHave("elsewhere", unknown_ids(0, 5000)) for _ in range(3))
    for beat in range(1, 20):
        wanted = Rpc(iwant=unknown_ids(5000 * beat, 5000))
        faults = blames(node.handle(received(FLOODER, wanted), beat))
        faults += blames(node.handle(received(FLOODER, Rpc(ihave=offers)), beat))
        faults += blames(node.handle(received(FLOODER, ENTER), beat))
        assert faults == []
        node.handle(Heartbeat(), beat + 0.5)
    assert level(node, FLOODER) is ScoreLevel.GOOD


@pytest.mark.parametrize("author", [UNTRUSTED[0], identity(77)], ids=["its own", "another's"])
def test_router_stops_reading_a_peer_after_a_few_bad_signatures(author):
    """A check costs 70 us: four of them, then none for ten minutes, also on new connections."""
    verified = []

    def verifier(*signed_by):
        verified.append(signed_by)
        return False

    node = joined_router(3, verifier=verifier)
    enter(node, UNTRUSTED[:1], 0)
    found = []
    for seqno in range(1, 500):
        message = signed(author, b"junk", seqno)
        forged = message[:-1] + bytes([message[-1] ^ 1])
        now = seqno
        effects = node.handle(received(FLOODER, Rpc(publish=(forged,))), now)
        assert not any(isinstance(effect, Validate) for effect in effects)
        found += blames(effects)
        if seqno % 10 == 0:
            node.handle(PeerDisconnected(FLOODER), now)
            enter(node, UNTRUSTED[:1], now)
        node.handle(Heartbeat(), now)
    assert set(found) == {"message-signature"}
    assert len(verified) == len(found)
    assert len(found) <= 20, "of 499"
    assert level(node, FLOODER) is ScoreLevel.GRAYLISTED
    assert node.mesh_peers(TOPIC) != []


def test_forged_copy_does_not_block_the_genuine_message():
    node = joined_router(3)
    whole = signed(identity(77), b"news", 1)
    forged = whole[:-1] + bytes([whole[-1] ^ 1])
    enter(node, UNTRUSTED[:1], 0)
    node.handle(received(FLOODER, Rpc(publish=(forged,))), 1)
    (effect,) = node.handle(received(node.mesh_peers(TOPIC)[0], Rpc(publish=(whole,))), 1)
    assert isinstance(effect, Validate)


def test_levels_follow_the_thresholds():
    scores = {
        identity(number).peer_id: score
        for number, score in enumerate(
            (0.0, -0.1, -10.0, -10.1, -50.0, -50.1, -80.0, -80.1), start=1
        )
    }
    node = joined_router(8, opinions=lambda: scores)
    levels = [each.level for each in node.report(0)]
    assert levels == [
        "good",
        "no-mesh",
        "no-mesh",
        "no-gossip",
        "no-gossip",
        "no-publish",
        "no-publish",
        "graylisted",
    ]
