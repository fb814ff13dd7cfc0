import math
import random
from itertools import compress
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rollout.statistics import (
    PER_CHUNK,
    SCALE,
    STATISTICS,
    Recomputed,
    Sums,
    added,
    agreed,
    beyond,
    bound,
    compared,
    explained,
    measured,
    of_rollout,
    stated,
    surprise,
)
from protocol.run.sections import HonestValue
from protocol.toploc import ChunkResult
from tests.worlds.messages import found, run_manifest

RULES = run_manifest().toploc
NOTHING = (0.0,) * len(STATISTICS)


GOOD = (ChunkResult(0, 0.0, 0.0),)


def measure(claimed, own, gaps=None, chunks=GOOD):
    return measured(RULES, claimed, Recomputed(chunks, own, gaps or [0.0] * len(claimed)))


def values(measurement):
    return dict(zip(STATISTICS, measurement.sums.values, strict=True))


# Measuring


def test_the_statistics_of_a_sequence_by_hand():
    chunks = [ChunkResult(1, 3.0, 2.0), ChunkResult(0, 5.0, 6.0)]
    own, claimed = [-1.0, -2.0, -3.0], [-1.0 + 4e-6, -2.0 - 2e-5, -3.0]
    got = measure(claimed, own, [0.0, 2e-6, 5e-4], chunks)
    assert got.sums.tokens == 3
    assert got.sums.chunks == 2
    sums = values(got)
    assert sums["logprob_error"] == pytest.approx(4e-6 + 1e-5, rel=1e-6)  # the second is clipped
    assert sums["logprob_shift"] == pytest.approx(4e-6 - 1e-5, rel=1e-6)
    assert sums["logprob_outliers"] == 1
    assert sums["replay_mismatches"] == 2
    assert sums["sampling_gap"] == pytest.approx(2e-6 + 1e-5)
    expected = -math.log(math.erfc(1.0)) + RULES.honest.sampling_surprise.clip
    assert sums["sampling_surprise"] == pytest.approx(expected)
    assert sums["exponent_mismatches"] == 1
    assert sums["mantissa_error"] == 8
    assert got.extremes == pytest.approx((1, 5, 6, 2e-5, 5e-4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_as_bad_as_can_be(bad):
    got = measure([-1.0], [bad], [bad])
    sums = values(got)
    assert got.extremes.logprob_error_max == math.inf
    assert sums["logprob_error"] == RULES.honest.logprob_error.clip
    assert sums["logprob_outliers"] == 1
    if bad != -math.inf:  # no score can exceed the best one by that much; it is above it
        assert got.extremes.sampling_gap_max == math.inf
        assert sums["sampling_gap"] == RULES.honest.sampling_gap.clip


def test_nothing_to_measure_is_our_own_fault():
    for chunks, tokens in (((), [-1.0]), ((ChunkResult(0, 0.0, 0.0),), [])):
        with pytest.raises(ValueError, match="nothing was measured"):
            measure(tokens, tokens, chunks=chunks)


def test_sums_add_up():
    first, second = measure([-1.0], [-1.0], [1e-6]), measure([-1.0] * 2, [-1.0] * 2, [1e-6, 0.0])
    both = added([first.sums, second.sums])
    assert (both.tokens, both.chunks) == (3, 2)
    assert both.means[STATISTICS.index("replay_mismatches")] == pytest.approx(2 / 3)
    assert both.means[STATISTICS.index("mantissa_error")] == 0
    assert added([]) == Sums(0, 0, NOTHING)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=20))
def test_chunks_of_equal_sequences_count_as_those_of_one(told):
    """Each sequence has its own offset; per-token statistics count for each token."""
    parts = [
        measure([-1.0], [-1.0], [1e-6], chunks=(ChunkResult(off, 0.0, 0.0),)) for _, off in told
    ]
    claims = [claim for claim, _ in told]
    found, every = of_rollout(parts, claims), added(part.sums for part in parts)
    place = STATISTICS.index("exponent_mismatches")
    means = [fmean(off for claim, off in told if claim == one) for one in set(claims)]
    assert found.means[place] == pytest.approx(fmean(means))
    assert (found.tokens, found.chunks) == (every.tokens, len(set(claims)))
    tokens = [name not in PER_CHUNK for name in STATISTICS]
    assert [*compress(found.values, tokens)] == [*compress(every.values, tokens)]
    assert of_rollout(parts, range(len(parts))) == every


def test_a_gap_is_the_more_surprising_the_wider_it_is():
    assert surprise(0.0, 1.0) == 0
    assert surprise(2.0, 1.0) == pytest.approx(-math.log(0.1572992), rel=1e-6)  # erfc(1)
    assert surprise(100.0, 1.0) == math.inf


# Bounds


def test_the_bound_lies_where_bennetts_inequality_has_the_rate():
    honest = HonestValue(mean=0.5, variance=0.1, clip=2.0)
    for count, rate in ((1, 1e-3), (100, 1e-6), (100_000, 1e-12)):
        scale = count * 0.1 / 4
        above = (bound(honest, count, rate) - count * 0.5) / (scale * 2)
        exponent = scale * ((1 + above) * math.log(1 + above) - above)
        assert math.exp(-exponent) == pytest.approx(rate, rel=1e-6)


