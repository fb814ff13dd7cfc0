"""Losses: formulas, results of other trainers' code, and values of any size."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.losses import CASES, Tensors, own_result
from protocol.rollout.body import REWARD_SCALE, reward_of
from protocol.run.toml import load_recipe
from roles.engines.training.batch import TrainingSample, collate, group_advantages
from roles.engines.training.losses import token_weights, two_sided_losses, weighted_loss

VECTORS = json.loads(Path(__file__).with_name("loss_vectors.json").read_text())
RUNS = Path(__file__).parents[4] / "configs" / "runs"
DELTA, EPSILON = 4.0, 0.2
LOG_RATIOS = st.floats(-5, 5).filter(
    lambda x: all(abs(x - math.log(edge)) > 1e-3 for edge in (1 - EPSILON, 1 + EPSILON, DELTA))
)


def losses_of(log_ratio, advantage):
    logprob = torch.tensor([log_ratio - 1.0], requires_grad=True)
    loss, clipped = two_sided_losses(
        logprob + 1.0, torch.tensor([advantage]), EPSILON, EPSILON, DELTA
    )
    loss.sum().backward()
    return float(loss.detach()), float(logprob.grad), bool(clipped)


@given(LOG_RATIOS, st.floats(-3, 3))
def test_the_loss_is_the_formula(log_ratio, advantage):
    ratio = math.exp(log_ratio)
    clipped = min(max(ratio, 1 - EPSILON), 1 + EPSILON)
    expected = -min(min(ratio, DELTA) * advantage, clipped * advantage)
    assert losses_of(log_ratio, advantage)[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(LOG_RATIOS, st.floats(0.01, 3), st.sampled_from([-1, 1]))
def test_the_gradient_is_that_of_the_formula(log_ratio, size, sign):
    ratio = math.exp(log_ratio)
    free = ratio < 1 + EPSILON if sign > 0 else 1 - EPSILON < ratio < DELTA
    _, gradient, clipped = losses_of(log_ratio, sign * size)
    assert gradient == pytest.approx(-sign * size * ratio if free else 0.0, rel=1e-4)
    assert clipped is not free


@pytest.mark.parametrize("log_ratio", [2.0, 100.0, 1e30])
def test_a_large_ratio_with_a_negative_advantage_is_bounded(log_ratio):
    loss, gradient, clipped = losses_of(log_ratio, -1.5)
    assert loss == pytest.approx(DELTA * 1.5)
    assert gradient == 0.0
    assert clipped


@pytest.mark.parametrize("log_ratio", [-1e30, -100.0, 100.0, 1e30])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_no_ratio_makes_nan(log_ratio, advantage):
    loss, gradient, _ = losses_of(log_ratio, advantage)
    assert math.isfinite(loss)
    assert math.isfinite(gradient)


@pytest.mark.parametrize(
    "vector", VECTORS["cases"], ids=lambda one: f"{one['case']} in {one['library']}"
)
def test_losses_are_those_of_other_trainers(vector):
    """``benchmarks/training/losses.py --vectors`` wrote what the libraries' own code returns."""
    made = Tensors(**{name: torch.tensor(value) for name, value in VECTORS["tensors"].items()})
    found = own_result(made, CASES[vector["case"]])
    if vector["loss"] is not None:
        assert found.loss == pytest.approx(vector["loss"], rel=1e-5)
    gradient = torch.tensor(vector["gradient"])
    torch.testing.assert_close(found.gradient[made.mask], gradient, rtol=1e-5, atol=1e-7)


def test_every_kind_and_every_term_is_compared():
    compared = [CASES[vector["case"]] for vector in VECTORS["cases"]]
    assert {one.kind for one in compared} == {"grpo", "gspo", "cispo", "dppo_tv", "dppo_kl"}
    for term in ("epsilon_high", "importance_cap", "kl_coefficient", "log_ratio_coefficient"):
        assert any(getattr(one, term) for one in compared), term


LOGPROBS = st.floats(-(2.0**100), 0, width=32) | st.floats(-20, 0, width=32)

