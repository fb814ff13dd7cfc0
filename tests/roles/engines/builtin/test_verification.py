import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from protocol.core.types import Version
from protocol.rollout.statistics import STATISTICS
from protocol.rollout.witness import WitnessPoint
from protocol.toploc.sampling import gumbel_noise
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model
from roles.engines.builtin import verification
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.files.policy import write_policy
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, VerificationRequest
from tests.roles.engines.tiny import CONFIG, grpo, model, sampling, toploc

LEARNING_RATE = 2e-4  # as in the testnet


def claims(requests, generations):
    return [
        VerificationRequest(r.prompt, r.seed, g.tokens, g.logprobs, g.proofs)
        for r, g in zip(requests, generations, strict=True)
    ]


async def honest_claims(policy, temperature=1.0, precision="fp32"):
    generator = TransformersGenerationEngine(model(), toploc(precision))
    await generator.load(policy)
    lengths = (3, 4, 9)
    requests = [
        GenerationRequest(tuple(2 + (i + j) % 9 for j in range(lengths[i % 3])), 7919 * i, 20)
        for i in range(24)
    ]
    generations = await generator.generate(requests, temperature)
    generator.close()
    return claims(requests, generations)


@pytest.fixture
async def verifier(policies):
    made = TransformersVerificationEngine(model(), toploc())
    for policy in policies:
        await made.load(policy)
    yield made
    made.close()


def worst(measurements):
    """Return maximum exponent mismatches, mantissa mean, log-probability error, sampling gap."""
    assert all(m.proof_fault is None for m in measurements)
    mismatches, mantissa, _, logprob, gap = map(
        max, zip(*(m.extremes for m in measurements), strict=True)
    )
    return mismatches, mantissa, logprob, gap


def all_chunks_reach_the_clip(measurement, name):
    clip = getattr(toploc().honest, name).clip
    return measurement.sums.means[STATISTICS.index(name)] == pytest.approx(clip)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
