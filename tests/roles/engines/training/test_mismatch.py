"""Differences between the log-probabilities of workers and of the trainer."""

import math

import pytest
import torch

from protocol.run.loss import LossSection
from roles.engines.training.batch import TrainingSample
from roles.engines.training.mismatch import ClaimComparison, mismatch
from roles.ports.engines import Mismatch

LOSS = LossSection(kind="grpo", epsilon=0.2, delta=4.0)


def sample(logprobs, claimed=None, lag=0):
    return TrainingSample(0, 0, (2,), (3,) * len(logprobs), logprobs, 1.0, claimed=claimed, lag=lag)


def compared(*pairs):
    comparison = ClaimComparison()
    samples = [one for one, _ in pairs]
    comparison.add(samples, torch.tensor([value for _, own in pairs for value in own]))
    return comparison.result(LOSS)


def test_mean_tail_and_share_beyond_the_clip_range():
    worker = -torch.arange(200.0)
    own = worker + 0.01
    own[:2] = worker[:2] + torch.tensor([0.5, -0.5])
    own[2] = worker[2] - 0.2
    found = mismatch([(own - worker)[:150], (own - worker)[150:]], LOSS)
    assert found is not None
    assert found.mean == pytest.approx((197 * 0.01 + 1.0 + 0.2) / 200, rel=1e-3)
    assert found.p99 == pytest.approx(0.2, rel=1e-3)
    assert found.beyond_clip == pytest.approx(2 / 200)


@pytest.mark.parametrize(
    ("difference", "is_beyond"),
    [
        (math.log(1.2) + 1e-3, True),
        (math.log(1.2) - 1e-3, False),
        (math.log(0.8) - 1e-3, True),
        (math.log(0.8) + 1e-3, False),
        (math.nan, True),
    ],
)
def test_the_clip_range_is_that_of_ratios(difference, is_beyond):
    found = mismatch([torch.tensor([difference])], LOSS)
    assert found is not None
    assert found.beyond_clip == is_beyond


def test_the_clip_range_may_be_wider_above():
    loss = LossSection(kind="grpo", epsilon=0.2, epsilon_high=0.5, delta=4.0)
    found = mismatch([torch.tensor([0.3, -0.3])], loss)
    assert found is not None
    assert found.beyond_clip == 0.5


def test_no_token_has_no_mismatch():
    assert ClaimComparison().result(LOSS) == (None, None)


def test_a_recomputed_rollout_of_any_age_compares_the_engines():
    step, engines = compared((sample((-1.0,), claimed=(-1.5,), lag=2), (-3.0,)))
    assert step == Mismatch(1.5, 1.5, 1.0)
    assert engines == Mismatch(0.5, 0.5, 1.0)


def test_a_claim_compares_the_engines_if_it_is_of_the_newest_version():
    step, engines = compared((sample((-1.0,)), (-1.125,)), (sample((-1.0,), lag=1), (-2.0,)))
    assert step == Mismatch(0.5625, 1.0, 0.5)
    assert engines == Mismatch(0.125, 0.125, 0.0)
    assert compared((sample((-1.0,), lag=1), (-2.0,)))[1] is None


@pytest.mark.parametrize("block", [1, 3, 4])
def test_more_tokens_than_a_block_holds(monkeypatch, block):
    pairs = [(sample((-1.0,) * 3), (-1.5, -1.0, -2.0)), (sample((-2.0,)), (-2.25,))]
    expected = compared(*pairs)
    monkeypatch.setattr("roles.engines.training.mismatch.BLOCK", block)
    assert compared(*pairs) == expected == (Mismatch(0.4375, 1.0, 0.75),) * 2
