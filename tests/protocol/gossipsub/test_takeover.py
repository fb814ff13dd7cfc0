"""Mesh takeover by untrusted peers, and mesh members that withhold messages."""

import pytest

from protocol.core.containers import table_sizes
from protocol.core.types import ValidationResult
from protocol.gossipsub.events import (
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    Publish,
    Subscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.message import decode_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import IHave, Prune, Rpc
from tests.protocol.gossipsub.nodes import (
    ENTER,
    TOPIC,
    identity,
    joined_router,
    received,
    router,
    sends,
    signed,
)

HONEST = [identity(number) for number in range(2000, 2020)]
UNTRUSTED = [identity(number) for number in range(3000, 3300)]
AUTHOR = identity(4000)
CHOSEN = {each.peer_id for each in HONEST}


def enter(node, peers, now):
    for each in peers:
        node.handle(PeerConnected(each.peer_id), now)
        node.handle(received(each.peer_id, ENTER), now)


def graft(node, each, now):
    return node.handle(received(each.peer_id, Rpc(graft=(TOPIC,))), now)


def bring(node, sender, author, seqno, now, verdict=ValidationResult.ACCEPT):
    """Receive a message from a peer; return the router's effects."""
    rpc = Rpc(publish=(signed(author, b"news", seqno),))
    effects = node.handle(received(sender.peer_id, rpc), now)
    for effect in list(effects):
        if isinstance(effect, Validate):
            effects += node.handle(Validated(effect.message_id, verdict), now)
    return effects


def honest_members(node):
    return sum(peer in CHOSEN for peer in node.mesh_peers(TOPIC))


@pytest.mark.parametrize("grafts_per_beat", [5, 12])
def test_untrusted_peers_that_graft_at_every_heartbeat_do_not_take_our_mesh(grafts_per_beat):
    """Three hundred keys graft for two minutes, some at each heartbeat, without traffic."""
    node = joined_router(0)
    enter(node, HONEST, 1)
    for now in range(2, 7):
        node.handle(Heartbeat(), now)
    enter(node, UNTRUSTED, 6)
    honest = []
    for beat in range(120):
        now = 7 + beat
        start = beat * grafts_per_beat % len(UNTRUSTED)
        for each in UNTRUSTED[start : start + grafts_per_beat]:
            graft(node, each, now)
        node.handle(Heartbeat(), now)
        honest.append(honest_members(node))
    assert min(honest) >= Params().mesh_keep_by_score


def test_members_that_we_have_dialled_stay_whatever_untrusted_peers_earn():
    scores = {each.peer_id: 5.0 for each in UNTRUSTED}
    node = joined_router(0, opinions=lambda: scores, chosen=lambda: CHOSEN)
    enter(node, HONEST, 1)
    node.handle(Heartbeat(), 2)
    enter(node, UNTRUSTED, 2)
    for beat in range(60):
        for each in UNTRUSTED[beat * 5 : beat * 5 + 5]:
            graft(node, each, 3 + beat)
        node.handle(Heartbeat(), 3 + beat)
        assert honest_members(node) >= Params().mesh_outbound
        assert len(node.mesh_peers(TOPIC)) <= Params().mesh_high


def test_a_mesh_of_untrusted_peers_is_given_members_that_we_have_dialled():
    node = joined_router(0, chosen=lambda: CHOSEN)
    enter(node, UNTRUSTED[:6], 1)
    node.handle(Heartbeat(), 2)
    assert honest_members(node) == 0
    enter(node, HONEST, 2)
    node.handle(Heartbeat(), 3)
    assert honest_members(node) == Params().mesh_outbound


def test_who_we_have_dialled_may_graft_into_a_full_mesh():
    node = joined_router(0, chosen=lambda: CHOSEN)
    enter(node, UNTRUSTED[:13], 1)
    for each in UNTRUSTED[:12]:
        graft(node, each, 1)
    assert graft(node, UNTRUSTED[12], 1) != []
    enter(node, HONEST[:1], 1)
    assert graft(node, HONEST[0], 1) == []
    assert len(node.mesh_peers(TOPIC)) == 13


def test_a_mesh_that_withholds_is_left_for_peers_that_deliver():
    """Six silent members; messages of the peers outside come by IHAVE only."""
    node = joined_router(0)
    enter(node, UNTRUSTED[:6], 1)
    node.handle(Heartbeat(), 2)
    assert len(node.mesh_peers(TOPIC)) == 6
    enter(node, HONEST, 2)
    for now in range(3, 303):
        node.handle(Heartbeat(), now)
        if now % 3 == 0:
            bring(node, HONEST[now % 20], HONEST[now % 20], now, now)
    assert honest_members(node) >= 4


def test_silence_does_not_reshuffle_a_mesh_nor_blame_anybody():
    """An hour without messages: nothing is sent, and no score falls below zero."""
    node = joined_router(0)
    enter(node, HONEST, 1)
    node.handle(Heartbeat(), 2)
    members = node.mesh_peers(TOPIC)
    for now in range(3, 3603):
        assert node.handle(Heartbeat(), now) == []
    assert node.mesh_peers(TOPIC) == members
    assert all(node.score(each.peer_id) >= 0 for each in HONEST)


def test_who_leaves_after_an_hour_of_silence_owes_nothing():
    node = joined_router(3)
    for now in range(1, 3600, 10):
        node.handle(Heartbeat(), now)
    for peer in node.mesh_peers(TOPIC):
        node.handle(PeerDisconnected(peer), 3600)
    assert table_sizes(node.tables)["retained_scores"] == 0


def test_a_breach_that_is_forgiven_is_not_forgotten_by_leaving_with_credit():
    node = joined_router(2)
    peer = identity(1)
    node.handle(received(peer.peer_id, Rpc(prune=(Prune(TOPIC, 60),))), 0)
    for now in (11, 22, 33, 44):
        bring(node, peer, peer, now, now)
        graft(node, peer, now)
        node.handle(PeerDisconnected(peer.peer_id), now)
        enter(node, [peer], now)
    assert node.score(peer.peer_id) < 0


def test_one_word_in_an_hour_blames_nobody():
    node = joined_router(0)
    enter(node, HONEST, 1)
    for now in range(2, 3602):
        node.handle(Heartbeat(), now)
        if now % 600 == 0:
            node.handle(Publish(TOPIC, b"word"), now)
            bring(node, HONEST[0], HONEST[0], now, now)
        assert all(node.score(each.peer_id) >= 0 for each in HONEST)


def test_invalid_messages_end_the_mesh_and_then_everything():
    node = joined_router(1)
    (bad,) = node.mesh_peers(TOPIC)
    sender = next(each for each in map(identity, range(1, 25)) if each.peer_id == bad)
    bring(node, sender, AUTHOR, 1, 1, ValidationResult.REJECT)
    assert node.score(bad) == -10
    node.handle(Heartbeat(), 1.5)
    assert node.mesh_peers(TOPIC) == []
    for seqno in (2, 3):
        bring(node, sender, AUTHOR, seqno, 1.5, ValidationResult.REJECT)
    assert node.score(bad) == -90
    assert bring(node, sender, AUTHOR, 4, 1.6) == []


def test_a_late_copy_of_a_rejected_message_counts_and_once_per_peer():
    node = joined_router(3)
    first, second, third = (identity(number) for number in range(1, 4))
    bring(node, first, AUTHOR, 1, 1, ValidationResult.REJECT)
    for _ in range(2):
        bring(node, second, AUTHOR, 1, 2)
    assert [node.score(each.peer_id) for each in (first, second, third)] == [-10, -10, 0]


def test_only_the_first_of_an_accepted_message_has_credit_and_none_for_an_ignored_one():
    node = joined_router(2)
    first, second = identity(1), identity(2)
    bring(node, first, AUTHOR, 1, 1)
    bring(node, second, AUTHOR, 1, 1)
    bring(node, second, AUTHOR, 2, 1, ValidationResult.IGNORE)
    credit = Params().score.topic.first_deliveries_weight
    assert [node.score(each.peer_id) for each in (first, second)] == [credit, 0]


def test_leaving_and_coming_back_clears_nobody():
    node = joined_router(1)
    bad = identity(1)
    for seqno in (1, 2, 3):
        bring(node, bad, AUTHOR, seqno, 1, ValidationResult.REJECT)
    node.handle(PeerDisconnected(bad.peer_id), 2)
    assert node.score(bad.peer_id) == 0
    node.handle(PeerConnected(bad.peer_id), 3)
    assert node.score(bad.peer_id) == -90
    assert node.handle(received(bad.peer_id, ENTER), 3) == []
    node.handle(PeerDisconnected(bad.peer_id), 4)
    node.handle(PeerConnected(bad.peer_id), 604)
    assert node.score(bad.peer_id) == 0


def test_grafts_in_the_back_off_cost_and_at_once_twice():
    node = joined_router(1)
    peer = identity(1)
    node.handle(received(peer.peer_id, Rpc(prune=(Prune(TOPIC, 60),))), 0)
    graft(node, peer, 11)  # one: not within ten seconds
    assert node.score(peer.peer_id) == 0
    graft(node, peer, 12)  # two more; three are forgiven
    assert node.score(peer.peer_id) == 0
    graft(node, peer, 30)
    assert node.score(peer.peer_id) == -5
    graft(node, peer, 31)
    assert node.score(peer.peer_id) == -45
    assert node.mesh_peers(TOPIC) == []


def test_offers_that_are_not_kept_cost_and_kept_ones_do_not():
    node = joined_router(2)
    liar, honest = identity(1), identity(2)
    for seqno in range(1, 7):
        now = 10.0 * seqno
        for peer, author in ((liar, 5000), (honest, 6000)):
            message = signed(identity(author), b"news", seqno)
            message_id = message_id_of(message)
            have = Rpc(ihave=(IHave(TOPIC, (message_id,)),))
            assert sends(node.handle(received(peer.peer_id, have), now)) != []
        bring(node, honest, identity(6000), seqno, now + 1)
        node.handle(Heartbeat(), now + 3)
        node.handle(Heartbeat(), now + 4)
    assert node.score(liar.peer_id) < -10
    assert node.score(honest.peer_id) > 0


def message_id_of(encoded):
    return decode_message(encoded).message_id


def test_a_message_kept_by_somebody_else_keeps_the_promise():
    node = joined_router(2)
    peer, other = identity(1), identity(2)
    for seqno in range(1, 9):
        have = Rpc(ihave=(IHave(TOPIC, (message_id_of(signed(AUTHOR, b"news", seqno)),)),))
        node.handle(received(peer.peer_id, have), seqno * 10)
        bring(node, other, AUTHOR, seqno, seqno * 10 + 1)
        node.handle(Heartbeat(), seqno * 10 + 5)
    assert node.score(peer.peer_id) >= 0


def test_the_same_history_gives_the_same_scores_and_meshes():
    assert history(router()) == history(router())


def history(node):
    node.handle(Subscribe(TOPIC), 0)
    enter(node, HONEST, 1)
    sent = []
    for now in range(2, 200):
        bring(node, HONEST[now % 7], HONEST[now % 7], now, now)
        sent += node.handle(Heartbeat(), now)
    return sent, node.mesh_peers(TOPIC), [node.score(each.peer_id) for each in HONEST]
