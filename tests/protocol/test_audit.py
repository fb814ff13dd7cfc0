import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audit import ACCEPTED, Measurement, audited, check_claims, decide
from protocol.crypto import digest
from protocol.messages import Verdict
from protocol.rollout import RolloutSequence
from protocol.toploc.proof import ChunkResult
from tests.worlds.messages import World, run_manifest

MANIFEST = run_manifest(toploc={"end_probability_min": 0.01})
RULES = MANIFEST.toploc
TOKENS_MAX = MANIFEST.sampling.tokens_max
WORLD = World(MANIFEST)
COMMIT = WORLD.commit(WORLD.workers[0], tokens=3 + TOKENS_MAX)
ENDED = RolloutSequence((5, 6, 1), (-1.0,) * 3, 100, ())
FULL = RolloutSequence((5,) * TOKENS_MAX, (-1.0,) * TOKENS_MAX, 200, ())
NAN, INFINITE = math.nan, math.inf
ERRORS = st.floats(0, 1e300) | st.sampled_from([NAN, INFINITE])


def measurement(**changes) -> Measurement:
    fields = {
        "proof_fault": None,
        "chunks": (ChunkResult(0, 1.0, 1.0),),
        "logprob_error_max": 1e-6,
        "sampling_gap_max": 0.0,
        "end_probability": 0.5,
    }
    return Measurement(**fields | changes)


def decided(*measurements, sequences=None):
    sequences = [ENDED] * len(measurements) if sequences is None else sequences
    return decide(MANIFEST, sequences, measurements)


# Which sequences are measured


@given(st.integers(1, 60), st.floats(0, 1), st.binary(max_size=4))
def test_the_audited_are_some_in_order_and_at_least_one(count, share, seed):
    chosen = audited(digest(seed), COMMIT.digest, count, share)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(count))
    assert len(chosen) == max(1, math.ceil(count * share))


def test_the_beacon_and_the_commit_choose_them():
    choices = {
        tuple(audited(digest(beacon), digest(commit), 100, 0.1))
        for beacon in (b"1", b"2")
        for commit in (b"1", b"2")
    }
    assert len(choices) == 4


def test_every_sequence_is_audited_equally_often():
    chosen = [audited(digest(bytes([n])), COMMIT.digest, 8, 0.25) for n in range(200)]
    for index in range(8):
        assert abs(sum(index in some for some in chosen) - 50) < 31  # five standard deviations


# What needs no model


@pytest.mark.parametrize(
    ("sequences", "rewards", "reason"),
    [
        ([ENDED, FULL], [100, 200], None),
        ([ENDED, ENDED], [100, 100], "format"),  # six tokens where eleven were promised
        ([RolloutSequence((32, 6, 1), (), 100, ()), FULL], [100, 200], "format"),
        ([RolloutSequence((-1, 6, 1), (), 100, ()), FULL], [100, 200], "format"),
        ([RolloutSequence((1, 6, 1), (), 100, ()), FULL], [100, 200], "format"),
        ([ENDED, FULL], [100, 201], "reward"),
        ([ENDED, FULL], [0, 200], "reward"),
        ([RolloutSequence((5, 6, 7), (), 100, ()), FULL], [100, 200], "termination"),
    ],
)
def test_claims(sequences, rewards, reason):
    finding = check_claims(MANIFEST, COMMIT.message, sequences, rewards)
    assert reason == (finding and finding.reason)


def test_a_full_sequence_may_end_on_its_last_token():
    ended = RolloutSequence((*FULL.tokens[:-1], 1), FULL.logprobs, 200, ())
    assert check_claims(MANIFEST, COMMIT.message, [ENDED, ended], [100, 200]) is None


# What one prefill shows


def test_what_keeps_every_limit_is_accepted_with_its_margins():
    finding = decided(measurement(), measurement(logprob_error_max=5e-4, end_probability=0.25))
    assert finding.accept
    assert finding.reason == ACCEPTED
    margins = {margin.name: (margin.value, margin.limit) for margin in finding.margins}
    assert margins["logprob-error-max"] == (500, 1000)
    assert margins["end-probability"] == (250_000, 10_000)
    assert len(margins) == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"proof_fault": "count of chunk 0", "chunks": ()}, "proof-malformed"),
        ({"chunks": (ChunkResult(5, 1.0, 1.0),)}, "computation"),
        ({"chunks": (ChunkResult(0, 33.0, 1.0),)}, "computation"),
        ({"chunks": (ChunkResult(0, 1.0, 33.0),)}, "computation"),
        ({"chunks": (ChunkResult(0, NAN, 1.0),)}, "computation"),
        ({"chunks": (ChunkResult(0, INFINITE, INFINITE),)}, "computation"),
        ({"logprob_error_max": 2e-3}, "logprobs"),
        ({"logprob_error_max": INFINITE}, "logprobs"),
        ({"logprob_error_max": NAN}, "logprobs"),
        ({"sampling_gap_max": 2e-3}, "sampling"),
        ({"sampling_gap_max": INFINITE}, "sampling"),
        ({"sampling_gap_max": NAN}, "sampling"),
        ({"end_probability": 0.009}, "termination"),
        ({"end_probability": NAN}, "termination"),
        ({"end_probability": -INFINITE}, "termination"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_sequence_is_found_wherever_it_stands(changes, reason, place):
    measurements = [measurement()] * 3
    measurements[place] = measurement(**changes)
    finding = decided(*measurements)
    assert not finding.accept
    assert finding.reason == reason


@given(
    st.lists(
        st.builds(
            measurement,
            logprob_error_max=st.floats(),
            sampling_gap_max=st.floats(),
            end_probability=st.floats(),
            chunks=st.lists(
                st.builds(ChunkResult, st.integers(0, 128), ERRORS, ERRORS),
                min_size=1,
                max_size=3,
            ).map(tuple),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_measurement_becomes_a_verdict_that_can_be_signed(measurements):
    finding = decided(*measurements)
    fits = all(
        item.logprob_error_max <= RULES.logprob_error_max
        and item.sampling_gap_max <= RULES.sampling_gap_max
        and item.end_probability >= RULES.end_probability_min
        and all(chunk.exponent_mismatches <= 4 for chunk in item.chunks)
        and all(chunk.mantissa_error_mean <= 32 for chunk in item.chunks)
        and all(chunk.mantissa_error_median <= 32 for chunk in item.chunks)
        for item in measurements
    )
    assert finding.accept == fits
    WORLD.sealed(
        Verdict(
            commit=COMMIT.digest,
            accept=finding.accept,
            reason=finding.reason,
            detail=finding.detail,
            margins=finding.margins,
        ),
        WORLD.validators[0],
    )


def test_huge_values_are_cut_to_what_a_margin_holds():
    finding = decided(measurement(sampling_gap_max=sys.float_info.max))
    assert {margin.name: margin.value for margin in finding.margins}["sampling-gap-max"] == 2**53
    finding = decided(measurement(end_probability=-INFINITE))
    assert {margin.name: margin.value for margin in finding.margins}["end-probability"] == -(2**53)


def test_only_an_end_before_the_limit_needs_its_probability():
    assert decided(measurement(end_probability=0.0), sequences=[FULL]).accept
    ended_at_limit = RolloutSequence((*FULL.tokens[:-1], 1), FULL.logprobs, 0, ())
    assert decided(measurement(end_probability=0.0), sequences=[ended_at_limit]).accept
    assert not decided(measurement(end_probability=0.0), sequences=[ENDED]).accept


def test_a_measurement_of_nothing_is_our_own_fault():
    with pytest.raises(ValueError, match="no chunk was measured"):
        decided(measurement(chunks=()))