def test_honest_sums_exceed_the_bound_less_often_than_the_rate_says():
    """A distribution for which Bennett's inequality is nearly tight: rare values of full size."""
    honest = HonestValue(mean=0.02, variance=0.02 * 0.98, clip=1.0)
    rng, rate, count, tries = random.Random(5), 0.02, 100, 3000
    limit = bound(honest, count, rate)
    above = sum(sum(rng.random() < 0.02 for _ in range(count)) > limit for _ in range(tries))
    assert above <= rate * tries
    assert above > 0  # the bound is not vacuous


@given(st.floats(0, 10), st.floats(1e-12, 10), st.floats(1e-6, 10), st.integers(1, 10**6))
def test_the_bound_never_falls_below_the_mean_and_narrows_with_the_tokens(
    mean, variance, clip, count
):
    honest = HonestValue(mean=mean, variance=variance, clip=clip)
    one, more = bound(honest, count, 1e-6), bound(honest, 4 * count, 1e-6)
    assert one >= count * mean
    assert more / (4 * count) <= one / count * (1 + 1e-9)
    assert bound(honest, count, 1e-12) >= one
    assert bound(honest, 0, 1e-6) == 0


def test_the_rate_is_shared_by_all_statistics():
    sums = Sums(1000, 40, NOTHING)
    allowed = {item.name: item.allowed for item in compared(RULES, sums, 1e-6)}
    for name in STATISTICS:
        count = 40 if name in ("exponent_mismatches", "mantissa_error") else 1000
        single = bound(getattr(RULES.honest, name), count, 1e-6 / 9) / count
        assert allowed[name] == pytest.approx(single)


def test_the_worst_of_several_excesses_is_named():
    off = {"replay_mismatches": 0.5, "sampling_gap": 9e-6, "mantissa_error": 31.0}
    sums = Sums(1000, 1000, tuple(1000 * off.get(name, 0.0) for name in STATISTICS))
    found = beyond(RULES, sums, 1e-6)
    assert found is not None
    assert found.name == "replay_mismatches"
    assert beyond(RULES, Sums(1000, 1000, NOTHING), 1e-6) is None


def test_a_mean_that_is_no_number_is_beyond_every_bound():
    off = (math.nan, *NOTHING[1:])
    assert beyond(RULES, Sums(10, 1, off), 1e-6) is not None


# Verdicts


def verdict(means=NOTHING, chunks=2, extremes=(0.0,) * 5):
    (one,) = found(chunks=chunks, means=stated(means), extremes=stated(extremes))
    return one


def test_a_minority_neither_frames_a_worker_nor_clears_it():
    low, true, high = verdict(), verdict([0.25] * 8), verdict([0.75] * 8)
    for three in ([low, true, high], [high, low, true]):
        assert agreed(three, 100).means == pytest.approx([0.25] * 8)
    assert agreed([true, high], 100).means == pytest.approx([0.25] * 8)  # in doubt for the worker
    assert agreed([high], 100).means == pytest.approx([0.75] * 8)


def test_the_size_of_a_shift_counts_and_its_sign_stays():
    down, up, zero = verdict([-0.5] * 8), verdict([0.25] * 8), verdict()
    assert agreed([down, up, zero], 100).means == pytest.approx([0.25] * 8)
    assert agreed([down, down, zero], 100).means == pytest.approx([-0.5] * 8)


def test_sums_of_a_verdict_are_those_of_its_tokens_and_chunks():
    sums = agreed([verdict([0.5] * 8, chunks=3)], 100)
    assert sums.tokens == 100
    assert sums.chunks == 3
    assert sums.values == pytest.approx([50.0] * 6 + [1.5] * 2)


def test_verdicts_that_state_nothing_agree_on_nothing():
    (empty,) = found("reward")
    assert agreed([empty, empty], 10) is None
    assert agreed([empty, verdict([0.5] * 8)], 10).means == pytest.approx([0.5] * 8)
    assert explained(RULES, empty, 10) == []


def test_a_verdict_is_explained_beside_what_is_allowed():
    told = explained(RULES, verdict([0.5] * 8, extremes=(1, 2, 3, 4e-4, 5e-4)), 100)
    assert [item.name for item in told[:8]] == list(STATISTICS)
    assert all(item.value == pytest.approx(0.5) for item in told[:8])
    assert [(item.value, item.allowed) for item in told[8:]] == [
        (1, 4), (2, 32.0), (3, 32.0), (4e-4, 1e-3), (5e-4, 1e-3)
    ]  # fmt: skip


def test_stated_numbers_are_billionths_within_what_a_message_holds():
    assert stated([1e-9, -0.5, math.inf, -math.inf, 1e300]) == (
        1, -SCALE // 2, 2**53, -(2**53), 2**53
    )  # fmt: skip