async def test_honest_work_passes_with_a_margin(policies, verifier, temperature):
    claimed = await honest_claims(policies[0], temperature)
    measured = await verifier.measure(Version(0), claimed, temperature)
    mismatches, mantissa, logprob, gap = worst(measured)
    assert mismatches == 0
    assert mantissa < 8  # limit 32
    assert logprob < 2e-5  # limit 1e-3
    assert gap < 2e-5  # limit 1e-3
    for claim, measurement in zip(claimed, measured, strict=True):
        assert measurement.sums.tokens == len(claim.tokens)
        assert measurement.sums.chunks == -(-len(claim.tokens) // 8)


async def test_honest_bf16_work_passes_published_thresholds(policies):
    claimed = await honest_claims(policies[0], precision="bf16")
    verifier = TransformersVerificationEngine(model(), toploc("bf16"))
    await verifier.load(policies[0])
    mismatches, mantissa, _, _ = worst(await verifier.measure(Version(0), claimed, 1.0))
    verifier.close()
    assert mismatches <= 16
    assert mantissa <= 4


async def test_other_weights_are_separated(policies, verifier):
    claimed = await honest_claims(policies[0])
    for measurement in await verifier.measure(Version(1), claimed, 1.0):
        assert all_chunks_reach_the_clip(measurement, "exponent_mismatches")
        assert measurement.extremes.logprob_error_max > 1e-2


async def test_one_stale_step_is_separated(policies, verifier, tmp_path):
    claimed = await honest_claims(policies[0])
    trainer = TorchTrainingEngine(model(), sampling(), grpo(learning_rate=LEARNING_RATE))
    await trainer.load_policy(policies[0])
    batch = [
        TrainingSequence(i // 8, c.prompt, c.tokens, c.logprobs, float(i % 2))
        for i, c in enumerate(claimed)
    ]
    assert (await trainer.step(batch)).updates
    digest = await trainer.write_policy(tmp_path / "next")
    trainer.close()
    await verifier.load(Policy(Version(2), digest, tmp_path / "next"))
    for measurement in await verifier.measure(Version(2), claimed, 1.0):
        assert all_chunks_reach_the_clip(measurement, "mantissa_error")


async def test_an_edited_token_is_separated(policies, verifier):
    for claim in (await honest_claims(policies[0]))[:6]:
        for place in range(len(claim.tokens)):
            edited = list(claim.tokens)
            edited[place] = 2 + (edited[place] + 1) % 20
            measured = await verifier.measure(
                Version(0), [replace(claim, tokens=tuple(edited))], 1.0
            )
            assert measured[0].extremes.sampling_gap_max > 1e-3


def scores_of(policy, claim, temperature):
    """Return the scores from which a claim's tokens were sampled, one token at a time."""
    model = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    model.load_state_dict(load_file(policy.path))
    states = model(input_ids=torch.tensor([claim.prompt + claim.tokens])).logits[0].detach()
    first, seed = len(claim.prompt) - 1, np.array([claim.seed], dtype=np.uint64)
    return [
        states[first + place].double() / temperature
        + torch.from_numpy(gumbel_noise(seed, place, CONFIG["vocab_size"]))[0]
        for place in range(len(claim.tokens))
    ]


async def test_the_sampling_gap_is_that_of_the_worst_token(policies, verifier):
    claim = next(c for c in await honest_claims(policies[0], 0.7) if len(c.tokens) == 20)
    edited = replace(claim, tokens=(*claim.tokens[:-1], 2 + claim.tokens[-1] % 20))
    last = scores_of(policies[0], edited, 0.7)[-1]
    expected = float(last.max() - last[edited.tokens[-1]])
    assert expected > 0.1
    (measured,) = await verifier.measure(Version(0), [edited], 0.7)
    assert measured.extremes.sampling_gap_max == pytest.approx(expected, abs=1e-4)


async def test_another_seed_is_separated(policies, verifier):
    claimed = await honest_claims(policies[0])
    measured = await verifier.measure(
        Version(0), [replace(claim, seed=claim.seed + 1) for claim in claimed], 1.0
    )
    assert sum(m.extremes.sampling_gap_max > 1e-3 for m in measured) >= len(claimed) - 1
    assert all(m.extremes.logprob_error_max < 2e-5 for m in measured)


async def test_another_temperature_is_separated(policies, verifier):
    claimed = await honest_claims(policies[0], temperature=0.5)
    measured = await verifier.measure(Version(0), claimed, 1.0)
    assert sum(m.extremes.logprob_error_max > 1e-3 for m in measured) >= len(claimed) - 1


async def test_proofs_of_another_sequence_are_separated(policies, verifier):
    claimed = [c for c in await honest_claims(policies[0]) if len(c.tokens) == 20]
    assert len(claimed) >= 2
    forged = replace(claimed[0], proofs=claimed[1].proofs)
    measured = await verifier.measure(Version(0), [forged], 1.0)
    assert all_chunks_reach_the_clip(measured[0], "exponent_mismatches")


async def test_forged_log_probabilities_are_separated(policies, verifier):
    claim = (await honest_claims(policies[0]))[0]
    for lie in (claim.logprobs[-1] + 2e-3, 0.0, -1e300, math.nan, math.inf):
        forged = replace(claim, logprobs=(*claim.logprobs[:-1], lie))
        measured = await verifier.measure(Version(0), [forged], 1.0)
        assert measured[0].extremes.logprob_error_max > 1e-3


async def test_requests_that_cannot_be_computed_are_faults(policies, verifier):
    claim, good = (await honest_claims(policies[0]))[:2]
    bad = [
        replace(claim, tokens=(), logprobs=(), proofs=()),
        replace(claim, prompt=()),
        replace(claim, logprobs=claim.logprobs[:-1]),
        replace(claim, tokens=(32, *claim.tokens[1:])),
        replace(claim, tokens=(-1, *claim.tokens[1:])),
        replace(claim, proofs=claim.proofs[:-1]),
        replace(claim, proofs=(b"", *claim.proofs[1:])),
        replace(claim, proofs=tuple(bytes(len(proof)) for proof in claim.proofs)),
    ]
    measured = await verifier.measure(Version(0), [*bad[:4], good, *bad[4:]], 1.0)
    assert measured.pop(4).proof_fault is None
    for measurement in measured:
        assert measurement.proof_fault
        assert measurement.sums.chunks == 0
        assert set(measurement.extremes) == {math.inf}


async def test_batches_do_not_change_the_result(policies, verifier):
    claimed = [
        replace(claim, logprobs=tuple(value - 0.01 * place for value in claim.logprobs))
        for place, claim in enumerate(await honest_claims(policies[0]))
    ]
    small = TransformersVerificationEngine(model(), toploc(), batch_tokens_max=50)
    await small.load(policies[0])
    expected = await verifier.measure(Version(0), claimed, 1.0)
    measured = await small.measure(Version(0), claimed, 1.0)
    small.close()
    for one, other in zip(measured, expected, strict=True):
        assert one.extremes.logprob_error_max == pytest.approx(
            other.extremes.logprob_error_max, abs=1e-5
        )
    assert worst(measured)[1] < 8


async def test_a_prefill_holds_no_more_tokens_than_it_may(policies):
    claimed = await honest_claims(policies[0])
    small = TransformersVerificationEngine(model(), toploc(), batch_tokens_max=50)
    await small.load(policies[0])
    prefills = []
    small._models[Version(0)].model.register_forward_pre_hook(
        lambda _module, _positional, named: prefills.append(tuple(named["input_ids"].shape)),
        with_kwargs=True,
    )
    await small.measure(Version(0), claimed, 1.0)
    small.close()
    assert sum(rows for rows, _ in prefills) == len(claimed)
    assert max(rows for rows, _ in prefills) > 1
    assert all(rows == 1 or rows * width <= 50 for rows, width in prefills)


async def test_blocks_of_scores_do_not_change_the_result(policies, verifier, monkeypatch):
    """The noise of a token depends on its position in its sequence, not on the block."""
    claimed = await honest_claims(policies[0])
    monkeypatch.setattr(verification, "SCORES_PER_BLOCK", 7 * CONFIG["vocab_size"])
    _, mantissa, logprob, gap = worst(await verifier.measure(Version(0), claimed, 1.0))
    assert mantissa < 8
    assert max(logprob, gap) < 2e-5


async def test_the_last_policies_are_kept(policies):
    verifier = TransformersVerificationEngine(model(), toploc(), policies_kept=2)
    for version in (0, 1, 0, 2):
        await verifier.load(replace(policies[0], version=Version(version)))
    for version in (0, 2):
        assert await verifier.measure(Version(version), [], 1.0) == []
    with pytest.raises(LookupError):
        await verifier.measure(Version(1), [], 1.0)
    with pytest.raises(ValueError, match="temperature"):
        await verifier.measure(Version(0), [], 0.0)
    verifier.close()


async def test_a_policy_of_another_digest_is_refused(policies, verifier):
    with pytest.raises(ValueError, match="does not hold the policy"):
        await verifier.load(replace(policies[0], digest=policies[1].digest))


async def test_a_policy_that_computes_nan_judges_nobody_honest(policies, verifier, tmp_path):
    tensors = load_file(policies[0].path)
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], math.nan)
    broken = Policy(Version(3), write_policy(tensors, tmp_path / "p"), tmp_path / "p")
    await verifier.load(broken)
    claimed = await honest_claims(policies[0])
    for measurement in await verifier.measure(Version(3), claimed, 1.0):
        assert measurement.proof_fault == "the policy's own states are not finite"


