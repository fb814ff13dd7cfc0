"""Who is served when all places are taken, against a plain statement of the rules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node.streams.places import SERVED_TIMES, Places, Trust
from protocol.types import PeerId

UNDISTURBED_SECONDS = 1.0
PROVEN = ("p0", "p1", "p2", "p3", "p4", "p5")
TRUST = Trust(lambda peer: peer in PROVEN, lambda peer: peer[0])
"""A stranger is called by its block and a number."""


def places(total=4, per_peer=2, strangers=None):
    return Places(per_peer, total, UNDISTURBED_SECONDS, TRUST, strangers=strangers)


def take(table, *peers, now=0.0):
    """Let peers come one after another; return what each lost or ``refused`` or ``free``."""
    outcomes = []
    for peer in peers:
        place, lost = table.take(PeerId(peer), now)
        outcomes.append("refused" if place is None else lost.peer if lost else "free")
    return outcomes


def test_who_has_standing_takes_the_place_that_a_stranger_has_had_longest():
    table = places()
    assert take(table, "a0", "b0", "c0", "p0") == ["free"] * 4
    assert take(table, "p0", "p1", "p1", "p2") == ["a0", "b0", "c0", "refused"]


def test_among_strangers_a_block_with_many_keys_gives_places_to_others():
    table = places()
    assert take(table, "a0", "a1", "a2", "b0") == ["free"] * 4
    assert take(table, "b1") == ["a0"]
    assert take(table, "a3", "c0") == ["refused", "a1"], "two each is as even as it gets, then one"


def test_strangers_of_their_own_blocks_wait_for_who_is_slow():
    table = places(total=2)
    assert take(table, "a0", now=0.0) == ["free"]
    assert take(table, "b0", now=0.5) == ["free"]
    assert take(table, "c0", now=0.9) == ["refused"]
    assert take(table, "c0", now=1.0) == ["a0"]
    assert take(table, "a0", now=1.4) == ["refused"]
    assert take(table, "a0", now=1.5) == ["b0"]


def served(table, *peers, now=0.0):
    """Let peers come that wait for us from the first moment; return their places."""
    taken = [table.take(PeerId(peer), now)[0] for peer in peers]
    for place in taken:
        place.slow_since = math.inf
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


def test_standing_and_other_blocks_take_the_place_of_who_is_slow_or_came_last():
    table = places(total=3)
    _, slow, _ = served(table, "a0", "a1", "a2")
    slow.slow_since = 1.0
    assert take(table, "p0", now=2.0) == ["a1"]
    assert take(table, "b0", now=2.0) == ["a2"], "has lost least"


def test_strangers_have_a_part_of_all_places():
    table = places(total=4, strangers=2)
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
    assert lost is first
    table.leave(first)
    table.leave(first)
    assert len(table) == 1
    table.leave(second)
    assert len(table) == 0


STRANGERS = st.builds(
    lambda block, number: f"{block}{number}", st.sampled_from("abcd"), st.integers(0, 3)
)


class PlacesMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(1, 6), per_peer=st.integers(1, 3), strangers=st.integers(1, 6))
    def begin(self, total, per_peer, strangers):
        self.table = places(total, per_peer, strangers)
        self.total, self.per_peer, self.strangers = total, per_peer, strangers
        self.taken = []
        self.now = 0.0

    @rule(peer=STRANGERS | st.sampled_from(PROVEN), later=st.sampled_from([0.0, 0.1, 0.6, 3.0]))
    def come(self, peer, later):
        self.now += later
        before = list(self.taken)
        place, lost = self.table.take(PeerId(peer), self.now)
        own = [one for one in before if one.peer == peer]
        strangers = [one for one in before if not one.proven]
        if lost is not None:
            assert lost in strangers, "standing is never pushed aside"
            full = len(strangers) >= self.strangers and peer not in PROVEN
            assert full or len(before) == self.total, "while there is room nobody is"
            self.taken.remove(lost)
        if place is not None:
            assert len(own) < self.per_peer
            self.taken.append(place)
        elif len(own) < self.per_peer:
            full = len(strangers) >= self.strangers and peer not in PROVEN
            assert full or len(before) == self.total
            assert peer not in PROVEN or not strangers, "who has standing finds a place"
            ours = sum(one.block == peer[0] for one in strangers)
            for block in "abcd":
                theirs = sum(one.block == block for one in strangers)
                assert peer in PROVEN or theirs <= ours + 1, "no block keeps another out"

    @rule(data=st.data(), slow=st.booleans())
    def be_slow(self, data, slow):
        if self.taken:
            place = data.draw(st.sampled_from(self.taken))
            place.slow_since = self.now if slow else math.inf

    @rule(data=st.data())
    def go(self, data):
        if self.taken:
            self.table.leave(self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1))))

    @invariant()
    def as_many_as_there_are(self):
        if hasattr(self, "table"):
            assert len(self.table) == len(self.taken) <= self.total
            strangers = sum(not one.proven for one in self.taken)
            assert strangers == self.table._strangers <= self.strangers
            assert len(self.table._peers) == len({one.peer for one in self.taken})


test_places_are_shared_by_the_rules = PlacesMachine.TestCase


@given(st.lists(STRANGERS, max_size=40), st.integers(1, 8))
def test_a_crowd_of_strangers_never_keeps_out_a_key_with_standing(crowd, total):
    table = places(total)
    take(table, *crowd)
    assert take(table, "p0") != ["refused"]