EVERY_TERM = {"kl_coefficient": 0.5, "log_ratio_coefficient": 0.5, "entropy_coefficient": 0.5}

FINITE = [case.model_copy(update=EVERY_TERM) for case in CASES.values() if not case.mask_truncated]


@given(
    st.sampled_from(FINITE),
    st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS, LOGPROBS), min_size=1, max_size=6),
    st.floats(-10, 10),
)
def test_no_log_probability_makes_a_loss_or_gradient_that_is_not_finite(rules, tokens, advantage):
    current, *others = zip(*tokens, strict=True)
    behaviour, old, reference = others
    sample = TrainingSample(
        0, 0, (2,), (1,) * len(tokens), behaviour, advantage, 0.1, old, reference
    )
    logprobs = torch.tensor(current, requires_grad=True)
    loss, found = weighted_loss(rules, collate([sample], "cpu"), logprobs, torch.ones(len(tokens)))
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad.isfinite().all()
    assert found.losses.isfinite().all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_the_weights_of_an_update_sum_to_one_or_to_its_share_of_the_constant(lengths):
    def total(aggregation):
        weights = token_weights(aggregation, lengths, 400.0)
        return sum(one * length for one, length in zip(weights, lengths, strict=True))

    assert total("token") == pytest.approx(1)
    assert total("sequence") == pytest.approx(1)
    assert total("constant") == pytest.approx(sum(lengths) / 400)
    assert len({*token_weights("token", lengths, 400.0)}) == 1


def test_advantages_without_the_deviation_are_differences_from_the_mean():
    rewards, groups = torch.tensor([1.0, 5.0, 0.0, 5.0]), torch.tensor([0, 1, 0, 1])
    advantages = group_advantages(rewards, groups, divide=False)
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0]


def test_advantages_are_those_of_each_group():
    rewards = torch.tensor([1.0, 5.0, 0.0, 5.0, 0.0, 3.0], dtype=torch.float64)
    groups = torch.tensor([7, 3, 7, 3, 7, 9])
    mean, deviation = 1 / 3, 1 / math.sqrt(3)
    high, low = (1 - mean) / (deviation + 1e-6), -mean / (deviation + 1e-6)
    expected = torch.tensor([high, 0.0, low, 0.0, low, 0.0], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(rewards, groups), expected)


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=40))
def test_advantages_are_divided_by_the_deviation_of_the_sample(rewards):
    """INTELLECT-2's code uses ``torch.std`` with its default."""
    given_rewards = torch.tensor(rewards, dtype=torch.float64)
    deviation = torch.std(given_rewards)
    expected = (given_rewards - given_rewards.mean()) / (deviation + 1e-6)
    advantages = group_advantages(given_rewards, torch.zeros(len(rewards), dtype=torch.int64))
    torch.testing.assert_close(advantages, expected, rtol=1e-6, atol=1e-6)


@given(st.floats(0, 1), st.integers(1, 40))
def test_equal_rewards_give_exactly_zero(reward, count):
    rewards = torch.full((count,), reward, dtype=torch.float64)
    assert not group_advantages(rewards, torch.zeros(count, dtype=torch.int64)).any()


def test_length_rewards_tell_long_answers_apart_as_published():
    """INTELLECT-2's TARGET-LONG run: right and wrong answers, all far beyond the target of 2,000.

    Each penalty exceeds the reward; all of it must count, or the group would have no signal.
    """
    recipe = load_recipe((RUNS / "intellect2.toml").read_text())
    lengths = [6000 + 500 * number for number in range(recipe.sampling.group_size)]
    rewards = [
        reward_of(recipe.sampling, float(number % 2), tokens, recipe.sampling.length_targets[0])
        for number, tokens in enumerate(lengths)
    ]
    assert max(rewards) < 0
    scaled = torch.tensor(rewards, dtype=torch.float64) / REWARD_SCALE
    advantages = group_advantages(scaled, torch.zeros(len(lengths), dtype=torch.int64))
    assert int(advantages.count_nonzero()) == len(lengths) == 16
    right = advantages[1::2]
    assert (right.diff() < 0).all(), "of the right ones a shorter one is better"
