"""Losses of the recipe in whole steps of the engine: layouts, old and reference policies, rates."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from protocol.core.types import Version
from roles.engines.training.optimiser import learning_rate
from roles.ports.engines import EngineError, Policy
from tests.roles.engines.tiny import grpo, sampling
from tests.roles.engines.training.batches import batch_of

pytestmark = pytest.mark.filterwarnings("error")

LOSSES = {
    "sequence": {"aggregation": "sequence"},
    "constant": {"aggregation": "constant"},
    "mean": {"advantage": "mean"},
    "cispo": {"kind": "cispo", "delta": None, "epsilon_high": 4.0},
    "gspo": {"kind": "gspo", "aggregation": "sequence"},
    "dppo": {"kind": "dppo_kl", "log_ratio_coefficient": 0.01},
    "capped": {"importance_cap": 2.0, "kl_coefficient": 0.1, "epsilon_high": 0.5},
}


def referred(batch, factor=0.5):
    """Return a batch whose reference policy has other log-probabilities, different for each."""
    return [
        replace(one, reference_logprobs=tuple(factor * logprob for logprob in one.logprobs))
        for one in batch
    ]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
async def test_packing_does_not_change_a_step(make, loss):
    found = []
    for layout in ({}, {"pass_tokens": 1}, {"pass_tokens": 17}):
        engine = await make(loss=loss, layout=layout, updates_per_version=2)
        found.append(await engine.step(referred(batch_of())))
    assert found[0].updates == 2
    for other in found[1:]:
        assert other.loss == pytest.approx(found[0].loss, rel=1e-4)
        assert other.gradient_norm == pytest.approx(found[0].gradient_norm, rel=1e-4)
        assert other.clip_low_fraction == found[0].clip_low_fraction


async def test_no_two_losses_make_the_same_step(make):
    """A setting that does not reach the engine would leave the gradient as it is."""
    norms = [
        (await (await make(loss=loss)).step(referred(batch_of()))).gradient_norm
        for loss in [{}, *LOSSES.values()]
    ]
    assert len({round(norm, 6) for norm in norms}) == len(norms)


@pytest.mark.parametrize("updates", [1, 2])
async def test_the_constant_is_of_the_manifest(make, updates):
    """Groups that teach nothing leave the normaliser as it is, unlike that of tokens."""
    batch = batch_of()
    dull = [replace(one, reward=1.0) if one.group else one for one in batch]
    run, limit = grpo(), sampling()
    answers = run.rollouts_per_step * limit.prompts_per_rollout * limit.group_size
    norms = {}
    for aggregation in ("token", "constant"):
        engine = await make(loss={"aggregation": aggregation}, updates_per_version=updates)
        norms[aggregation] = (await engine.step(dull)).gradient_norm
    tokens = sum(len(one.tokens) for one in dull if not one.group)
    ratio = norms["token"] / norms["constant"]
    assert ratio == pytest.approx(answers * limit.tokens_max / updates / tokens, rel=1e-4)


async def test_answers_that_were_cut_are_left_out_but_count_in_their_group(make):
    batch = batch_of()
    ended = [replace(one, ended=number % 3 != 0) for number, one in enumerate(batch)]
    engine, other = await make(loss={"mask_truncated": True}), await make()
    found = await engine.step(ended)
    assert found.sequences_used == sum(number % 3 != 0 for number in range(len(batch)))
    alone = await other.step([one for one in ended if one.ended])
    assert alone.sequences_used == found.sequences_used
    assert alone.gradient_norm != pytest.approx(found.gradient_norm, rel=1e-3)


# Policies at the start of a step


async def test_the_old_policy_is_that_of_the_start_of_the_step(make, policies):
    """If it also generated, truncated importance sampling changes nothing in either update."""
    plain = await make(updates_per_version=2, learning_rate=0.01)
    capped = await make(updates_per_version=2, learning_rate=0.01, loss={"importance_cap": 2.0})
    batch = await plain.recompute(policies[0], batch_of())
    expected, found = await plain.step(batch), await capped.step(batch)
    assert expected.clip_low_fraction + expected.clip_high_fraction > 0, "the policy has moved"
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    assert found.clip_low_fraction == expected.clip_low_fraction


@pytest.mark.parametrize(("shift", "weight"), [(math.log(1.5), 1.5), (math.log(3), 2.0)])
async def test_importance_weights_are_capped(make, policies, shift, weight):
    """The worker's probabilities are too low by a factor."""
    engine, capped = await make(), await make(loss={"importance_cap": 2.0})
    batch = await engine.recompute(policies[0], batch_of())
    lower = [replace(one, logprobs=tuple(p - shift for p in one.logprobs)) for one in batch]
    norm = (await engine.step(batch)).gradient_norm
    assert (await capped.step(lower)).gradient_norm == pytest.approx(weight * norm, rel=1e-3)


