import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.connections import gater as module
from node.network.connections.gater import (
    BAN_HALF_LIFE_SECONDS,
    BAN_SECONDS,
    BAN_SECONDS_MAX,
    FAULT_HALF_LIFE_SECONDS,
    Bans,
)
from protocol.core.faults import Blame, Fault, FaultCode
from protocol.core.types import PeerId

PEER = PeerId("peer")
BAD = Fault(FaultCode.BAD_SIGNATURE)
ENOUGH = 3
"""Faults within seconds that ban a peer."""


def blamed(bans, times, fault=BAD, peer=PEER):
    return [bans.blame(peer, fault, now) for now in times]


def test_the_third_fault_of_a_few_bans_for_a_while():
    bans = Bans()
    assert blamed(bans, range(ENOUGH)) == [0, 0, BAN_SECONDS]
    assert PEER in bans.held(ENOUGH - 1 + BAN_SECONDS - 0.1)
    assert PeerId("other") not in bans.held(ENOUGH)
    assert len(bans.held(ENOUGH)) == 1
    over = ENOUGH - 1 + BAN_SECONDS
    assert PEER not in bans.held(over)
    assert len(bans.held(over)) == 0


def test_it_begins_with_no_faults_when_it_comes_back_and_has_none_added_while_it_is_away():
    bans = Bans()
    blamed(bans, range(ENOUGH))
    assert blamed(bans, [10] * 5) == [0] * 5
    over = ENOUGH + BAN_SECONDS
    assert blamed(bans, [over] * ENOUGH)[:2] == [0, 0]


def test_each_time_is_twice_as_long_as_the_one_before_up_to_a_bound():
    bans, now, times = Bans(), 0.0, []
    for _ in range(9):
        times.append(blamed(bans, [now] * ENOUGH)[-1])
        now += times[-1]  # it continues as soon as it is accepted
    assert times[:3] == pytest.approx([BAN_SECONDS, 2 * BAN_SECONDS, 4 * BAN_SECONDS])
    assert times[-1] == BAN_SECONDS_MAX
    assert times == sorted(times)


def test_a_ban_of_long_ago_hardly_counts():
    bans = Bans()
    blamed(bans, [0.0] * ENOUGH)
    later = BAN_SECONDS + 10 * BAN_HALF_LIFE_SECONDS
    assert blamed(bans, [later] * ENOUGH)[-1] == pytest.approx(BAN_SECONDS, rel=1e-3)


def test_a_fault_fades_and_is_not_dropped_at_once():
    bans = Bans()
    assert not any(blamed(bans, [number * FAULT_HALF_LIFE_SECONDS for number in range(50)]))
    often = blamed(Bans(), [number * FAULT_HALF_LIFE_SECONDS / 2 for number in range(50)])
    assert any(often), "two faults in each half-life are too many in the end"
    assert not any(often[:3])


@pytest.mark.parametrize("code", [code for code in FaultCode if code.blame is not Blame.SENDER])
def test_peer_is_not_banned_for_faults_of_others(code):
    assert not any(blamed(Bans(), range(20), Fault(code)))


def test_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "PEERS_MAX", 3)
    bans = Bans()
    for number in range(10):
        blamed(bans, [0], peer=PeerId(f"once {number}"))
        blamed(bans, [0] * ENOUGH, peer=PeerId(f"banned {number}"))
    assert max(map(len, bans.tables)) <= 3
    assert [number for number in range(10) if PeerId(f"banned {number}") in bans.held(1)] == [
        7,
        8,
        9,
    ]


def test_faults_are_counted_until_they_no_longer_count():
    bans = Bans()
    blamed(bans, [0, 10])
    assert bans.faults(10) == {PEER: 2}
    assert bans.faults(FAULT_HALF_LIFE_SECONDS) == {PEER: 1}
    assert bans.faults(2.1 * FAULT_HALF_LIFE_SECONDS) == {}


@given(st.lists(st.floats(0, 3 * FAULT_HALF_LIFE_SECONDS), max_size=60))
def test_bans_last_as_long_as_stated_and_need_three_faults(pauses):
    bans, now, since = Bans(), 0.0, 0
    for pause in pauses:
        now += pause
        if PEER in bans.held(now):
            continue
        since += 1
        seconds = bans.blame(PEER, BAD, now)
        assert bool(seconds) == (PEER in bans.held(now))
        if seconds:
            assert BAN_SECONDS <= seconds <= BAN_SECONDS_MAX
            assert since >= ENOUGH
            since = 0
