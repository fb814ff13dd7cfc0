from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.rng import Rng


def test_the_same_seed_gives_the_same_draws():
    def draws(rng):
        return rng.bits64(), rng.below(7), rng.uniform(), rng.bytes(5), rng.shuffled(range(9))

    assert draws(Rng(b"seed")) == draws(Rng(b"seed"))
    assert draws(Rng(b"seed")) != draws(Rng(b"other"))


def test_children_depend_on_their_label_and_on_nothing_drawn():
    one, other = Rng(b"seed"), Rng(b"seed")
    other.bits64()
    assert one.child("a").bits64() == other.child("a").bits64()
    labels = [Rng(b"seed").child(label).bits64() for label in ("a", "b", "", "aa")]
    assert len({*labels, Rng(b"seed").bits64(), Rng(b"seed").child("a").child("a").bits64()}) == 6


@given(st.integers(1, 2**64), st.binary(max_size=8))
def test_below_stays_below(bound, seed):
    assert 0 <= Rng(seed).below(bound) < bound


def test_below_needs_something_to_choose_from():
    with pytest.raises(ValueError, match="at least 1"):
        Rng(b"").below(0)


def test_draws_are_uniform_enough():
    rng = Rng(b"uniform")
    counts = Counter(rng.below(4) for _ in range(4000))
    # Five standard deviations of a binomial with n = 4000, p = 1/4 are 137.
    assert all(abs(counts[value] - 1000) < 137 for value in range(4))
    mean = sum(rng.uniform() for _ in range(4000)) / 4000
    assert abs(mean - 0.5) < 0.025


@given(st.lists(st.integers(), max_size=20), st.integers(0, 25), st.binary(max_size=4))
def test_shuffles_and_samples_keep_what_they_were_given(items, count, seed):
    assert sorted(Rng(seed).shuffled(items)) == sorted(items)
    sample = Rng(seed).sample(range(len(items)), count)
    assert len(set(sample)) == len(sample) == min(count, len(items))


def test_every_permutation_comes_up():
    seen = Counter(tuple(Rng(bytes([n // 256, n % 256])).shuffled("abc")) for n in range(600))
    assert len(seen) == 6
    assert min(seen.values()) > 60  # of 100 expected; four standard deviations


def test_bytes_have_the_length_asked_for_and_do_not_repeat():
    rng = Rng(b"bytes")
    assert [len(rng.bytes(count)) for count in (0, 1, 32, 100)] == [0, 1, 32, 100]
    assert rng.bytes(32) != rng.bytes(32)
    assert Rng(b"x").bytes(8) != Rng(b"x").bits64().to_bytes(8, "big")
