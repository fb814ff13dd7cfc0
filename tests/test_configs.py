from pathlib import Path

import pytest

from protocol.rollout.statistics import bound
from protocol.run.recipe import Recipe
from protocol.run.toml import load_recipe

RUNS = Path(__file__).parents[1] / "configs" / "runs"


def recipe(name: str) -> Recipe:
    return load_recipe((RUNS / f"{name}.toml").read_text())


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads(path):
    load_recipe(path.read_text())


def test_intellect2_is_the_published_recipe():
    run = recipe("intellect2")
    config = run.model.config
    assert run.model.name == "Qwen/QwQ-32B"
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [config[size] for size in sizes] == [5120, 64, 40, 8]
    assert (config["intermediate_size"], config["vocab_size"]) == (27_648, 152_064)
    assert (run.sampling.group_size, run.sampling.temperature) == (16, 0.6)
    assert run.sampling.length_targets == (2000, 4000, 6000, 8000, 10_000)
    assert run.sampling.length_penalty == 0.0003
    assert (run.grpo.loss.epsilon, run.grpo.loss.delta, run.grpo.learning_rate) == (0.2, 4.0, 3e-7)
    assert run.grpo.async_level == 2
    prompts_per_step = run.grpo.rollouts_per_step * run.sampling.prompts_per_rollout
    assert prompts_per_step * run.sampling.group_size == 4096
    assert 4096 / run.grpo.updates_per_version == 512
    assert run.grpo.refill_max > 0, "groups without an advantage do not shrink a batch"
    assert run.toploc.precision == run.model.dtype == "bf16"
    assert (run.toploc.chunk_tokens, run.toploc.top_k) == (32, 128)


def test_intellect2_has_the_parameters_of_its_model():
    config = recipe("intellect2").model.config
    hidden, layers, inner = (
        int(config[size]) for size in ("hidden_size", "num_hidden_layers", "intermediate_size")
    )
    key_values = int(config["num_key_value_heads"]) * hidden // int(config["num_attention_heads"])
    attention = 2 * hidden * hidden + 2 * hidden * key_values + hidden + 2 * key_values
    layer = attention + 3 * hidden * inner + 2 * hidden
    total = 2 * int(config["vocab_size"]) * hidden + layers * layer + hidden
    assert round(total / 1e9, 1) == 32.8


def test_the_testnet_proves_in_fp32_and_separates_one_small_step():
    run = recipe("testnet")
    assert run.toploc.precision == run.model.dtype == "fp32"
    # Honest proofs stay under 3, a policy one step of rate 1e-7 away has 39 and more.
    chunks, honest = 64, run.toploc.honest.mantissa_error
    allowed = bound(honest, chunks, run.toploc.false_reject_rate / 9) / chunks
    assert 3 < allowed < honest.clip < 39
    assert run.model.config["tie_word_embeddings"] is False
    assert run.council.recovery_epochs < run.committee.expire_after_epochs, (
        "one validator of three may be killed: its removal comes before rollouts expire"
    )
    assert run.epochs.seconds <= 2
