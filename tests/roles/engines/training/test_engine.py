import asyncio
import math
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention

from protocol.core.types import Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import write_policy
from roles.engines.training import attention, builder
from roles.engines.training.batch import select
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import EngineError, Policy, TrainingSequence
from tests.roles.engines.tiny import CONFIG, grpo, model, sampling
from tests.roles.engines.training.batches import batch_of

pytestmark = pytest.mark.filterwarnings("error")


async def weights_of(engine, path):
    await engine.write_policy(path)
    return load_file(path)


def reference_loss(policy, batch, entropy_coefficient=0.0, **config):
    """Return loss and gradient norm, computed without any of the engine's code."""
    model = build_model(configuration("qwen2", CONFIG | config), torch.float32, "cpu")
    model.load_state_dict(load_file(policy.path), strict=False)
    loss = reference_backward(model, batch, entropy_coefficient=entropy_coefficient)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    return loss, norm


def reference_backward(model, batch, temperature=1.0, entropy_coefficient=0.0):
    """Set the gradient of the mean token loss, one sequence at a time; return the loss."""
    total, count = 0.0, 0
    for one in batch:
        rewards = torch.tensor([float(s.reward) for s in batch if s.group == one.group])
        advantage = (one.reward - rewards.mean()) / (rewards.std() + 1e-6)
        logits = model(input_ids=torch.tensor([one.prompt + one.tokens])).logits[0] / temperature
        for place, (token, behaviour) in enumerate(zip(one.tokens, one.logprobs, strict=True)):
            distribution = logits[len(one.prompt) - 1 + place].log_softmax(-1)
            ratio = (distribution[token] - behaviour).exp()
            near = ratio.clamp(0.8, 1.2)
            total = total - torch.minimum(ratio.clamp(max=4.0) * advantage, near * advantage)
            total = total + entropy_coefficient * (distribution.exp() * distribution).sum()
            count += 1
    loss = total / count
    loss.backward()
    return float(loss.detach())


def reference_weights(policy, batches, rate, decay, betas, epsilon, clip, temperature):
    """Return the weights after one AdamW step per batch, by the formulas of its paper.

    Loshchilov and Hutter 2019, algorithm 2; gradients are first clipped to a norm of ``clip``.
    """
    model = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    model.load_state_dict(load_file(policy.path))
    parameters = dict(model.named_parameters())
    first = {name: torch.zeros_like(p) for name, p in parameters.items()}
    second = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for step, batch in enumerate(batches, start=1):
        model.zero_grad()
        reference_backward(model, batch, temperature)
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters.values()))
        with torch.no_grad():
            for name, parameter in parameters.items():
                gradient = parameter.grad * min(1.0, clip / norm)
                first[name] = betas[0] * first[name] + (1 - betas[0]) * gradient
                second[name] = betas[1] * second[name] + (1 - betas[1]) * gradient**2
                mean = first[name] / (1 - betas[0] ** step)
                size = (second[name] / (1 - betas[1] ** step)).sqrt()
                parameter.sub_(rate * (mean / (size + epsilon) + decay * parameter))
    return {name: parameter.detach() for name, parameter in parameters.items()}


@pytest.mark.parametrize(
    "layout",
    [{}, {"pass_tokens": 1}, {"pass_tokens": 17}, {"checkpointing": True}],
    ids=["one pass", "a pass each", "several passes", "recomputed"],
)
async def test_every_layout_computes_the_same_step(make, policies, layout):
    batch = batch_of()
    loss, norm = reference_loss(policies[0], batch)
    metrics = await (await make(layout=layout)).step(batch)
    assert metrics.updates == 1
    assert metrics.loss == pytest.approx(loss, rel=1e-4)
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert metrics.sequences_used == len(batch)
    assert 0 < metrics.entropy < math.log(32)


