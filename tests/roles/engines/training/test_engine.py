import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from roles.engines.qwen2.policy import build_model, configuration
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import TrainingSequence
from tests.roles.engines.tiny import CONFIG, grpo, model, sampling
from tests.roles.engines.training.batches import batch_of

pytestmark = pytest.mark.filterwarnings("error")


async def weights_of(engine, path):
    await engine.write_policy(path)
    return load_file(path)


def reference_loss(policy, batch):
    """The mean token loss, one sequence at a time and without any of the engine's code."""
    model = build_model(configuration(CONFIG), torch.float32, "cpu")
    model.load_state_dict(load_file(policy.path))
    total, count = 0.0, 0
    for one in batch:
        rewards = torch.tensor([float(s.reward) for s in batch if s.group == one.group])
        advantage = (one.reward - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
        logits = model(input_ids=torch.tensor([one.prompt + one.tokens])).logits[0]
        for place, (token, behaviour) in enumerate(zip(one.tokens, one.logprobs, strict=True)):
            log_ratio = logits[len(one.prompt) - 1 + place].log_softmax(-1)[token] - behaviour
            ratio = log_ratio.exp()
            near = ratio.clamp(0.8, 1.2)
            total = total - torch.minimum(ratio.clamp(max=4.0) * advantage, near * advantage)
            count += 1
    loss = total / count
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    return float(loss.detach()), norm


@pytest.mark.parametrize(
    "layout",
    [{}, {"row_tokens": 17}, {"row_tokens": 64}, {"rows_per_pass": 3}],
    ids=["padded", "packed", "all in few rows", "several passes"],
)
async def test_every_layout_computes_the_same_step(make, policies, layout):
    batch = batch_of()
    loss, norm = reference_loss(policies[0], batch)
    metrics = await (await make(layout=layout)).step(batch)
    assert metrics.applied
    assert metrics.loss == pytest.approx(loss, rel=1e-4)
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert metrics.sequences_used == len(batch)
    assert 0 < metrics.entropy < math.log(32)


async def test_learning_raises_the_probability_of_what_was_rewarded(make):
    engine = await make(learning_rate=3e-3)
    good, bad = (7, 6), (9, 5)
    batch = [
        TrainingSequence(0, (2, 3), tokens, (0.0, 0.0), reward)  # ratios that never clip the good
        for tokens, reward in ((good, 1.0), (bad, 0.0))
    ]
    first = await engine.step(batch)
    for _ in range(20):
        last = await engine.step(batch)
    assert last.loss < first.loss
    assert await engine.evaluate([(2, 3)], 2) == [good]


@pytest.mark.parametrize(
    ("field", "poison"),
    [("reward", math.inf), ("reward", -math.inf), ("logprobs", (math.nan,) * 4)],
)
async def test_a_step_that_is_not_finite_changes_nothing(make, field, poison, tmp_path):
    engine = await make()
    before = await weights_of(engine, tmp_path / "before")
    batch = batch_of()
    batch[3] = replace(batch[3], **{field: poison})
    metrics = await engine.step(batch)
    assert not metrics.applied
    after = await weights_of(engine, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (await engine.step(batch_of())).applied


async def test_a_reward_that_is_not_a_number_drops_its_group(make):
    batch = batch_of()
    batch[3] = replace(batch[3], reward=math.nan)
    metrics = await (await make()).step(batch)
    assert metrics.applied
    assert metrics.sequences_used == len(batch) - 4


async def test_a_batch_that_teaches_nothing_is_not_applied(make):
    engine = await make()
    equal = [TrainingSequence(0, (2,), (5, 1), (-1.0, -1.0), 1.0)] * 4
    for batch in ([], equal):
        metrics = await engine.step(batch)
        assert not metrics.applied
        assert metrics.sequences_used == 0


async def test_a_step_is_bounded_by_the_learning_rate(make, policies, tmp_path):
    engine = await make(learning_rate=1e-3, warmup_steps=3)
    before = load_file(policies[0].path)
    await engine.step(batch_of())
    after = await weights_of(engine, tmp_path / "p")
    moved = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert moved == pytest.approx(1e-3 / 4, rel=1e-2)  # Adam's first step has the rate's size


async def test_entropy_bonus_keeps_the_distribution_wider(make):
    plain, wide = await make(), await make(entropy_coefficient=1.0)
    for _ in range(10):
        narrow_metrics, wide_metrics = await plain.step(batch_of()), await wide.step(batch_of())
    assert wide_metrics.entropy > narrow_metrics.entropy


async def test_a_policy_alone_starts_with_a_fresh_optimizer(make, policies, tmp_path):
    engine = await make()
    await engine.step(batch_of(1))
    await engine.load_policy(policies[0])
    fresh = await make()
    assert await engine.step(batch_of()) == await fresh.step(batch_of())
    assert await engine.write_policy(tmp_path / "a") == await fresh.write_policy(tmp_path / "b")


async def test_nothing_works_before_a_policy_is_loaded(tmp_path):
    engine = TorchTrainingEngine(model(), sampling(), grpo())
    with pytest.raises(RuntimeError, match="no policy"):
        await engine.step(batch_of())
    with pytest.raises(RuntimeError, match="no policy"):
        await engine.write_policy(tmp_path / "p")
    engine.close()


async def test_an_untouched_policy_is_written_with_its_own_digest(make, policies, tmp_path):
    engine = await make()
    assert await engine.write_policy(tmp_path / "p") == policies[0].digest
    assert await engine.evaluate([], 3) == []


async def test_bf16_policies_are_written_from_float32_weights(make, tmp_path):
    engine = await make("bf16")
    assert (await engine.step(batch_of())).applied
    weights = await weights_of(engine, tmp_path / "p")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
