from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.era import drawn_seats, genesis_sixths
from protocol.core.crypto import digest
from tests.protocol.consensus.councils import PEERS

GENESIS, WORKERS = PEERS[:4], PEERS[4:10]
LATE = 9
"""An era in which the genesis has a third."""

CHI_SQUARE_5 = 20.5
CHI_SQUARE_3 = 16.3
"""Exceeded by one draw in a thousand, with five and three degrees of freedom."""


def beacon(number: int) -> bytes:
    return digest(b"beacon %d" % number)


def total(tokens, era=LATE, draws=60, seats=100, genesis=GENESIS) -> Counter:
    """Return the seats of each key in many draws together."""
    found = Counter()
    for number in range(draws):
        found.update(drawn_seats(tokens, genesis, era, beacon(number), seats))
    return found


def chi_square(found: Counter, weights: dict) -> float:
    seats, whole = sum(found[peer] for peer in weights), sum(weights.values())
    expected = {peer: seats * weight / whole for peer, weight in weights.items()}
    return sum((found[peer] - mean) ** 2 / mean for peer, mean in expected.items())


def test_the_share_of_the_genesis_falls_to_a_third():
    assert [genesis_sixths(era) for era in (2, 3, 4, 5, 50)] == [4, 3, 2, 2, 2]


@pytest.mark.parametrize(("era", "sixths"), [(2, 4), (3, 3), (4, 2), (LATE, 2)])
@pytest.mark.parametrize("scale", [1, 10**12])
def test_the_genesis_wins_its_share_whatever_the_work(era, sixths, scale):
    tokens = {peer: scale * (place + 1) for place, peer in enumerate(WORKERS)}
    found = total(tokens, era)
    assert sum(found.values()) == 6000
    won = sum(found[peer] for peer in GENESIS)
    deviation = (6000 * sixths / 6 * (1 - sixths / 6)) ** 0.5
    assert abs(won - 1000 * sixths) < 4 * deviation
    assert chi_square(found, dict.fromkeys(GENESIS, 1)) < CHI_SQUARE_3


def test_workers_win_seats_in_proportion_to_their_tokens():
    tokens = {peer: 100 * (place + 1) for place, peer in enumerate(WORKERS)}
    assert chi_square(total(tokens), tokens) < CHI_SQUARE_5
    uneven = dict(zip(WORKERS, (1, 1, 2, 4, 8, 1000), strict=True))
    found = total(uneven)
    assert abs(found[WORKERS[-1]] - 4000 * 1000 / 1016) < 4 * (4000 * 1000 / 1016 / 3) ** 0.5


def test_a_genesis_key_wins_seats_for_its_work_too():
    found = total({GENESIS[0]: 300, WORKERS[0]: 100})
    weights = dict.fromkeys(GENESIS, 1 / 12) | {WORKERS[0]: 1 / 6}
    weights[GENESIS[0]] += 1 / 2
    assert chi_square(found, weights) < 18.5, "four degrees of freedom"


def test_the_same_work_under_ten_keys_wins_no_more():
    """Each seat is drawn on its own, so the keys together have the weight of one."""
    keys = [f"{number:02}" for number in range(10)]
    alone = total({"00": 1000, WORKERS[0]: 2000})
    split = total(dict.fromkeys(keys, 100) | {WORKERS[0]: 2000})
    mean, deviation = 6000 * 2 / 3 / 3, (6000 * 2 / 9 * 7 / 9) ** 0.5
    for won in (alone["00"], sum(split[key] for key in keys)):
        assert abs(won - mean) < 4 * deviation


def test_a_seat_is_won_by_the_key_whose_tokens_its_lot_falls_on():
    """Keys that follow each other in order win, split or not, the very same seats together."""
    first, last = "0", "~"
    for number in range(20):
        one = drawn_seats({first: 1000, last: 500}, GENESIS, LATE, beacon(number), 50)
        parts = {f"0{part}": 100 for part in range(10)}
        other = drawn_seats({**parts, last: 500}, GENESIS, LATE, beacon(number), 50)
        assert sum(other.get(part, 0) for part in parts) == one.get(first, 0)
        rest = {peer: count for peer, count in one.items() if peer != first}
        assert {peer: count for peer, count in other.items() if peer not in parts} == rest


def test_without_work_nobody_is_drawn():
    assert drawn_seats({}, GENESIS, LATE, beacon(0), 100) == {}
    assert drawn_seats(dict.fromkeys(WORKERS, 0), GENESIS, LATE, beacon(0), 100) == {}


def test_a_draw_is_the_same_on_every_machine():
    """The seats of a draw, once and for all: a change of one breaks a run."""
    tokens = {f"key-{number}": 7**number for number in range(8)}
    drawn = drawn_seats(tokens, ["key-0", "genesis"], 3, digest(b"golden"), 24)
    assert drawn == {"genesis": 5, "key-0": 3, "key-5": 1, "key-6": 4, "key-7": 11}


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 2**70), max_size=8),
    st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True),
    st.integers(2, 12),
    st.binary(min_size=32, max_size=32),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_every_draw_gives_away_all_seats_and_is_exact(tokens, genesis, era, lot, seats, rng):
    drawn = drawn_seats(tokens, genesis, era, lot, seats)
    if not any(tokens.values()):
        assert drawn == {}
        return
    assert sum(drawn.values()) == seats
    assert all(type(count) is int and count > 0 for count in drawn.values())
    assert all(tokens.get(peer, 0) or peer in genesis for peer in drawn)
    items = list(tokens.items())
    rng.shuffle(items)
    shuffled = rng.sample(genesis, len(genesis))
    assert drawn_seats(dict(items), shuffled, era, lot, seats) == drawn
    scaled = {peer: 1000 * count for peer, count in tokens.items()}
    again = drawn_seats(scaled, genesis, era, lot, seats)
    assert sum(again.values()) == seats


def test_the_beacon_and_the_seat_decide_alone():
    tokens = dict.fromkeys(WORKERS, 5)
    draws = [drawn_seats(tokens, GENESIS, LATE, beacon(number), 40) for number in range(20)]
    assert len({tuple(sorted(one.items())) for one in draws}) == 20
    more = drawn_seats(tokens, GENESIS, LATE, beacon(0), 41)
    assert sum((Counter(more) - Counter(draws[0])).values()) == 1, "the same forty and one more"