async def test_an_output_layer_that_is_the_embedding_learns_as_both(tmp_path):
    section = model(tie_word_embeddings=True)
    torch.manual_seed(3)
    network = build_model(configuration("qwen2", section.config), torch.float32, "cpu")
    digest = write_policy(tensors_of(network), tmp_path / "policy")
    policy = Policy(Version(0), digest, tmp_path / "policy")
    engine = TorchTrainingEngine(section, sampling(), grpo())
    await engine.load_policy(policy)
    metrics = await engine.step(batch_of())
    loss, norm = reference_loss(policy, batch_of(), tie_word_embeddings=True)
    assert metrics.loss == pytest.approx(loss, rel=1e-4)
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)
    engine.close()


async def test_the_entropy_bonus_is_that_of_the_formula(make, policies):
    metrics = await (await make(loss={"entropy_coefficient": 0.5})).step(batch_of())
    loss, norm = reference_loss(policies[0], batch_of(), entropy_coefficient=0.5)
    assert metrics.loss == pytest.approx(loss, rel=1e-4)
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)


async def test_what_is_recomputed_is_computed_twice(make, monkeypatch):
    calls = []

    def counted(*heads, **options):
        calls.append(options)
        return scaled_dot_product_attention(*heads, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    counts = []
    for checkpointing in (False, None, True):
        calls.clear()
        await (await make(layout={"checkpointing": checkpointing})).step(batch_of())
        counts.append(len(calls))
    monkeypatch.setattr(builder, "_KEPT_BYTES_MAX", 1)
    calls.clear()
    await (await make()).step(batch_of())
    counts.append(len(calls))
    assert counts[0] > 0
    assert [count / counts[0] for count in counts] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("layers", "dtype", "tokens", "kept"),
    [
        (2, torch.float32, 16_384, 104_857),
        (200, torch.float32, 1_048, 1_048),  # 1 MB a token: passes of 1 GiB
        (200, torch.bfloat16, 2_097, 2_097),
        (2000, torch.float32, 16_384, 104),  # too few tokens: large passes, recomputed
    ],
)
def test_passes_have_as_many_tokens_as_keep_their_activations(layers, dtype, tokens, kept):
    config = configuration("qwen2", CONFIG | {"num_hidden_layers": layers})
    sizes = builder.PassSizes.of(config, dtype, "cpu", None, None)
    assert (sizes.tokens, sizes.kept_tokens_max) == (tokens, kept)
    assert builder.PassSizes.of(config, dtype, "cpu", 7, None).tokens == 7
    assert builder.PassSizes.of(config, dtype, "cpu", None, None, ranks=2).tokens == 16_384


async def test_steps_are_those_of_adamw_with_the_manifests_settings(make, policies, tmp_path):
    settings = {
        "weight_decay": 0.5,
        "adam_betas": (0.6, 0.8),
        "adam_epsilon": 1e-3,
        "gradient_clip": 0.5,
    }
    batches = [batch_of(seed) for seed in range(3)]
    engine = await make(temperature=0.7, **settings)
    for batch in batches:
        assert (await engine.step(batch)).gradient_norm > 0.5, "it is clipped"
    weights = await weights_of(engine, tmp_path / "policy")
    expected = reference_weights(policies[0], batches, 1e-3, 0.5, (0.6, 0.8), 1e-3, 0.5, 0.7)
    # With a gradient near zero, rounding decides its sign and Adam moves by the whole rate.
    errors = torch.cat([(weights[name] - expected[name]).abs().flatten() for name in expected])
    moved = 1e-3 * len(batches)
    assert float(errors.quantile(0.99)) < moved * 1e-3
    assert float(errors.mean()) < moved * 1e-3


async def test_updates_of_a_version_are_steps_on_parts_of_whole_groups(make, tmp_path):
    batch = batch_of(groups=5)
    several, single = await make(updates_per_version=2, warmup_steps=3), await make(warmup_steps=3)
    metrics = await several.step(batch)
    parts = [[one for one in batch if one.group % 2 == part] for part in (0, 1)]
    norms = [(await single.step(part)).gradient_norm for part in parts]
    assert (metrics.updates, metrics.sequences_used) == (2, len(batch))
    assert metrics.gradient_norm == max(norms)
    digests = [await one.write_policy(tmp_path / "p") for one in (several, single)]
    assert digests[0] == digests[1]


