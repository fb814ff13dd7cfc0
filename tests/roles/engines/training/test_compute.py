"""A bf16 trainer computes as validators do, and adds up its gradients in float32."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from protocol.core.types import Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.files.policy import write_policy
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, claims_of
from tests.roles.engines.tiny import grpo, model, sampling, toploc
from tests.roles.engines.training.batches import batch_of

TEMPERATURE = 0.7
LENGTHS = (3, 20, 40, 33)
WIDE = {"vocab_size": 3000, "max_position_embeddings": 256}
"""A vocabulary of more than one block of the output layer."""


@pytest.fixture
def closing():
    engines = []
    yield lambda engine: engines.append(engine) or engine
    for engine in engines:
        engine.close()


def founded(section, path):
    torch.manual_seed(0)
    network = build_model(configuration("qwen2", section.config), torch.float32, "cpu")
    return Policy(Version(0), write_policy(tensors_of(network), path, torch.bfloat16), path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", ["fp32", "model"])
async def test_a_trainer_has_the_log_probabilities_of_validators(closing, tmp_path, head, tied):
    """Alone in a prefill a sequence is not padded, and packing has no padding."""
    section = model("bf16", **WIDE, tie_word_embeddings=tied).model_copy(update={"head": head})
    policy, rules = founded(section, tmp_path / "policy"), toploc("bf16")
    worker = closing(TransformersGenerationEngine(section, rules))
    validator = closing(TransformersVerificationEngine(section, rules, batch_tokens_max=1))
    trainer = closing(
        TorchTrainingEngine(section, sampling(temperature=TEMPERATURE), grpo(), pass_tokens=100)
    )
    await worker.load(policy)
    await validator.load(policy)
    await trainer.load_policy(policy)
    requests = [
        GenerationRequest((2, 3, 4 + number // 2), number, length)
        for number, length in enumerate(LENGTHS)
    ]
    claims = claims_of(requests, await worker.generate(requests, TEMPERATURE))
    verified = await validator.recompute(Version(0), claims, TEMPERATURE)
    batch = [
        TrainingSequence(number // 2, one.prompt, one.tokens, one.logprobs, number % 2)
        for number, one in enumerate(claims)
    ]
    recomputed = await trainer.recompute(policy, batch)
    assert [list(one.logprobs) for one in recomputed] == [one.logprobs for one in verified]
    assert [one.claimed for one in recomputed] == [one.logprobs for one in batch]
    metrics = await trainer.step(recomputed)
    assert metrics.engine_mismatch == metrics.mismatch
    assert metrics.engine_mismatch.mean == pytest.approx(
        sum(
            abs(own - claim)
            for one, found in zip(claims, verified, strict=True)
            for own, claim in zip(found.logprobs, one.logprobs, strict=True)
        )
        / sum(len(one.tokens) for one in claims),
        rel=1e-4,
    )


class OpenEngine(TorchTrainingEngine):
    """Shows its model and masters."""

    def loaded(self):
        return self._loaded()


async def trained(closing, policy, dtype, batch, **layout):
    engine = closing(OpenEngine(model(dtype), sampling(), grpo(), **layout))
    await engine.load_policy(policy)
    await engine.begin_step(await engine.recompute(policy, batch))
    loaded = engine.loaded()
    return loaded, torch.cat([one.grad.flatten() for one in loaded.masters.values()])


async def test_gradients_add_up_in_float32_as_those_of_a_float32_model(closing, tmp_path):
    policy = founded(model("bf16"), tmp_path / "policy")
    names = list(load_file(policy.path))
    _, reference = await trained(closing, policy, "fp32", batch_of(groups=16))
    for layout in ({}, {"pass_tokens": 6}, {"checkpointing": True}):
        loaded, found = await trained(closing, policy, "bf16", batch_of(groups=16), **layout)
        assert sorted(loaded.masters) == sorted(names)
        assert {one.grad.dtype for one in loaded.masters.values()} == {torch.float32}
        assert all(one.grad is None for one in loaded.model.parameters())
        ordered = torch.cat(
            [
                loaded.masters[name].grad.flatten()
                for name, _ in loaded.model.causal.named_parameters()
            ]
        )
        assert float(torch.cosine_similarity(ordered, reference, dim=0)) > 0.998
        assert float(found.norm() / reference.norm()) == pytest.approx(1, abs=0.01)


async def test_a_frequent_token_keeps_its_embeddings_gradient(closing, tmp_path):
    """In bf16 a sum of many equal terms stops growing at 256 of them."""
    policy = founded(model("bf16"), tmp_path / "policy")
    batch = [replace(one, prompt=(2,) * 100, tokens=one.tokens[:1]) for one in batch_of(groups=16)]
    batch = [replace(one, logprobs=one.logprobs[:1]) for one in batch]
    found, reference = [
        (await trained(closing, policy, dtype, batch))[0]
        .masters["model.embed_tokens.weight"]
        .grad[2]
        for dtype in ("bf16", "fp32")
    ]
    assert float((found - reference).norm() / reference.norm()) < 0.02


async def test_the_decoder_holds_bf16_weights(closing, tmp_path):
    policy = founded(model("bf16"), tmp_path / "policy")
    loaded, _ = await trained(closing, policy, "bf16", batch_of())
    widths = {name: one.dtype for name, one in loaded.model.causal.named_parameters()}
    wide = {"model.embed_tokens.weight", "lm_head.weight"}
    assert {name for name, dtype in widths.items() if dtype != torch.bfloat16} == wide
