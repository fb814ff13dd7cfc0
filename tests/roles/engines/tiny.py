"""Manifest sections of a tiny run; keyword arguments replace single values."""

from pathlib import Path

from protocol.run.recipe import GrpoSection, ModelSection, SamplingSection, ToplocSection
from protocol.run.toml import load_recipe

CONFIG = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,  # wide, so that an untrained model has peaked outputs
    "eos_token_id": 1,
}

RECIPE = load_recipe(
    (Path(__file__).parents[3] / "configs" / "runs" / "testnet.toml").read_text()
).model_dump()


def model(dtype="fp32", **config) -> ModelSection:
    return ModelSection(**RECIPE["model"] | {"dtype": dtype, "config": CONFIG | config})


def toploc(precision="fp32", **values) -> ToplocSection:
    # A quarter of the hidden size. Of all values of a one-token sequence some are near zero; there
    # the same absolute error is thousands of mantissa units.
    layout = {"precision": precision, "top_k": 16, "chunk_tokens": 8}
    return ToplocSection(**RECIPE["toploc"] | layout | values)


def sampling(**values) -> SamplingSection:
    return SamplingSection(**RECIPE["sampling"] | values)


def grpo(loss=None, **values) -> GrpoSection:
    changed = {"learning_rate": 1e-3, "loss": RECIPE["grpo"]["loss"] | (loss or {})}
    return GrpoSection(**RECIPE["grpo"] | changed | values)
