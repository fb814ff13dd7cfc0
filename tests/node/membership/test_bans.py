import pytest

from node.membership import bans as module
from node.membership.bans import BAN_SECONDS, FAULTS_MAX, WINDOW_SECONDS, Bans
from protocol.faults import Blame, Fault, FaultCode
from protocol.types import PeerId

PEER = PeerId("peer")
BAD = Fault(FaultCode.BAD_SIGNATURE)


def blamed(bans, times, fault=BAD, peer=PEER):
    return [bans.blame(peer, fault, now) for now in times]


def test_the_last_fault_of_a_few_bans_for_a_while():
    bans = Bans()
    assert blamed(bans, range(FAULTS_MAX)) == [False] * (FAULTS_MAX - 1) + [True]
    assert PEER in bans.held(FAULTS_MAX - 1 + BAN_SECONDS - 0.1)
    assert PeerId("other") not in bans.held(FAULTS_MAX)
    assert len(bans.held(FAULTS_MAX)) == 1
    over = FAULTS_MAX - 1 + BAN_SECONDS
    assert PEER not in bans.held(over)
    assert len(bans.held(over)) == 0


def test_it_begins_with_none_when_it_comes_back_and_has_none_added_while_it_is_away():
    bans = Bans()
    blamed(bans, range(FAULTS_MAX))
    assert blamed(bans, [10] * 5) == [False] * 5
    over = FAULTS_MAX + BAN_SECONDS
    assert blamed(bans, [over] * FAULTS_MAX) == [False] * (FAULTS_MAX - 1) + [True]


def test_faults_count_within_the_window():
    bans = Bans()
    times = [number * (WINDOW_SECONDS / (FAULTS_MAX - 1) + 1) for number in range(20)]
    assert not any(blamed(bans, times))


@pytest.mark.parametrize("code", [code for code in FaultCode if code.blame is not Blame.SENDER])
def test_who_passes_on_what_others_are_to_blame_for_is_not_banned(code):
    assert not any(blamed(Bans(), range(20), Fault(code)))


def test_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "PEERS_MAX", 3)
    bans = Bans()
    for number in range(10):
        blamed(bans, [0], peer=PeerId(f"once {number}"))
        blamed(bans, [0] * FAULTS_MAX, peer=PeerId(f"banned {number}"))
    assert len(bans._faults) <= 3
    assert [number for number in range(10) if PeerId(f"banned {number}") in bans.held(1)] == [
        7,
        8,
        9,
    ]


def test_faults_are_counted_until_they_no_longer_count():
    bans = Bans()
    blamed(bans, [0, 10])
    assert bans.faults(WINDOW_SECONDS) == {PEER: 2}
    assert bans.faults(WINDOW_SECONDS + 1) == {PEER: 1}
    assert bans.faults(WINDOW_SECONDS + 11) == {}
