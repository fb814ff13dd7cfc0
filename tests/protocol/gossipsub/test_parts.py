"""Small parts of gossip: caches, send queue, frames, params, backoffs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.events import Priority
from protocol.gossipsub.mesh import GraftAnswer, Mesh
from protocol.gossipsub.message_cache import MessageCache, SeenCache
from protocol.gossipsub.params import Params, ScoreParams
from protocol.gossipsub.peer_score import Scores
from protocol.gossipsub.rpc import RPC_BYTES_MAX, Deframer, frame
from protocol.gossipsub.send_queue import SendQueue

PEER = PeerId("peer")


def test_seen_ids_live_for_their_time_and_a_repeat_does_not_prolong_it():
    seen = SeenCache(ttl_seconds=10, entries_max=5)
    seen.add(b"a", now=0)
    seen.add(b"b", now=5)
    seen.add(b"a", now=9)
    seen.expire(now=10)
    assert b"a" not in seen
    assert b"b" in seen


def test_seen_ids_are_bounded_and_the_oldest_leaves():
    seen = SeenCache(ttl_seconds=10, entries_max=3)
    for number in range(5):
        seen.add(bytes([number]), now=number)
    assert len(seen) == 3
    assert b"\x01" not in seen
    assert b"\x04" in seen


def test_a_message_is_advertised_then_only_served_then_gone():
    cache = MessageCache(history_windows=3, gossip_windows=2, bytes_max=100)
    cache.put(b"a", "t", b"message")
    cache.put(b"a", "t", b"message")
    assert cache.gossip_ids() == {"t": [b"a"]}
    cache.shift()
    assert cache.gossip_ids() == {"t": [b"a"]}
    cache.shift()
    assert cache.gossip_ids() == {}
    assert cache.serve(b"a", PEER, serves_max=2) == b"message"
    cache.shift()
    assert cache.serve(b"a", PEER, serves_max=2) is None
    assert cache.size_bytes == 0


def test_a_message_is_served_to_a_peer_a_few_times_only():
    cache = MessageCache(history_windows=3, gossip_windows=2, bytes_max=100)
    cache.put(b"a", "t", b"message")
    answers = [cache.serve(b"a", PEER, serves_max=2) for _ in range(3)]
    assert answers == [b"message", b"message", None]
    assert cache.serve(b"a", PeerId("other"), serves_max=2) == b"message"


def test_the_message_cache_is_bounded_in_bytes():
    cache = MessageCache(history_windows=3, gossip_windows=2, bytes_max=10)
    cache.put(b"a", "t", b"12345")
    cache.put(b"b", "t", b"12345")
    cache.put(b"c", "t", b"123")
    cache.put(b"d", "t", b"longer than all of it")
    assert cache.gossip_ids() == {"t": [b"b", b"c"]}
    assert cache.size_bytes == 8
    for _ in range(3):
        cache.shift()
    assert cache.size_bytes == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(Priority), st.integers(0, 60)),
            st.integers(1, 80),
        ),
        max_size=60,
    )
)
def test_outbox_loses_nothing_it_does_not_count_and_keeps_its_limits(steps):
    outbox = SendQueue(frames_max=8, bytes_max=100)
    pushed = dropped = taken = 0
    for step in steps:
        if isinstance(step, tuple):
            priority, size = step
            pushed += 1
            dropped += outbox.push(bytes([priority]) * size, priority)
        else:
            frames = outbox.take(step)
            taken += len(frames)
            assert len(frames) <= 1 or sum(map(len, frames)) <= step
            ranks = [each[0] for each in frames if each]
            assert ranks == sorted(ranks)
        assert len(outbox) <= 8
        assert outbox.size_bytes <= 100
        assert len(outbox) == pushed - dropped - taken


def test_outbox_drops_ihave_first_and_the_oldest_of_a_class():
    outbox = SendQueue(frames_max=3, bytes_max=1000)
    for data, priority in [
        (b"i", Priority.IHAVE),
        (b"1", Priority.RELAY),
        (b"2", Priority.RELAY),
        (b"3", Priority.RELAY),
        (b"c", Priority.CONTROL),
    ]:
        outbox.push(data, priority)
    assert outbox.take(1000) == [b"c", b"2", b"3"]
    assert outbox.take(1000) == []


def test_outbox_is_crowded_from_half_of_either_limit_on():
    by_count, by_size = (
        SendQueue(frames_max=4, bytes_max=100),
        SendQueue(frames_max=4, bytes_max=100),
    )
    by_count.push(b"", Priority.RELAY)
    by_size.push(bytes(49), Priority.RELAY)
    assert not by_count.crowded
    assert not by_size.crowded
    by_count.push(b"", Priority.RELAY)
    by_size.push(bytes(1), Priority.CONTROL)
    assert by_count.crowded
    assert by_size.crowded


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_survive_any_cutting(rpcs, data):
    stream = b"".join(map(frame, rpcs))
    deframer, received = Deframer(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        frames = deframer.feed(stream[:cut])
        assert isinstance(frames, list)
        received += frames
        stream = stream[cut:]
    assert received == rpcs
    assert not deframer.unfinished


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_random_streams_never_raise_and_hold_one_frame(chunks):
    deframer = Deframer()
    for chunk in chunks:
        if isinstance(deframer.feed(chunk), Fault):
            return


@pytest.mark.parametrize(
    "head", [b"\x81\x80\x40", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80"]
)
def test_a_length_over_the_limit_is_refused_at_once(head):
    assert Deframer().feed(head) == Fault(FaultCode.FRAME_OVERSIZE)


def test_the_largest_frame_passes():
    deframer = Deframer()
    assert deframer.feed(frame(bytes(RPC_BYTES_MAX))) == [bytes(RPC_BYTES_MAX)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mesh_low": 7},
        {"mesh_keep_by_score": 7},
        {"gossip_windows": 6},
        {"gossip_score_min": 1.0},
        {"message_bytes_max": RPC_BYTES_MAX},
        {"seen_seconds": 5.0},
    ],
)
def test_params_check_their_relations(wrong):
    with pytest.raises(ValueError, match=r"need|must"):
        Params(**wrong)


def mesh_of(params=None, seed=b"", opinions=None, chosen=(), trusted=()):
    scores = Scores(ScoreParams(), lambda: opinions or {})
    for peer in opinions or {}:
        scores.connect(peer, now=0)
    return Mesh(
        params or Params(), Rng(seed), scores, lambda: frozenset(chosen), lambda: frozenset(trusted)
    )


def test_back_offs_are_bounded_and_the_oldest_leaves():
    mesh = mesh_of(Params(backoffs_max=3))
    mesh.join("t", [], now=0)
    for number in range(5):
        mesh.pruned_by("t", PeerId(str(number)), 10, now=0)
    assert [peer for _, peer in mesh.backoffs] == ["2", "3", "4"]


def test_a_shorter_back_off_does_not_replace_a_longer_one():
    mesh = mesh_of()
    mesh.join("t", [], now=0)
    mesh.pruned_by("t", PEER, 100, now=0)
    mesh.pruned_by("t", PEER, 5, now=1)
    assert mesh.backoffs["t", PEER] == 100


def test_a_back_off_outlasts_a_member_s_leaving():
    mesh = mesh_of()
    mesh.join("t", [PEER], now=0)
    mesh.pruned_by("t", PEER, 60, now=0)
    mesh.drop(PEER, ["t"])
    assert mesh.maintain_all(lambda _topic: [PEER], now=60) == ({}, {})
    assert mesh.grafted_by("t", PEER, now=59) is GraftAnswer.BREACH


def test_a_thinned_mesh_keeps_the_best_and_others_by_chance():
    """By score alone, the peers with the best scores would soon fill every mesh."""
    params = Params()
    peers = [PeerId(str(number)) for number in range(params.mesh_high)]
    scores = {peer: float(number) for number, peer in enumerate(peers)}
    kept: list[PeerId] = []
    for seed in range(100):
        mesh = mesh_of(params, bytes([seed]), scores)
        mesh.join("t", [], now=0)
        for peer in peers:
            assert mesh.grafted_by("t", peer, now=0) is GraftAnswer.ACCEPT
        mesh.maintain_all(lambda _topic: peers, now=1)
        assert len(mesh.members("t")) == params.mesh_size
        kept += mesh.members("t")
    best, others = peers[-params.mesh_keep_by_score :], peers[: -params.mesh_keep_by_score]
    assert all(kept.count(peer) == 100 for peer in best)
    assert all(10 <= kept.count(peer) <= 45 for peer in others), "two of eight each time"


@given(st.binary(min_size=1, max_size=2), st.integers(0, 4), st.booleans())
def test_two_trusted_are_in_a_mesh_however_many_untrusted_peers_are_there(seed, count, best):
    """Untrusted peers graft first, and with ``best`` they have the best scores and are outbound."""
    params = Params()
    untrusted = [PeerId(f"untrusted {number}") for number in range(40)]
    trusted = [PeerId(f"trusted {number}") for number in range(count)]
    mesh = mesh_of(
        params, seed, dict.fromkeys(untrusted, 9.0 * best), untrusted if best else (), trusted
    )
    mesh.join("t", untrusted, now=0)
    assert not set(mesh.members("t")) & set(trusted)
    for now in range(1, 4):
        for peer in untrusted[10 * now :][:10]:
            mesh.grafted_by("t", peer, now=now)
        mesh.maintain_all(lambda _topic: [*untrusted, *trusted], now=now)
        there = set(mesh.members("t")) & set(trusted)
        assert len(there) == min(count, params.mesh_trusted_min)


def asked_at(params, seconds, leave_it_out):
    """Return the GRAFT times of a mesh that wants two of nine trusted peers.

    They prune it in each second for which ``leave_it_out`` is true. Each time it must graft two.
    """
    trusted = [PeerId(f"trusted {number}") for number in range(9)]
    peers = [PeerId(str(number)) for number in range(20)] + trusted
    mesh = mesh_of(params, trusted=trusted)
    mesh.join("t", peers[: params.mesh_size], now=0)
    asked = []
    for now in range(1, seconds):
        grafts, _ = mesh.maintain_all(lambda _topic: peers, now=now)
        some = grafts.keys() & set(trusted)
        if some:
            assert len(some) == params.mesh_trusted_min
            asked.append(now)
        for peer in set(mesh.members("t")) & set(trusted) if leave_it_out(now) else ():
            mesh.pruned_by("t", peer, 0, now=now)
    return asked


def test_two_trusted_peers_are_grafted_with_growing_backoff():
    """A hundred nodes want two of the same few: without backoff this would never end."""
    params = Params(prune_backoff_seconds=60, seek_seconds_max=240)
    asked = asked_at(params, 1000, lambda _now: True)
    assert asked == [1, 61, 181, 421, 661, 901]


def test_losing_old_trusted_peers_resets_the_backoff():
    params = Params(prune_backoff_seconds=60, seek_seconds_max=240)
    asked = asked_at(params, 1100, lambda now: now < 200 or now in (1000, 1001))
    assert asked == [1, 61, 181, 421, 1001, 1061]


def test_trusted_one_comes_into_a_full_mesh_that_has_too_few_of_them():
    params = Params()
    trusted = [PeerId(f"trusted {number}") for number in range(3)]
    mesh = mesh_of(params, trusted=trusted)
    mesh.join("t", [], now=0)
    for number in range(params.mesh_high):
        assert mesh.grafted_by("t", PeerId(str(number)), now=0) is GraftAnswer.ACCEPT
    assert mesh.grafted_by("t", PeerId("late"), now=0) is GraftAnswer.REFUSE
    answers = [mesh.grafted_by("t", peer, now=0) for peer in trusted]
    assert answers == [GraftAnswer.ACCEPT, GraftAnswer.ACCEPT, GraftAnswer.REFUSE]
