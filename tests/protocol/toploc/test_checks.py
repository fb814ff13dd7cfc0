import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.toploc import NO_EQUAL_EXPONENT, ChunkResult, FaultKind, ProofFault
from protocol.toploc.checks import (
    BF16_PUBLISHED,
    BF16_REPLAY,
    FP32_REPLAY,
    Finding,
    Margin,
    Measure,
    Reason,
    Thresholds,
    chunk_passes,
    computation_margins,
    logprobs_finding,
    malformed_finding,
    sampling_finding,
    sequence_passes,
    termination_finding,
)

LIMITS = Thresholds(10, 4.0, 2.0)
GOOD = ChunkResult(5, 1.0, 1.0)


def test_reasons_are_the_agreed_strings():
    assert [reason.value for reason in Reason] == [
        "proof-malformed",
        "computation",
        "termination",
        "sampling",
        "logprobs",
    ]


def test_the_named_thresholds():
    named = [astuple(limits) for limits in (BF16_PUBLISHED, BF16_REPLAY, FP32_REPLAY)]
    assert named == [(38, 10, 8), (16, 4, 3), (4, 32, 32)]


@pytest.mark.parametrize(
    ("result", "passes"),
    [
        (ChunkResult(10, 4.0, 2.0), True),
        (ChunkResult(11, 0.0, 0.0), False),
        (ChunkResult(0, 4.01, 0.0), False),
        (ChunkResult(0, 0.0, 2.5), False),
        (ChunkResult(0, NO_EQUAL_EXPONENT, NO_EQUAL_EXPONENT), False),
        (ChunkResult(0, math.nan, 0.0), False),
    ],
)
def test_each_statistic_has_an_inclusive_limit(result, passes):
    assert chunk_passes(result, LIMITS) is passes
    assert sequence_passes([GOOD, result], LIMITS) is passes


def test_a_sequence_without_chunks_proves_nothing():
    assert not sequence_passes([], LIMITS)
    with pytest.raises(ValueError, match="no chunk"):
        computation_margins([[], []], LIMITS)


def test_the_worst_of_each_statistic_is_named_with_its_chunk():
    margins = computation_margins(
        [[GOOD, ChunkResult(9, 0.5, 0.0)], [], [ChunkResult(0, 3.0, 1.5)]], LIMITS
    )
    assert margins.worst == (
        Margin(Measure.EXPONENT_MISMATCHES, 9.0, 10.0, 1),
        Margin(Measure.MANTISSA_ERROR_MEAN, 3.0, 4.0, 2),
        Margin(Measure.MANTISSA_ERROR_MEDIAN, 1.5, 2.0, 2),
    )
    assert margins.mean[1:] == (
        Margin(Measure.MANTISSA_ERROR_MEAN, 1.5, 4.0),
        Margin(Measure.MANTISSA_ERROR_MEDIAN, 2.5 / 3, 2.0),
    )
    assert margins.tightest == margins.worst[0]
    assert margins.finding is None


def test_a_bad_chunk_is_a_computation_finding():
    margins = computation_margins([[GOOD], [ChunkResult(30, 1.0, 1.0)]], LIMITS)
    worst = Margin(Measure.EXPONENT_MISMATCHES, 30.0, 10.0, 1)
    assert margins.finding == Finding(Reason.COMPUTATION, margin=worst)


def test_small_errors_in_every_chunk_show_in_the_file():
    chunks = [[ChunkResult(2, 1.2, 1.0)]] * 64
    assert computation_margins(chunks, LIMITS).finding is None
    finding = computation_margins(chunks, LIMITS, Thresholds(3, 0.9, 2)).finding
    assert finding is not None
    assert finding.margin is not None
    assert (finding.margin.measure, finding.margin.place) == (Measure.MANTISSA_ERROR_MEAN, None)
    assert finding.margin.measured == pytest.approx(1.2)


def test_a_malformed_proof_is_a_finding_with_its_fault():
    fault = ProofFault(FaultKind.MODULUS, 3)
    assert malformed_finding(fault) == Finding(Reason.PROOF_MALFORMED, fault=fault)


@pytest.mark.parametrize(
    ("measure", "measured", "limit", "passes", "used"),
    [
        (Measure.EXPONENT_MISMATCHES, 5, 10, True, 0.5),
        (Measure.EXPONENT_MISMATCHES, 20, 10, False, 2.0),
        (Measure.EXPONENT_MISMATCHES, 0, 0, True, 0.0),
        (Measure.EXPONENT_MISMATCHES, 1, 0, False, math.inf),
        (Measure.SCORE_GAP_NATS, -1, 0, True, 0.0),
        (Measure.SCORE_GAP_NATS, math.nan, 1, False, math.inf),
        (Measure.SCORE_GAP_NATS, math.inf, 1, False, math.inf),
        (Measure.EOS_PROBABILITY, 0.02, 0.01, True, 0.5),
        (Measure.EOS_PROBABILITY, 0.001, 0.01, False, 10.0),
        (Measure.EOS_PROBABILITY, 0.0, 0.01, False, math.inf),
        (Measure.EOS_PROBABILITY, 0.0, 0.0, True, 0.0),
        (Measure.EOS_PROBABILITY, math.nan, 0.0, False, math.inf),
    ],
)
def test_margins(measure, measured, limit, passes, used):
    margin = Margin(measure, measured, limit)
    assert margin.passes is passes
    assert margin.used == pytest.approx(used)


