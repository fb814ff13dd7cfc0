"""The testnet's recipe learns from policies two steps old, in one process without a network."""

from itertools import count

import pytest

from protocol.core.rng import Rng
from protocol.core.types import Version
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.training.engine import TorchTrainingEngine
from roles.environments.base import environment, solved
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, VerificationRequest
from tests.roles.engines.tiny import grpo, model, sampling, toploc

MODEL = model(hidden_size=256, intermediate_size=512, initializer_range=0.05)
TOPLOC = toploc(top_k=64, chunk_tokens=32)
LAG, STEPS, PROMPTS, GROUP = 2, 45, 16, 16


@pytest.mark.long
async def test_asynchronous_grpo_learns_addition(tmp_path):
    task = solved(environment("arithmetic"))
    made = cold_start(task, MODEL, 0, tmp_path / "0")
    policies = [Policy(Version(0), made.digest, tmp_path / "0")]
    generator = TransformersGenerationEngine(MODEL, TOPLOC)
    verifier = TransformersVerificationEngine(MODEL, TOPLOC)
    trainer = TorchTrainingEngine(MODEL, sampling(), grpo(learning_rate=2e-4))
    await trainer.load_policy(policies[0])
    draws, rewards = Rng(b"learning"), []
    for version in range(1, STEPS + 1):
        stale = policies[max(0, len(policies) - 1 - LAG)]
        problems = [seed for _ in range(PROMPTS) for seed in [draws.bits64()] * GROUP]
        requests = [GenerationRequest(task.prompt(s, None), draws.bits64(), 8) for s in problems]
        await generator.load(stale)
        generations = await generator.generate(requests, 1.0)
        batch = [
            TrainingSequence(n // GROUP, r.prompt, g.tokens, g.logprobs, task.score(s, g.tokens))
            for n, s, r, g in zip(count(), problems, requests, generations, strict=False)
        ]
        if version % 10 == 0:
            await verifier.load(stale)
            claims = [
                VerificationRequest(r.prompt, r.seed, g.tokens, g.logprobs, g.proofs)
                for r, g in zip(requests, generations, strict=True)
            ]
            for measured in await verifier.measure(stale.version, claims, 1.0):
                assert measured.proof_fault is None
                assert measured.extremes.mantissa_error_mean_max < 16
                assert max(measured.extremes[-2:]) < 1e-4
        rewards.append(sum(one.reward for one in batch) / len(batch))
        assert (await trainer.step(batch)).updates
        digest = await trainer.write_policy(tmp_path / str(version))
        policies.append(Policy(Version(version), digest, tmp_path / str(version)))
    for engine in (generator, verifier, trainer):
        engine.close()
    assert sum(rewards[:3]) / 3 < 0.45
    assert sum(rewards[-5:]) / 5 > 0.75
