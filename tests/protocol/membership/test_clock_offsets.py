"""Clock offsets: the own one by majority, a single peer's if no other peer agrees with it."""

import pytest

from protocol.membership import clock_offsets
from protocol.membership.clock_offsets import ClockEstimate, ClockOffsets
from tests.worlds.messages import identity

NOW, MONOTONIC = 1_700_000_000.0, 50.0
PEERS = [identity(f"peer {number}").peer_id for number in range(7)]
SLACK, KEPT = 10.0, 100.0


def estimate(*offsets, late=(), networks=None, now=NOW):
    """Return the estimate from peers with these clock offsets."""
    table = ClockOffsets(SLACK, KEPT)
    for peer, offset in zip(PEERS, offsets, strict=False):
        table.note(peer, NOW + offset, MONOTONIC)
    for peer, offset in zip(PEERS, late, strict=False):
        table.note(peer, NOW + offset, MONOTONIC + 1)
    groups = networks or {peer: [peer] for peer in PEERS[: len(offsets)]}
    return table.estimate(groups, now, MONOTONIC)


def test_three_peers_that_agree_tell():
    assert estimate(596.0, 595.0, 598.0) == ClockEstimate(596.0, 3)
    assert estimate(-596.0, -595.0, -598.0) == ClockEstimate(-596.0, 3)
    assert estimate(0.0, -0.5, -1.0, 0.2) == ClockEstimate(-0.5, 4)


@pytest.mark.parametrize(
    "offsets",
    [
        (),
        (596.0,),
        (596.0, 596.0),
        (0.0, 300.0, 596.0),
        (0.0, 0.0, 596.0, 597.0),
        (-900.0, -600.0, 0.0, 0.0, 0.0, 600.0, 900.0),
    ],
)
def test_without_three_and_a_majority_nothing_is_told(offsets):
    assert estimate(*offsets) is None


def test_a_liar_does_not_count_against_honest_peers():
    assert estimate(0.0, 0.0, 0.0, 596.0) == ClockEstimate(0.0, 3)
    assert estimate(0.0, 0.0, 0.0, 596.0, 596.0) == ClockEstimate(0.0, 3)
    assert estimate(596.0, 596.0, 596.0, 0.0) == ClockEstimate(596.0, 3)


def test_many_keys_of_one_network_are_one_vote():
    networks = {"theirs": PEERS[:4], **{peer: [peer] for peer in PEERS[4:]}}
    assert estimate(*[596.0] * 4, 0.0, 0.0, 0.0, networks=networks) == ClockEstimate(0.0, 3)
    assert estimate(*[596.0] * 4, networks={"theirs": PEERS}) is None


def test_the_freshest_record_of_a_peer_counts():
    """A slower record says less; later seconds pass equally on both sides."""
    assert estimate(5.0, 5.0, 5.0, late=(-40.0, -40.0, -40.0)).ahead_seconds == 5.0
    assert estimate(5.0, 5.0, 5.0, late=(8.0, 8.0, 8.0)).ahead_seconds == 7.0


def test_a_clock_that_was_set_is_seen_without_another_record():
    assert estimate(596.0, 596.0, 596.0, now=NOW + 596).ahead_seconds == 0.0


def test_dates_count_for_a_while():
    table = ClockOffsets(SLACK, KEPT)
    peer = PEERS[0]
    table.note(peer, NOW + 9, MONOTONIC)
    table.note(peer, NOW + 99, MONOTONIC + 99)
    assert table.ahead_seconds(peer, NOW, MONOTONIC) == 9
    assert table.ahead_seconds(peer, NOW, MONOTONIC + KEPT) is None
    table.note(peer, NOW + 103, MONOTONIC + KEPT)
    assert table.ahead_seconds(peer, NOW + 100, MONOTONIC + KEPT) == 3
    assert table.ahead_seconds(PEERS[1], NOW, MONOTONIC) is None


def test_the_table_is_bounded(monkeypatch):
    monkeypatch.setattr(clock_offsets, "PEERS_MAX", 4)
    table = ClockOffsets(SLACK, KEPT)
    for peer in PEERS:
        table.note(peer, NOW, MONOTONIC)
    assert len(table) == 4
    assert table.ahead_seconds(PEERS[-1], NOW, MONOTONIC) == 0