async def test_an_update_that_is_not_finite_leaves_the_others(make, tmp_path):
    batch = batch_of(groups=2)
    poisoned = [replace(batch[0], logprobs=(math.nan,) * len(batch[0].tokens)), *batch[1:]]
    several, single = await make(updates_per_version=2), await make()
    metrics = await several.step(poisoned)
    assert metrics.updates == 1
    await single.step([one for one in batch if one.group == 1])
    digests = [await one.write_policy(tmp_path / "p") for one in (several, single)]
    assert digests[0] == digests[1]


async def test_log_probabilities_are_recomputed_under_another_policy(make, policies):
    batch = batch_of()
    equal = [replace(one, group=9, reward=1.0) for one in batch[:3]]
    engine = await make(temperature=0.7, layout={"pass_tokens": 17})
    found = await engine.recompute(policies[1], [*equal, *batch])
    assert found[:3] == equal
    plain = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    plain.load_state_dict(load_file(policies[1].path))
    for claimed, own in zip(batch, found[3:], strict=True):
        logits = plain(input_ids=torch.tensor([claimed.prompt + claimed.tokens])).logits[0] / 0.7
        places = torch.arange(len(claimed.tokens)) + len(claimed.prompt) - 1
        expected = logits.log_softmax(-1)[places, list(claimed.tokens)].tolist()
        assert own.logprobs == pytest.approx(expected, abs=1e-5)
        assert own == replace(claimed, logprobs=own.logprobs, claimed=claimed.logprobs)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_without_staleness_every_ratio_is_exactly_one(make, dtype, tmp_path):
    """Both sides are computed alike; a worker's rounding would change every ratio."""
    engine = await make(dtype)
    path = tmp_path / "policy"
    policy = Policy(Version(0), await engine.write_policy(path), path)
    await engine.load_policy(policy)
    own = await engine.recompute(policy, batch_of())
    metrics = await engine.step(own)
    advantages = torch.cat([torch.full((len(s.tokens),), s.advantage) for s in select(own)])
    assert metrics.loss == pytest.approx(-float(advantages.mean()), abs=1e-7)
    assert metrics.clip_low_fraction == metrics.clip_high_fraction == 0
    assert metrics.kl == 0


async def test_clipped_tokens_and_the_divergence_are_counted_by_side(make, policies):
    """The first token of each sequence has a ratio of 8 or 1/8, the others have 1.

    The four sequences have rewards 0 and 1 in turn. The first is clipped above ``delta``, the
    second above ``1 + epsilon``, the third below ``1 - epsilon``, the fourth not.
    """
    engine = await make()
    own = await engine.recompute(policies[0], batch_of())
    log_ratios = cycle((math.log(8), math.log(8), -math.log(8), -math.log(8)))
    shifted = [
        replace(one, logprobs=(one.logprobs[0] - log_ratio, *one.logprobs[1:]))
        for one, log_ratio in zip(own, log_ratios, strict=False)
    ]
    metrics = await engine.step(shifted)
    tokens = sum(len(one.tokens) for one in own)
    assert metrics.clip_high_fraction == pytest.approx(len(own) / 2 / tokens)
    assert metrics.clip_low_fraction == pytest.approx(len(own) / 4 / tokens)
    kl = (8 - 1 - math.log(8) + 1 / 8 - 1 + math.log(8)) / 2 * len(own) / tokens
    assert metrics.kl == pytest.approx(kl, rel=1e-4)
    assert metrics.learning_rate == grpo().learning_rate


async def test_recomputing_changes_nothing_that_is_learned(make, policies, tmp_path):
    one, other = await make(), await make()
    for engine in (one, other):
        await engine.step(batch_of(1))
    assert await one.recompute(policies[1], batch_of(2)) != batch_of(2)
    for engine in (one, other):
        await engine.step(batch_of(3))
    digests = [await engine.write_policy(tmp_path / "p") for engine in (one, other)]
    assert digests[0] == digests[1]


