import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.toploc import sampling
from protocol.toploc.sampling import SEED_MAX, gumbel_noise, gumbel_noise_batch, noise_bits
from tests.vectors import toploc_reference as reference

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "toploc.json").read_text())[
    "sampling"
]


def seeds(*values):
    return np.array(values, dtype=np.uint64)


def test_the_generator_is_the_published_one():
    # First outputs of the authors' C program for the seed 1234567.
    stream = reference.SplitMix(1234567)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [stream.next() for _ in range(3)] == published


@pytest.mark.parametrize("vector", VECTORS, ids=[str(v["seed"]) for v in VECTORS])
def test_fixed_vectors(vector):
    bits = noise_bits(seeds(vector["seed"]), vector["position"], 4)
    assert [f"{value:016x}" for value in bits[0].tolist()] == vector["bits"]
    noise = gumbel_noise(vector["seed"], vector["position"], 4)
    assert noise.tolist() == pytest.approx(vector["noise"], rel=1e-14)


@given(st.lists(st.integers(0, SEED_MAX), min_size=1, max_size=4), st.integers(0, 99))
def test_the_integers_equal_the_slow_reference(values, position):
    bits = noise_bits(seeds(*values), position, 5).tolist()
    assert bits == [reference.noise_bits(seed, position, 5) for seed in values]


@pytest.mark.filterwarnings("error")
def test_a_batch_equals_its_single_draws():
    values, positions = [3, SEED_MAX, 3], np.array([7, 0, 8])
    batch = gumbel_noise_batch(seeds(*values), positions, 33)
    singles = [gumbel_noise(s, int(p), 33) for s, p in zip(values, positions, strict=True)]
    assert (batch == np.stack(singles)).all()
    assert (gumbel_noise_batch(seeds(3, 4), 7, 33)[0] == singles[0]).all()


def test_a_larger_vocabulary_keeps_the_first_values():
    assert (gumbel_noise(1, 2, 1000)[:10] == gumbel_noise(1, 2, 10)).all()


@pytest.mark.parametrize("extreme", [0, SEED_MAX])
def test_the_extreme_integers_give_finite_noise(extreme, monkeypatch):
    bits = np.array([[extreme]], dtype=np.uint64)
    monkeypatch.setattr(sampling, "noise_bits", lambda *_: bits)
    noise = float(gumbel_noise_batch(seeds(0), 0, 1)[0, 0])
    assert math.isfinite(noise)
    assert -3.61 < noise < 36.8


def test_the_distribution_is_gumbel():
    noise = np.sort(gumbel_noise_batch(np.arange(256, dtype=np.uint64), 5, 1024).ravel())
    assert noise.mean() == pytest.approx(0.5772157, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
    ranks = (np.arange(len(noise)) + 0.5) / len(noise)
    distance = np.abs(np.exp(-np.exp(-noise)) - ranks).max()
    assert distance * math.sqrt(len(noise)) < 1.63  # Kolmogorov-Smirnov at 1 %


def test_the_largest_perturbed_logit_is_a_draw_from_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    noise = gumbel_noise_batch(np.arange(40_000, dtype=np.uint64), 0, 4)
    counts = np.bincount((np.log(probabilities) + noise).argmax(axis=1), minlength=4)
    expected = probabilities * 40_000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees, 0.1 %


def test_neighbouring_seeds_positions_and_tokens_are_unrelated():
    noise = gumbel_noise_batch(np.arange(300, dtype=np.uint64), 0, 300)
    later = gumbel_noise_batch(np.arange(300, dtype=np.uint64), 1, 300)
    pairs = [
        (noise[:-1], noise[1:]),
        (noise[:, :-1], noise[:, 1:]),
        (noise, later),
        (noise[1:], later[:-1]),
    ]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.015
    assert len(np.unique(noise)) == noise.size


def test_impossible_arguments_are_refused():
    for seed in (-1, SEED_MAX + 1):
        with pytest.raises(ValueError, match="64 bits"):
            gumbel_noise(seed, 0, 4)
    with pytest.raises(ValueError, match="from 0"):
        gumbel_noise(0, -1, 4)
    with pytest.raises(ValueError, match="uint64"):
        gumbel_noise_batch(np.array([1]), 0, 4)
