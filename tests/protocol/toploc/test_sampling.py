import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.toploc import sampling
from protocol.toploc.sampling import CHECK_VECTORS, SEED_MAX, gumbel_noise, noise_bits, noise_keys
from tests.vectors import toploc_reference as reference

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "toploc.json").read_text())[
    "sampling"
]
POSITION_MAX = 2**32 - 1


def seeds(*values):
    return np.array(values, dtype=np.uint64)


def bits(values, positions, vocabulary):
    return noise_bits(noise_keys(seeds(*values), positions), vocabulary)


def test_the_hash_is_the_published_one():
    # Outputs of the C function published by its author, for 0 to 3.
    assert [reference.mix(value) for value in range(4)] == [0, 69681622, 4057983209, 3237000519]


@pytest.mark.parametrize("vector", VECTORS, ids=[str(v["seed"]) for v in VECTORS])
def test_fixed_vectors(vector):
    drawn = bits([vector["seed"]], vector["position"], 4)
    assert [f"{value:08x}" for value in drawn[0].tolist()] == vector["bits"]
    noise = gumbel_noise(seeds(vector["seed"]), vector["position"], 4)[0]
    assert noise.dtype == np.float32
    assert noise.tolist() == pytest.approx(vector["noise"], rel=1e-5)


def test_the_vectors_that_an_engine_is_checked_with_are_the_references():
    for seed, position, token, value in CHECK_VECTORS:
        assert reference.noise_bits(seed, position, token + 1)[token] == value
        assert int(bits([seed], position, token + 1)[0, token]) == value


@given(st.lists(st.integers(0, SEED_MAX), min_size=1, max_size=4), st.integers(0, POSITION_MAX))
def test_the_integers_equal_the_slow_reference(values, position):
    expected = [reference.noise_bits(seed, position, 5) for seed in values]
    assert bits(values, position, 5).tolist() == expected


def test_a_batch_equals_its_single_draws():
    values, positions = [3, SEED_MAX, 3], np.array([7, 0, POSITION_MAX])
    batch = gumbel_noise(seeds(*values), positions, 33)
    singles = [
        gumbel_noise(seeds(s), int(p), 33)[0] for s, p in zip(values, positions, strict=True)
    ]
    assert (batch == np.stack(singles)).all()
    assert (gumbel_noise(seeds(3, 4), 7, 33)[0] == singles[0]).all()


def test_a_larger_vocabulary_keeps_the_first_values():
    assert (bits([1], 2, 1000)[:, :10] == bits([1], 2, 10)).all()


@pytest.mark.parametrize(
    ("extreme", "noise"), [(0, 22.87386), (1, 21.77524), (2**32 - 1, -2.81154)]
)
def test_the_extreme_integers_give_finite_noise(extreme, noise, monkeypatch):
    drawn = np.array([[extreme]], dtype=np.uint32)
    monkeypatch.setattr(sampling, "noise_bits", lambda *_: drawn)
    assert float(gumbel_noise(seeds(0), 0, 1)[0, 0]) == pytest.approx(noise, abs=1e-4)


# Statistics: thresholds of 0.1 % and less, on fixed draws


def test_the_distribution_is_gumbel():
    noise = np.sort(gumbel_noise(np.arange(256, dtype=np.uint64), 5, 1024).ravel().astype(float))
    assert noise.mean() == pytest.approx(0.5772157, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
    ranks = (np.arange(len(noise)) + 0.5) / len(noise)
    distance = np.abs(np.exp(-np.exp(-noise)) - ranks).max()
    assert distance * math.sqrt(len(noise)) < 1.95  # Kolmogorov-Smirnov at 0.1 %


def test_the_tail_is_gumbel():
    """Two million draws: the counts above each height, which decide the winners."""
    noise = gumbel_noise(np.arange(16, dtype=np.uint64), 9, 1 << 17).ravel()
    for height in (4, 6, 8, 10, 12):
        expected = noise.size * -math.expm1(-math.exp(-height))
        assert abs((noise > height).sum() - expected) < 3.3 * math.sqrt(expected) + 1


@pytest.mark.parametrize("shift", [0, 8, 16])
def test_the_integers_are_uniform_in_every_part(shift):
    drawn = bits(range(64), 3, 1 << 14).ravel() >> np.uint32(shift)
    counts = np.bincount((drawn & 0xFFFF).astype(np.int64), minlength=1 << 16)
    expected = drawn.size / (1 << 16)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 65535) < 3.3 * math.sqrt(2 * 65535)  # chi-squared


def test_the_largest_perturbed_logit_is_a_draw_from_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    noise = gumbel_noise(np.arange(40_000, dtype=np.uint64), 0, 4)
    counts = np.bincount((np.log(probabilities) + noise).argmax(axis=1), minlength=4)
    expected = probabilities * 40_000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees, 0.1 %


def test_a_changed_bit_of_seed_position_or_token_changes_half_of_the_bits():
    rng = np.random.default_rng(1)
    count = 4000
    seed = rng.integers(0, SEED_MAX, count, dtype=np.uint64)
    position, token = rng.integers(0, 1 << 18, count), rng.integers(0, 1 << 18, count)

    def one(seed, position, token):
        keys = noise_keys(seed, position)
        return sampling._mix(token.astype(np.uint32) ^ keys[:, 0], keys[:, 1])

    before = one(seed, position, token)
    changed = [
        *(one(seed ^ np.uint64(1 << place), position, token) for place in range(64)),
        *(one(seed, position ^ 1 << place, token) for place in range(18)),
        *(one(seed, position, token ^ 1 << place) for place in range(18)),
    ]
    for after in changed:
        flipped = (before ^ after)[:, None] >> np.arange(32, dtype=np.uint32) & 1
        # Of 3200 shares one is 4.4 standard deviations from a half in a hundred tries.
        assert np.abs(flipped.mean(axis=0) - 0.5).max() < 4.4 * 0.5 / math.sqrt(count)


def test_draws_are_unrelated_across_seeds_positions_and_tokens():
    drawn = bits(range(300), 0, 300) / 2**32 - 0.5
    later = bits(range(300), 1, 300) / 2**32 - 0.5
    pairs = [
        (drawn[:-1], drawn[1:]),
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn, later),
        (drawn[1:], later[:-1]),
        (drawn, drawn.T),
    ]
    for first, other in pairs:
        correlation = np.corrcoef(first.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 4 / math.sqrt(first.size)
    assert len(np.unique(noise_keys(seeds(*range(300)), 0))) == 600


def test_the_positions_of_a_long_sequence_have_keys_of_their_own():
    keys = noise_keys(np.full(1 << 18, 77, dtype=np.uint64), np.arange(1 << 18))
    assert len(np.unique(keys[:, 0])) == len(np.unique(keys[:, 1])) == 1 << 18


def test_impossible_arguments_are_refused():
    for position in (-1, 2**32):
        with pytest.raises(ValueError, match="32-bit"):
            noise_keys(seeds(0), position)
    with pytest.raises(ValueError, match="uint64"):
        noise_keys(np.array([1]), 0)