async def test_the_divergence_from_the_reference_is_in_loss_and_gradient(make, policies):
    engine, pulled = await make(), await make(loss={"kl_coefficient": 1.0})
    batch = await engine.recompute(policies[0], batch_of())
    expected = await engine.step(batch)

    async def step(difference):
        await pulled.load_policy(policies[0])
        moved = [
            replace(one, reference_logprobs=tuple(p - difference for p in one.logprobs))
            for one in batch
        ]
        return await pulled.step(moved)

    at_reference, away = await step(0.0), await step(0.3)
    assert at_reference.loss == pytest.approx(expected.loss, abs=1e-5)
    assert at_reference.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    assert away.loss - expected.loss == pytest.approx(math.exp(-0.3) - 1 + 0.3, abs=1e-5)
    assert away.gradient_norm != pytest.approx(expected.gradient_norm, rel=1e-2)


async def test_a_loss_without_its_reference_fails(make):
    engine = await make(loss={"kl_coefficient": 1.0})
    with pytest.raises(EngineError):
        await engine.step(batch_of())


# Learning rates


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_no_rate_exceeds_that_of_the_bound(schedule, steps, updates, warmup, own, run):
    rules = grpo(schedule=schedule, steps=steps, updates_per_version=updates, warmup_steps=warmup)
    assert 0 < learning_rate(rules, own, run) <= rules.learning_rate


@pytest.mark.parametrize(
    ("schedule", "made"),
    [
        ("linear", get_linear_schedule_with_warmup),
        ("cosine", get_cosine_schedule_with_warmup),
    ],
)
def test_rates_fall_as_in_transformers(schedule, made):
    rules = grpo(schedule=schedule, steps=20, updates_per_version=2, learning_rate=0.5)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = made(optimiser, 0, 40)
    for update in range(40):
        assert learning_rate(rules, update, update) == pytest.approx(theirs.get_last_lr()[0])
        optimiser.step()
        theirs.step()


async def test_a_fresh_optimiser_warms_up_within_the_schedule_of_the_run(make, policies):
    rules = {"schedule": "linear", "steps": 10, "warmup_steps": 1, "learning_rate": 1e-3}
    engine = await make(**rules)
    await engine.load_policy(replace(policies[0], version=Version(5)))
    rates = [(await engine.step(batch_of())).learning_rate for _ in range(2)]
    assert rates == pytest.approx([1e-3 * 5 / 9 / 2, 1e-3 * 4 / 9])


@pytest.mark.parametrize("newer", [None, 6])
async def test_a_successor_continues_the_schedule(make, policies, tmp_path, newer):
    rules = {"schedule": "linear", "steps": 10, "learning_rate": 1e-3}
    engine, successor = await make(**rules), await make(**rules)
    await engine.load_policy(replace(policies[0], version=Version(2)))
    for _ in range(3):
        await engine.step(batch_of())
    digest = await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    policy = newer and Policy(Version(newer), digest, tmp_path / "policy")
    await successor.load_state(tmp_path / "state", digest, policy)
    done = newer or 5
    rate = (await successor.step(batch_of())).learning_rate
    assert rate == pytest.approx(1e-3 * (10 - done) / 10)
