"""Every architecture, from a Hugging Face directory to generation, verification and training.

The directories are made here by Hugging Face; its own forward pass is the reference.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from protocol.core.types import Version
from protocol.rollout.statistics import compared_extremes
from protocol.run.recipe import ModelSection
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.registry import ARCHITECTURES
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.training.batch import select
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import GenerationRequest, Policy, VerificationRequest
from tests.roles.engines import tiny
from tests.roles.engines.tiny import grpo, sampling, toploc
from tests.roles.engines.training.batches import batch_of

SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GRANITE = {
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.1,
    "logits_scaling": 1.7,
}


@dataclass(frozen=True)
class Case:
    name: str
    architecture: str
    config: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    shard_bytes: int = 1 << 30


CASES = [
    Case("qwen2", "qwen2", {"tie_word_embeddings": True}),
    Case("qwen2-wide-heads-yarn", "qwen2", {"head_dim": 24, "rope_parameters": YARN}),
    Case("qwen3-sharded", "qwen3", {"head_dim": 32}, shard_bytes=30_000),
    Case(
        "qwen3-tied-biases-yarn",
        "qwen3",
        {
            "tie_word_embeddings": True,
            "head_dim": 8,
            "attention_bias": True,
            "rope_parameters": YARN | {"attention_factor": 1.3, "rope_theta": 500_000.0},
        },
        dtype=torch.bfloat16,
    ),
    Case(
        "llama3-biases-sharded",
        "llama",
        {"head_dim": 24, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
        shard_bytes=30_000,
    ),
    Case(
        "llama-tied-linear",
        "llama",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": None,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0},
        },
        dtype=torch.float16,
    ),
    Case("mistral-wide-heads", "mistral", {"head_dim": 24, "sliding_window": None}),
    Case("mistral-window-of-all-positions", "mistral", {"sliding_window": 128}),
    Case(
        "smollm3-tied-biases",
        "smollm3",
        {"no_rope_layers": [0, 1], "attention_bias": True, "mlp_bias": True},
    ),
    Case(
        "granite-tied-biases",
        "granite",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, **GRANITE},
    ),
    Case("olmo2", "olmo2", {"rope_theta": 500_000.0}),
    Case(
        "olmo2-all-heads-biases",
        "olmo2",
        {"attention_bias": True, "num_key_value_heads": None, "head_dim": 24},
        dtype=torch.bfloat16,
    ),
]


@dataclass(frozen=True)
class Published:
    """A directory, its Hugging Face model, and the imported one."""

    directory: object
    model: torch.nn.Module
    section: ModelSection
    policy: Policy

    @torch.no_grad()
    def logprobs(self, prompt, tokens):
        """Return the log-probabilities of ``tokens`` by one forward pass of Hugging Face."""
        logits = self.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def publish(case, directory):
    """Save a model in which every weight differs from its initial value."""
    torch.manual_seed(0)
    made = ARCHITECTURES[case.architecture]
    tokens = {"eos_token_id": 1, "pad_token_id": None, "bos_token_id": None}
    config = made.config(**deepcopy(SIZES | tokens | case.config))  # it modifies them
    model = made.model(config).to(case.dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.generation_config.eos_token_id = [1, 7, 30]
    model.save_pretrained(directory, max_shard_size=case.shard_bytes)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def published(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.name)
    publish(request.param, folder / "hf")
    path = folder / "policy"
    policy = Policy(Version(0), import_pretrained(folder / "hf", path, "fp32"), path)
    model = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    return Published(folder / "hf", model, section_of(folder / "hf", tiny.model("fp32")), policy)


async def generated(published, count=12, tokens_max=24, precision="fp32"):
    engine = TransformersGenerationEngine(published.section, toploc(precision))
    await engine.load(published.policy)
    requests = [
        GenerationRequest(tuple(2 + (i + j) % 5 for j in range(3 + i % 3 * 20)), 31 * i, tokens_max)
        for i in range(count)
    ]
    generations = await engine.generate(requests, 1.0)
    engine.close()
    return list(zip(requests, generations, strict=True))


async def test_generation_equals_hugging_face(published):
    for request, own in await generated(published):
        expected = published.logprobs(request.prompt, own.tokens)
        torch.testing.assert_close(torch.tensor(own.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefill_rounds_where_hugging_face_rounds(published, dtype):
    """Nearly all states are equal to the last bit; another order of rounding changes most."""
    config = configuration(published.section.architecture, published.section.config)
    tokens = [2 + place * 7 % 30 for place in range(40)]
    (ours,) = Decoder(config, load_file(published.policy.path), dtype).states([tokens])
    model = AutoModelForCausalLM.from_pretrained(published.directory, dtype=dtype)
    with torch.inference_mode():
        theirs = model.model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    if dtype == torch.bfloat16:
        assert (ours == theirs).float().mean() > 0.9
    else:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


async def test_every_end_token_ends_a_sequence(published):
    assert published.section.end_tokens == (1, 7, 30)
    ends = []
    for request, own in await generated(published, count=64):
        assert not set(own.tokens[:-1]) & {1, 7, 30}
        assert own.tokens[-1] in {1, 7, 30} or len(own.tokens) == request.tokens_max
        ends.append(own.tokens[-1])
    assert len(set(ends) & {1, 7, 30}) >= 2


async def verified(published, precision):
    claims = [
        VerificationRequest(request.prompt, request.seed, own.tokens, own.logprobs, own.proofs)
        for request, own in await generated(published, precision=precision)
    ]
    engine = TransformersVerificationEngine(published.section, toploc(precision))
    await engine.load(published.policy)
    measured = await engine.measure(Version(0), claims, 1.0)
    engine.close()
    assert all(one.proof_fault is None for one in measured)
    return [one.extremes for one in measured]


async def test_honest_work_passes_its_verification(published):
    for extremes in await verified(published, "fp32"):
        assert not any(limit.outside for limit in compared_extremes(toploc(), extremes))


async def test_honest_work_in_bf16_is_near_its_verification(published):
    for mismatches, mantissa, *_ in await verified(published, "bf16"):
        assert mismatches <= 4  # of 16; measured: 2
        assert mantissa <= 4  # measured: 1.5


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_it_is_trained_in_packed_rows(published, dtype, tmp_path):
    section = published.section.model_copy(update={"dtype": dtype})
    engine = TorchTrainingEngine(section, sampling(temperature=1.0), grpo())
    await engine.load_policy(published.policy)
    batch = batch_of()
    known = await engine.recompute(published.policy, batch)
    if dtype == "fp32":
        for one in known:
            expected = published.logprobs(one.prompt, one.tokens)
            torch.testing.assert_close(torch.tensor(one.logprobs), expected, atol=1e-5, rtol=0)
    metrics = await engine.step(known)
    before = published.policy.digest
    after = await engine.write_policy(tmp_path / "p")
    evaluated = await engine.evaluate([(2, 3)], 4)
    engine.close()
    assert metrics.updates == 1 and metrics.gradient_norm > 0
    assert after != before
    assert len(evaluated) == 1


async def test_a_step_is_that_of_hugging_face_and_adamw(published):
    """Gradients and updates of every tensor, against sequences computed one by one."""
    rules = grpo(loss={"entropy_coefficient": 0.0})
    engine = TorchTrainingEngine(published.section, sampling(temperature=0.8), rules)
    await engine.load_policy(published.policy)
    batch = await engine.recompute(published.policy, batch_of())
    await engine.begin_step(batch)
    model = engine._learner.model.causal
    ours = {name: one.grad.clone() for name, one in model.named_parameters()}
    await engine.end_step()
    stepped = {name: one.detach().clone() for name, one in model.named_parameters()}
    engine.close()

    plain = AutoModelForCausalLM.from_pretrained(published.directory, dtype=torch.float32)
    before = {name: one.detach().clone() for name, one in plain.named_parameters()}
    optimizer = torch.optim.AdamW(
        plain.parameters(),
        lr=rules.learning_rate / (rules.warmup_steps + 1),
        betas=rules.adam_betas,
        weight_decay=rules.weight_decay,
    )
    samples = select(batch)
    tokens = sum(len(one.tokens) for one in samples)
    for one in samples:
        logits = plain(input_ids=torch.tensor([[*one.prompt, *one.tokens]])).logits[0] / 0.8
        rows = logits[len(one.prompt) - 1 : -1].log_softmax(-1)
        logprobs = rows.gather(1, torch.tensor(one.tokens)[:, None])
        (-one.advantage * logprobs.sum() / tokens).backward()  # each ratio is one
    theirs = {name: one.grad.clone() for name, one in plain.named_parameters()}
    torch.nn.utils.clip_grad_norm_(plain.parameters(), rules.gradient_clip)
    optimizer.step()

    assert ours.keys() == theirs.keys()
    whole = sum(float(one.norm()) for one in theirs.values())
    for name, parameter in plain.named_parameters():
        assert (ours[name] - theirs[name]).norm() <= 1e-4 * theirs[name].norm() + 1e-6, name
        if theirs[name].norm() < 1e-6 * whole:
            continue  # a bias of unrotated keys changes no score: its gradient is rounding
        moved, expected = stepped[name] - before[name], parameter.detach() - before[name]
        # The first step of AdamW follows the sign of a gradient, also of one that is rounding.
        assert (moved - expected).abs().mean() <= 0.02 * expected.abs().mean(), name


def test_the_section_names_all_that_is_computed(published):
    """No manifest depends on a default of a library version."""
    config = configuration(published.section.architecture, published.section.config)
    reference = published.model.config
    for key in published.section.config:
        own, theirs = getattr(config, key), getattr(reference, key)
        assert own == theirs or key in {"eos_token_id", "sliding_window"}
    assert published.section.config["rms_norm_eps"] == reference.rms_norm_eps


def test_the_protocol_names_what_the_engines_compute():
    assert get_args(ModelSection.model_fields["architecture"].annotation) == tuple(ARCHITECTURES)