async def test_the_output_layer_is_covered(policies, verifier, tmp_path):
    """Proofs end before the output layer: an old one shows only in the log-probabilities."""
    tensors = load_file(policies[0].path)
    chance = torch.Generator().manual_seed(5)
    change = torch.randn(tensors["lm_head.weight"].shape, generator=chance)
    tensors["lm_head.weight"] += 0.01 * change
    other = Policy(Version(2), write_policy(tensors, tmp_path / "p"), tmp_path / "p")
    claimed = await honest_claims(policies[0])
    await verifier.load(other)
    measured = await verifier.measure(Version(2), claimed, 1.0)
    assert worst(measured)[1] < 8
    assert all(m.extremes.logprob_error_max > 1e-3 for m in measured)


def with_points(claims):
    """Return claims with two points each, at the ends of the sequences."""
    return [
        replace(
            claim,
            points=tuple(
                WitnessPoint(position, (claim.tokens[position] + 1 + number) % 32, 99 * number + 5)
                for number, position in enumerate((len(claim.tokens) - 1, 0))
            ),
        )
        for claim in claims
    ]


@pytest.mark.parametrize("temperature", [0.6, 1.0])
async def test_witness_values_are_those_of_a_plain_forward(policies, verifier, temperature):
    """Against the module of transformers alone, one sequence at a time."""
    claimed = with_points(await honest_claims(policies[0], temperature))
    network = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    network.load_state_dict(load_file(policies[0].path))
    measured = await verifier.measure(Version(0), claimed, temperature)
    for claim, measurement in zip(claimed, measured, strict=True):
        with torch.no_grad():
            logits = network(torch.tensor([claim.prompt + claim.tokens])).logits[0] / temperature
        assert len(measurement.witness) == len(claim.points)
        for point, value in zip(claim.points, measurement.witness, strict=True):
            row = logits[len(claim.prompt) - 1 + point.position]
            assert value.logprob == pytest.approx(row.log_softmax(-1)[point.token].item(), abs=1e-4)
            seeds = np.array([point.seed], dtype=np.uint64)
            noise = torch.from_numpy(gumbel_noise(seeds, point.position, 32)[0])
            assert value.replay == int((row + noise).argmax())


async def test_witness_values_do_not_change_what_is_measured(policies, verifier):
    claimed = await honest_claims(policies[0])
    plain = await verifier.measure(Version(0), claimed, 1.0)
    pointed = await verifier.measure(Version(0), with_points(claimed), 1.0)
    assert [replace(one, witness=()) for one in pointed] == plain
    assert all(one.witness == () for one in plain)


async def test_a_point_outside_of_its_sequence_is_a_fault(policies, verifier):
    claim = (await honest_claims(policies[0]))[0]
    outside = replace(claim, points=(WitnessPoint(len(claim.tokens), 3, 5),))
    (measured,) = await verifier.measure(Version(0), [outside], 1.0)
    assert "witness point" in measured.proof_fault
    assert measured.witness == ()