@given(st.sampled_from(list(Measure)), st.floats(), st.floats())
def test_a_margin_never_raises_and_never_passes_above_its_limit(measure, measured, limit):
    margin = Margin(measure, measured, limit)
    assert margin.used >= 0
    if margin.used > 1:
        assert not margin.passes


def ended(length, length_max, probability, **kwargs):
    return termination_finding(
        length=length, length_max=length_max, eos_probability=probability, **kwargs
    )


@pytest.mark.parametrize(
    ("length", "on_eos", "probability", "rejected"),
    [
        (5, True, 0.5, False),
        (5, True, 0.01, False),
        (5, True, 0.0099, True),
        (5, True, math.nan, True),
        (5, False, 0.9, True),
        (8, False, 0.0, False),
        (8, True, 0.0, False),
        (9, True, 0.9, True),
        (0, False, 0.0, True),
    ],
)
def test_a_sequence_ends_on_a_likely_eos_or_at_its_limit(length, on_eos, probability, rejected):
    finding = ended(length, 8, probability, ended_on_eos=on_eos)
    assert (finding is not None) is rejected
    assert finding is None or finding.reason is Reason.TERMINATION


def test_termination_names_what_it_measured():
    finding = ended(9, 8, 0.9, ended_on_eos=True)
    assert finding == Finding(Reason.TERMINATION, margin=Margin(Measure.LENGTH_TOKENS, 9, 8))
    finding = ended(5, 8, 0.001, ended_on_eos=True)
    margin = Margin(Measure.EOS_PROBABILITY, 0.001, 0.01)
    assert finding == Finding(Reason.TERMINATION, margin=margin)
    assert ended(5, 8, 0.9, ended_on_eos=False) == Finding(Reason.TERMINATION)


def test_the_minimum_probability_of_eos_is_a_parameter():
    assert ended(5, 8, 0.05, ended_on_eos=True, eos_probability_min=0.1) is not None
    assert ended(5, 8, 0.0, ended_on_eos=True, eos_probability_min=0.0) is None
    assert ended(5, 8, 0.0, ended_on_eos=False, eos_probability_min=0.0) is not None


def test_a_replayed_token_may_lose_by_the_tolerance_only():
    assert sampling_finding(np.array([0.0, 0.01, 0.0]), 0.01) is None
    finding = sampling_finding(np.array([0.0, 0.02, 3.0, 0.5]), 0.01)
    margin = Margin(Measure.SCORE_GAP_NATS, 3.0, 0.01, 2)
    assert finding == Finding(Reason.SAMPLING, margin=margin)
    assert sampling_finding(np.array([]), 0.01) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gap_that_is_not_finite_is_rejected(value):
    finding = sampling_finding(np.array([0.0, value, 9.0]), 0.01)
    assert finding is not None
    assert finding.margin is not None
    assert finding.margin.place == 1


def compare(claimed, own):
    return logprobs_finding(
        np.array(claimed), np.array(own), error_max_nats=0.5, error_mean_max_nats=0.1
    )


def test_log_probabilities_are_bounded_singly_and_on_average():
    assert compare([-1.0, -2.0], [-1.05, -2.1]) is None
    assert compare([], []) is None
    finding = compare([-1.0, -2.0, -3.0], [-1.0, -2.75, -3.0])
    single = Margin(Measure.LOGPROB_ERROR_MAX_NATS, 0.75, 0.5, 1)
    assert finding == Finding(Reason.LOGPROBS, margin=single)
    finding = compare([-1.0, -2.0], [-1.25, -1.75])
    mean = Margin(Measure.LOGPROB_ERROR_MEAN_NATS, 0.25, 0.1)
    assert finding == Finding(Reason.LOGPROBS, margin=mean)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("claimed", "own"),
    [(math.nan, -1.0), (-math.inf, -1.0), (-math.inf, -math.inf), (1.7e308, -1.7e308)],
)
def test_log_probabilities_that_are_not_finite_are_rejected_quietly(claimed, own):
    finding = compare([-1.0, claimed], [-1.0, own])
    assert finding is not None
    assert finding.margin is not None
    assert finding.margin.place == 1


def test_claimed_and_own_log_probabilities_cover_the_same_tokens():
    with pytest.raises(ValueError, match="tokens"):
        compare([-1.0], [-1.0, -2.0])