async def test_a_policy_that_is_not_what_it_should_be_is_refused_and_nothing_lost(make, policies):
    engine = await make()
    damaged = replace(policies[1], digest=policies[0].digest)
    with pytest.raises(ValueError, match="does not hold the policy"):
        await engine.recompute(damaged, batch_of())
    assert (await engine.step(batch_of())).updates == 1


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
    assert metrics.updates == 0
    after = await weights_of(engine, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (await engine.step(batch_of())).updates


async def test_a_reward_that_is_not_a_number_drops_its_group(make):
    batch = batch_of()
    batch[3] = replace(batch[3], reward=math.nan)
    metrics = await (await make()).step(batch)
    assert metrics.updates == 1
    assert metrics.sequences_used == len(batch) - 4


async def test_a_batch_that_teaches_nothing_is_not_applied(make):
    engine = await make()
    equal = [TrainingSequence(0, (2,), (5, 1), (-1.0, -1.0), 1.0)] * 4
    for batch in ([], equal):
        metrics = await engine.step(batch)
        assert metrics.updates == 0
        assert metrics.sequences_used == 0


async def test_a_step_is_bounded_by_the_learning_rate(make, policies, tmp_path):
    engine = await make(learning_rate=1e-3, warmup_steps=3)
    before = load_file(policies[0].path)
    await engine.step(batch_of())
    after = await weights_of(engine, tmp_path / "p")
    moved = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert moved == pytest.approx(1e-3 / 4, rel=1e-2)  # Adam's first step has the size of the rate


async def test_entropy_bonus_keeps_the_distribution_wider(make):
    plain, wide = await make(), await make(loss={"entropy_coefficient": 1.0})
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
    assert (await engine.step(batch_of())).updates
    weights = await weights_of(engine, tmp_path / "p")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


async def test_a_step_that_begins_leaves_the_weights_to_be_written(make, tmp_path):
    engine, other = await make(), await make()
    before = await engine.policy_digest()
    await engine.save_state(tmp_path / "before")
    digest, _, _ = await asyncio.gather(
        engine.write_policy(tmp_path / "p"),
        engine.begin_step(batch_of()),
        engine.save_state(tmp_path / "beside"),
    )
    assert digest == before == await engine.policy_digest()
    assert (tmp_path / "beside").read_bytes() == (tmp_path / "before").read_bytes()
    assert await engine.end_step() == await other.step(batch_of())
    after = await engine.policy_digest()
    assert after == await other.policy_digest() == await engine.write_policy(tmp_path / "p")
    assert after != before


@pytest.mark.parametrize("updates", [1, 2])
async def test_a_step_is_ended_once(make, updates):
    engine = await make(updates_per_version=updates)
    with pytest.raises(EngineError, match="no step has begun"):
        await engine.end_step()
    await engine.begin_step(batch_of())
    assert (await engine.end_step()).updates == updates
    with pytest.raises(EngineError, match="no step has begun"):
        await engine.end_step()


@pytest.mark.parametrize("then", ["recompute", "load_policy"])
async def test_a_step_that_was_begun_is_forgotten_for_something_else(make, policies, then):
    engine = await make()
    await engine.begin_step(batch_of())
    if then == "recompute":
        await engine.recompute(policies[0], batch_of())
    else:
        await engine.load_policy(policies[0])
    before = await engine.policy_digest()
    with pytest.raises(EngineError, match="no step has begun"):
        await engine.end_step()
    assert await engine.policy_digest() == before


async def test_a_step_that_is_begun_twice_learns_from_the_second_batch(make):
    engine, other = await make(), await make()
    await engine.begin_step(batch_of(1))
    await engine.begin_step(batch_of(2))
    assert await engine.end_step() == await other.step(batch_of(2))
    assert await engine.policy_digest() == await other.policy_digest()
