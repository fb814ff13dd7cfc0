"""Stream slots under overload, against a plain statement of the rules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node.network.resources import stream_slots as module
from node.network.resources.stream_slots import SERVED_TIMES, WASTED_SECONDS, StreamSlots
from protocol.core.containers import table_sizes
from protocol.core.types import PeerId
from roles.ports.transport import Trust

UNDISTURBED_SECONDS = 1.0
TRUSTED = ("p0", "p1", "p2", "p3", "p4", "p5")
TRUST = Trust(lambda peer: peer in TRUSTED, lambda peer: peer[0], lambda peer: peer[0] != "x")
"""Untrusted peers are named by block and number; those of one block are not admitted."""


def places(total=4, per_peer=2, untrusted=None, turns=None):
    return StreamSlots(
        per_peer, total, UNDISTURBED_SECONDS, TRUST, untrusted=untrusted, turns=turns
    )


def take(table, *peers, now=0.0):
    """Open streams in order; return the peers that each evicts, or ``refused`` or ``free``.

    A peer that loses several streams is listed as often.
    """
    outcomes = []
    for peer in peers:
        place, lost = table.take(PeerId(peer), now)
        names = " ".join(one.peer for one in lost)
        outcomes.append("refused" if place is None else names or "free")
    return outcomes


def test_a_trusted_peer_takes_the_place_that_an_untrusted_peer_has_had_longest():
    table = places()
    assert take(table, "a0", "b0", "c0", "p0") == ["free"] * 4
    assert take(table, "p0", "p1", "p1", "p2") == ["a0", "b0", "c0", "refused"]


def test_among_untrusted_peers_a_block_with_many_keys_gives_places_to_others():
    table = places()
    assert take(table, "a0", "a1", "a2", "b0") == ["free"] * 4
    assert take(table, "b1") == ["a0"]
    assert take(table, "a3", "c0") == ["refused", "a1"], "two each is as even as it gets, then one"


def test_untrusted_peers_of_their_own_blocks_wait_for_who_is_slow():
    table = places(total=2)
    assert take(table, "a0", now=0.0) == ["free"]
    assert take(table, "b0", now=0.5) == ["free"]
    assert take(table, "c0", now=0.9) == ["refused"]
    assert take(table, "c0", now=1.0) == ["a0"]
    assert take(table, "a0", now=1.4) == ["refused"]
    assert take(table, "a0", now=1.5) == ["b0"]


def served(table, *peers, now=0.0):
    """Open streams that wait for us from the first moment; return their slots."""
    taken = [table.take(PeerId(peer), now)[0] for peer in peers]
    for place in taken:
        place.note_slow(now, slow=False)
    return taken


def test_who_waits_for_us_keeps_its_place_ten_times_as_long():
    table = places(total=2)
    served(table, "a0", now=0.0)
    served(table, "b0", now=0.5)
    until = SERVED_TIMES * UNDISTURBED_SECONDS
    assert take(table, "c0", now=until - 0.1) == ["refused"]
    assert take(table, "c0", now=until) == ["a0"]


def test_who_is_slow_loses_its_place_before_who_has_had_one_for_longer():
    table = places(total=3)
    _, slow, slower = served(table, "a0", "b0", "c0")
    slow.slow_since, slower.slow_since = 5.0, 4.0
    assert take(table, "d0", now=4.9) == ["refused"]
    assert take(table, "d0", now=5.9) == ["c0"]


def test_reputation_and_other_blocks_take_the_place_of_who_is_slow_or_came_last():
    table = places(total=3)
    _, slow, _ = served(table, "a0", "a1", "a2")
    slow.slow_since = 1.0
    assert take(table, "p0", now=2.0) == ["a1"]
    assert take(table, "b0", now=2.0) == ["a2"], "has lost least"


def test_untrusted_peers_have_a_part_of_all_places():
    table = places(total=4, untrusted=2)
    assert take(table, "a0", "a1", "a2", "p0", "p1") == ["free", "free", "refused", "free", "free"]
    assert take(table, "b0") == ["a0"]
    assert take(table, "p2") == ["a1"]
    assert take(table, "c0", now=0.5) == ["refused"]
    assert take(table, "c0", now=1.0) == ["b0"]


@pytest.mark.parametrize("peer", ["a0", "p0"])
def test_a_peer_has_so_many_and_takes_none_from_itself(peer):
    table = places(total=10)
    assert take(table, peer, peer, peer, now=100.0) == ["free", "free", "refused"]


def test_a_place_is_given_back_once():
    table = places(total=1)
    first, _ = table.take(PeerId("a0"), 0.0)
    second, lost = table.take(PeerId("p0"), 0.0)
    assert lost == [first]
    table.leave(first, 0.0)
    table.leave(first, 0.0)
    assert len(table) == 1
    table.leave(second, 0.0)
    assert len(table) == 0


def test_who_has_a_turn_takes_more_places_and_others_wait():
    table = places(total=8, per_peer=3, turns=2)
    served(table, "a0", "b0")
    assert take(table, "c0", "a0", "p0", "p1", now=0.5) == ["refused", "free", "free", "free"]


def test_a_turn_lasts_a_moment_longer_than_its_streams():
    table = places(total=8, turns=1)
    (place,) = served(table, "a0")
    table.leave(place, 3.0)
    assert take(table, "b0", now=3.9) == ["refused"]
    assert take(table, "a0", now=3.9) == ["free"], "its next chunk"
    table = places(total=8, turns=1)
    (place,) = served(table, "a0")
    table.leave(place, 3.0)
    assert take(table, "b0", "a0", now=4.0) == ["free", "refused"]


def test_a_turn_ends_with_its_streams_when_all_are_slow_or_it_has_lasted():
    table = places(total=8, turns=1)
    one, other = served(table, "a0", "a0")
    one.slow_since = 2.0
    assert take(table, "b0", now=5.0) == ["refused"], "the other one waits for us"
    other.slow_since = 4.5
    assert take(table, "b0", now=5.5) == ["a0 a0"]
    table = places(total=8, turns=1)
    served(table, "a0")
    served(table, "a0", now=5.0)
    until = SERVED_TIMES * UNDISTURBED_SECONDS
    assert take(table, "b0", now=until - 0.1) == ["refused"]
    assert take(table, "b0", "a0", now=until) == ["a0 a0", "refused"]


def test_a_turn_that_is_over_is_not_gone_on_with():
    table = places(total=8, turns=1)
    (place,) = served(table, "a0")
    table.leave(place, 0.1)
    until = SERVED_TIMES * UNDISTURBED_SECONDS
    served(table, "a0", now=until)
    assert take(table, "b0", now=until + 0.1) == ["refused"]


def test_turns_are_shared_by_blocks_of_addresses_however_many_streams_each_has():
    table = places(total=16, per_peer=4, turns=3)
    served(table, "a0", "a0", "a0", "b0", "c0")
    assert take(table, "d0") == ["refused"]
    table = places(total=16, per_peer=4, turns=3)
    served(table, "a0", "a1", "a2", "a2")
    assert take(table, "b0") == ["a2 a2"], "the youngest has lost least"


def test_a_turn_without_a_place_for_it_begins_not():
    table = places(total=2, turns=1)
    taken = [table.take(PeerId(peer), 0.0)[0] for peer in ("p0", "p1")]
    assert take(table, "a0") == ["refused"]
    table.leave(taken[0], 0.1)
    assert take(table, "b0", now=0.1) == ["free"]


def wasted(table, *peers):
    """Give peers a round in which they wait for no byte of ours, until a second later."""
    for place in [table.take(PeerId(peer), 0.0)[0] for peer in peers]:
        table.leave(place, 0.0)


def test_who_wasted_a_turn_shares_half_of_them_with_others_that_did():
    """However often they ask: a peer that has wasted no round finds the others free."""
    table = places(total=8, turns=4)
    wasted(table, "a0", "b0", "c0", "d0")
    assert take(table, "e0", now=1.0) == ["free"]
    again = take(table, "a0", "b0", "c0", "d0", now=1.5)
    assert again == ["free", "free", "refused", "refused"]
    assert take(table, "f0", now=1.5) == ["free"]
    assert take(table, "c0", now=2.2) == ["refused"], "e0 has been slow, but wasted none before"
    assert take(table, "c0", now=2.5) == ["a0"]
    assert take(table, "g0", now=2.5) == ["e0"]


def test_a_turn_is_wasted_unless_something_was_served_in_it():
    table = places(total=8, per_peer=3, turns=2)
    served_once, slow = served(table, "a0", "a0")
    slow.slow_since = 0.0
    for place in (served_once, slow):
        table.leave(place, 0.0)
    (ended,) = served(table, "b0")
    ended.slow_since = 0.0
    assert take(table, "c0", "d0", now=1.0) == ["free", "b0"], "which was slow at the end"
    assert table_sizes(table.tables) == {"unused_rounds": 1}
    assert take(table, "a0", now=2.0) == ["c0"], "it wasted none"
    assert take(table, "b0", now=2.0) == ["d0"]


def test_streams_that_are_opened_again_and_again_hold_no_turn():
    table = places(total=8, turns=1)
    places_of_one = [table.take(PeerId("a0"), 0.1 * number)[0] for number in range(2)]
    for number in range(2, 10):
        table.leave(places_of_one[-2], 0.1 * number)
        places_of_one.append(table.take(PeerId("a0"), 0.1 * number)[0])
    assert take(table, "b0", now=0.9) == ["refused"]
    assert take(table, "b0", now=1.0) == ["a0 a0"]


def test_a_turn_counts_as_wasted_for_a_minute():
    table = places(total=8, turns=2)
    wasted(table, "a0", "b0")
    served(table, "a0", now=1.0)
    later = 1.0 + WASTED_SECONDS
    assert take(table, "b0", now=1.0) == ["refused"]
    assert take(table, "b0", now=later) == ["free"]


def test_who_has_not_been_admitted_shares_the_half_of_those_that_wasted_a_turn():
    table = places(total=8, turns=4)
    assert take(table, "x0", "x1", "x2", "a0", "b0") == ["free"] * 2 + ["refused"] + ["free"] * 2
    table = places(total=8, turns=1)
    assert take(table, "x0") == ["free"], "one at least"


def test_of_turns_that_were_wasted_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "WASTED_MAX", 2)
    table = places(total=8, turns=3)
    wasted(table, "a0", "b0", "c0")
    assert take(table, "a0", "b0", "c0", now=1.0) == ["free", "free", "refused"]
    assert table_sizes(table.tables) == {"unused_rounds": 2}
    assert places().tables == ()


UNTRUSTED = st.builds(
    lambda block, number: f"{block}{number}", st.sampled_from("abcx"), st.integers(0, 3)
)


class PlacesMachine(RuleBasedStateMachine):
    @initialize(
        total=st.integers(1, 6),
        per_peer=st.integers(1, 3),
        untrusted=st.integers(1, 6),
        turns=st.none() | st.integers(1, 3),
    )
    def begin(self, total, per_peer, untrusted, turns):
        self.table = places(total, per_peer, untrusted, turns)
        self.total, self.per_peer, self.untrusted = total, per_peer, untrusted
        self.turns = math.inf if turns is None else turns
        self.taken = []
        self.left_at = {}
        self.wasted = set()  # or not: peers that ever gave back a slot
        self.now = 0.0

    def in_turn(self):
        """Return untrusted peers with a stream, and those that have one or had one a moment ago.

        The first have a round, the second may have one.
        """
        over = self.now - UNDISTURBED_SECONDS
        have = {one.peer for one in self.taken if not one.trusted}
        return have, have | {peer for peer, at in self.left_at.items() if at > over}

    @rule(peer=UNTRUSTED | st.sampled_from(TRUSTED), later=st.sampled_from([0.0, 0.1, 0.6, 3.0]))
    def come(self, peer, later):
        self.now += later
        before = list(self.taken)
        have, may = self.in_turn()
        alike = [one for one in may if one[0] == "x" or one in self.wasted]
        doubtful = peer[0] == "x" or peer in self.wasted
        waits = len(may) >= self.turns or (doubtful and len(alike) >= max(1, self.turns // 2))
        waits &= peer not in TRUSTED and peer not in have
        place, lost = self.table.take(PeerId(peer), self.now)
        own = [one for one in before if one.peer == peer]
        untrusted = [one for one in before if not one.trusted]
        full = len(before) == self.total or (
            len(untrusted) >= self.untrusted and peer not in TRUSTED
        )
        for one in lost:
            assert one in untrusted, "a trusted peer is never evicted"
            self.taken.remove(one)
        assert full or waits or not lost, "while there is room nobody is pushed aside"
        if place is not None:
            assert len(own) < self.per_peer
            self.taken.append(place)
        elif len(own) < self.per_peer:
            assert full or waits
            assert peer not in TRUSTED or not untrusted, "a trusted peer finds a slot"
            if not waits:
                ours = sum(one.block == peer[0] for one in untrusted)
                for block in "abcx":
                    theirs = sum(one.block == block for one in untrusted)
                    assert peer in TRUSTED or theirs <= ours + 1, "no block keeps another out"
        self.left_at |= {one.peer: self.now for one in lost}
        self.wasted |= {one.peer for one in lost}

    @rule(data=st.data(), slow=st.booleans())
    def be_slow(self, data, slow):
        if self.taken:
            place = data.draw(st.sampled_from(self.taken))
            place.note_slow(self.now, slow=slow)

    @rule(data=st.data())
    def go(self, data):
        if self.taken:
            place = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
            self.table.leave(place, self.now)
            if not place.trusted:
                self.left_at[place.peer] = self.now
                self.wasted.add(place.peer)

    @invariant()
    def as_many_as_there_are(self):
        if hasattr(self, "table"):
            assert len(self.table) == len(self.taken) <= self.total
            untrusted = sum(not one.trusted for one in self.taken)
            assert untrusted <= self.untrusted
            with_some = {one.peer for one in self.taken if not one.trusted}
            assert len(with_some) <= self.turns
            turns = self.table._turns
            if turns is not None:
                held = turns._held
                assert with_some <= held.keys()
                assert len(held) <= self.turns
                assert sum(turn.doubtful for turn in held.values()) <= max(1, self.turns // 2)


test_places_are_shared_by_the_rules = PlacesMachine.TestCase


@given(st.lists(UNTRUSTED, max_size=40), st.integers(1, 8))
def test_a_crowd_of_untrusted_peers_never_keeps_out_a_trusted_key(crowd, total):
    table = places(total)
    take(table, *crowd)
    assert take(table, "p0") != ["refused"]
