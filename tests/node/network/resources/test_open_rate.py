import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.resources import open_rate as module
from node.network.resources.open_rate import (
    EACH_PER_SECOND,
    HALF_LIFE_SECONDS,
    UNTRUSTED_PER_SECOND,
    OpenRateLimiter,
)
from protocol.core.types import PeerId

MANY = 100
"""Untrusted peers: each may open the guaranteed minimum."""


def made():
    return OpenRateLimiter(lambda peer: peer.startswith("trusted"))


def play(openings, rates, seconds, now=0.0):
    """Open streams at steady rates; return the number of faults of each peer, and the end time."""
    faults = Counter()
    due = sorted(
        (now + number / rate, peer)
        for peer, rate in rates.items()
        for number in range(int(rate * seconds))
    )
    for at, peer in due:
        faults[peer] += openings.opened(PeerId(peer), at)
    return faults, now + seconds


@pytest.mark.parametrize("floods", [1, 10])
def test_while_too_many_are_opened_those_are_at_fault_that_open_more_than_their_part(floods):
    openings = made()
    quiet = {f"quiet {number}": 0.5 * EACH_PER_SECOND for number in range(MANY)}
    loud = {f"loud {number}": 3 * UNTRUSTED_PER_SECOND / floods for number in range(floods)}
    faults, _ = play(openings, quiet | loud, 3 * HALF_LIFE_SECONDS)
    assert all(faults[peer] > 100 for peer in loud)
    assert not any(faults[peer] for peer in quiet)


def test_nobody_is_at_fault_while_there_is_time_for_all():
    one = {"one": 0.9 * UNTRUSTED_PER_SECOND}
    assert not any(play(made(), one, 5 * HALF_LIFE_SECONDS)[0].values())
    all_of_them = {f"p{number}": 0.9 * UNTRUSTED_PER_SECOND / MANY for number in range(MANY)}
    assert not any(play(made(), all_of_them, 5 * HALF_LIFE_SECONDS)[0].values())


def test_a_part_is_what_all_may_by_those_that_open_any():
    few = {f"p{number}": 1.2 * UNTRUSTED_PER_SECOND / 4 for number in range(4)}
    assert all(play(made(), few, 5 * HALF_LIFE_SECONDS)[0][peer] > 100 for peer in few)
    larger = {"p0": 0.9 * UNTRUSTED_PER_SECOND / 4} | {peer: few[peer] for peer in list(few)[1:]}
    faults, _ = play(made(), larger, 5 * HALF_LIFE_SECONDS)
    assert not faults["p0"]
    assert faults["p1"] > 100


def test_trusted_peers_neither_count_nor_are_at_fault():
    openings = made()
    faults, now = play(openings, {"trusted": 100 * UNTRUSTED_PER_SECOND}, 1.0)
    assert not faults["trusted"]
    assert len(openings) == 0
    two = {"one": 0.9 * UNTRUSTED_PER_SECOND}
    assert not play(openings, two, 5 * HALF_LIFE_SECONDS, now)[0]["one"]


def test_it_is_forgotten_by_half_in_each_half_life_and_then_wholly():
    openings = made()
    _, now = play(openings, {"one": 4 * UNTRUSTED_PER_SECOND}, HALF_LIFE_SECONDS)
    assert openings.opened(PeerId("one"), now)
    assert not openings.opened(PeerId("one"), now + 3 * HALF_LIFE_SECONDS)
    assert len(openings) == 1
    openings.opened(PeerId("other"), now + 20 * HALF_LIFE_SECONDS)
    assert len(openings) == 1, "one is forgotten"


def test_what_was_worth_its_opening_does_not_count():
    openings, faults = made(), 0
    for number in range(20 * int(UNTRUSTED_PER_SECOND)):
        now = number / (4 * UNTRUSTED_PER_SECOND)
        faults += openings.opened(PeerId("one"), now)
        openings.worth(PeerId("one"), now)
    assert faults == 0
    openings.worth(PeerId("nobody"), now)
    for _ in range(100 * MANY):
        openings.worth(PeerId("one"), now)  # no credit
    faults, _ = play(openings, {"one": 4 * UNTRUSTED_PER_SECOND}, HALF_LIFE_SECONDS, now)
    assert faults["one"] > 100


def test_of_many_that_come_one_after_another_the_first_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "OPENERS_MAX", 10)
    openings = made()
    for number in range(30):
        openings.opened(PeerId(f"p{number}"), 0.1)
    assert len(openings) == 10


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.integers(1, 300)), max_size=40)
)
def test_who_is_at_fault_is_what_a_sum_over_all_that_was_opened_says(bursts):
    openings, opened, now = made(), [], 0.0
    window = HALF_LIFE_SECONDS / math.log(2)
    for peer, pause_seconds, count in bursts:
        now += pause_seconds
        opened += [(peer, now)] * (count - 1)
        for _ in range(count - 1):
            openings.opened(PeerId(peer), now)
        opened.append((peer, now))
        sums = Counter()
        for each, at in opened:
            sums[each] += 0.5 ** ((now - at) / HALF_LIFE_SECONDS)
        each_may = max(EACH_PER_SECOND, UNTRUSTED_PER_SECOND / len(sums)) * window
        margins = (sums.total() - UNTRUSTED_PER_SECOND * window, sums[peer] - each_may)
        at_fault = openings.opened(PeerId(peer), now)
        if all(abs(margin) > 1 for margin in margins) and min(sums.values()) > 1:
            assert at_fault == all(margin > 0 for margin in margins)
