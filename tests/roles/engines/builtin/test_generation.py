import pytest
import torch
from safetensors.torch import load_file

from roles.engines.architectures.configuration import configuration
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.ports.engines import GenerationRequest, Policy
from tests.roles.engines.tiny import model, toploc


@pytest.fixture
def engine():
    made = TransformersGenerationEngine(model(), toploc(), batch_sequences_max=8)
    yield made
    made.close()


def requests(count, tokens_max=12):
    return [GenerationRequest((2 + i % 9, 3, 4), 2**64 - 1 - i, tokens_max) for i in range(count)]


async def test_a_seed_repeats_its_sequence_in_any_company(engine, policies):
    await engine.load(policies[0])
    together = await engine.generate(requests(20), 1.0)
    alone = [(await engine.generate([request], 1.0))[0] for request in requests(20)]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert len({one.tokens for one in together}) > 10


async def test_every_sequence_has_its_log_probabilities_and_proofs(engine, policies):
    await engine.load(policies[0])
    for one in await engine.generate(requests(20), 1.0):
        assert 1 <= len(one.tokens) == len(one.logprobs) <= 12
        assert len(one.tokens) == 12 or one.tokens[-1] == 1
        assert len(one.proofs) == -(-len(one.tokens) // 8)
        assert all(len(proof) == 2 + 4 * 16 for proof in one.proofs)
        assert all(-50 < logprob <= 0 for logprob in one.logprobs)


async def test_sampling_draws_from_the_softmax(engine, policies, tiny_config):
    await engine.load(policies[0])
    draws = 4000
    sampled = await engine.generate(
        [GenerationRequest((5, 6), seed, 1) for seed in range(draws)], 2.0
    )
    decoder = Decoder(configuration("qwen2", tiny_config), load_file(policies[0].path))
    state = decode(decoder, [(5, 6)], [1], 1.0, lambda *_: None)[0].states
    expected = (state @ load_file(policies[0].path)["lm_head.weight"].T / 2.0).softmax(-1)[0]
    counts = torch.bincount(torch.tensor([one.tokens[0] for one in sampled]), minlength=32)
    deviations = (counts / draws - expected) / (expected * (1 - expected) / draws).sqrt()
    assert deviations.abs().max() < 4.5


async def test_a_refused_policy_leaves_the_old_one(engine, policies):
    await engine.load(policies[0])
    before = await engine.generate(requests(4), 1.0)
    with pytest.raises(ValueError, match="does not hold the policy"):
        await engine.load(Policy(policies[0].version, policies[1].digest, policies[0].path))
    assert await engine.generate(requests(4), 1.0) == before
    await engine.load(policies[1])
    assert await engine.generate(requests(4), 1.0) != before


async def test_impossible_requests_are_refused(engine, policies):
    with pytest.raises(RuntimeError, match="no policy"):
        await engine.generate(requests(1), 1.0)
    await engine.load(policies[0])
    assert await engine.generate([], 1.0) == []
    for request in (GenerationRequest((), 1, 4), GenerationRequest((2,), 1, 0)):
        with pytest.raises(ValueError, match="prompt"):
            await engine.generate([request], 1.0)
    with pytest.raises(ValueError, match="temperature"):
        await engine.generate(requests(1), 0.0)


async def test_bf16_engines_write_published_proofs(policies):
    engine = TransformersGenerationEngine(model(), toploc("bf16"))
    await engine.load(policies[0])
    one = (await engine.generate(requests(1), 1.0))[0]
    engine.close()
    assert all(len(proof) == 2 + 2 * 16 for proof in one.proofs)
