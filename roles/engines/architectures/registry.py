"""Supported architectures, by Hugging Face's name.

* Granite (dense): Llama with four constant factors.
* Llama 1 to 3 and models of its shape: no biases unless the configuration sets them.
* Mistral without a window, as version 0.3: Llama without biases.
* OLMo 2: norms after attention and gated unit, and over all queries and all keys.
* Qwen2 and Qwen2.5: biases on queries, keys and values.
* Qwen3 (dense): per-head norms of queries and keys before rotation.
* SmolLM3: Llama with some layers that do not rotate (NoPE).
"""

from collections.abc import Mapping

from roles.engines.architectures.architecture import (
    Architecture,
    Config,
    Layer,
    Weights,
    key_heads,
    pack_layer,
    pack_plain,
)

GRANITE = Architecture(
    name="granite",
    prefix="Granite",
    computed=frozenset(
        {
            "attention_bias",
            "mlp_bias",
            "embedding_multiplier",
            "residual_multiplier",
            "attention_multiplier",
            "logits_scaling",
        }
    ),
    pack=pack_plain,
)


LLAMA = Architecture(
    name="llama",
    prefix="Llama",
    computed=frozenset({"attention_bias", "mlp_bias"}),
    pack=pack_plain,
)


MISTRAL = Architecture(
    name="mistral",
    prefix="Mistral",
    computed=frozenset({"sliding_window"}),
    pack=pack_plain,
)


OLMO2 = Architecture(
    name="olmo2",
    prefix="Olmo2",
    computed=frozenset({"attention_bias"}),
    pack=pack_plain,
    norms_in_float32=True,
)


QWEN2 = Architecture(
    name="qwen2",
    prefix="Qwen2",
    computed=frozenset(
        {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
    ),
    pack=pack_plain,
)


def _pack(weights: Weights, config: Config) -> Layer:
    counts = {"q": config.num_attention_heads, "k": key_heads(config)}
    norms = {
        (name := f"self_attn.{part}_norm.weight"): weights[name].expand(count, 1, -1)
        for part, count in counts.items()
    }
    return pack_layer(weights, norms)


QWEN3 = Architecture(
    name="qwen3",
    prefix="Qwen3",
    computed=QWEN2.computed | {"attention_bias"},
    pack=_pack,
)


SMOLLM3 = Architecture(
    name="smollm3",
    prefix="SmolLM3",
    computed=frozenset(
        {
            "attention_bias",
            "mlp_bias",
            "no_rope_layers",
            "no_rope_layer_interval",
            "use_sliding_window",
            "sliding_window",
            "layer_types",
        }
    ),
    pack=pack_plain,
)


ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name: architecture
    for architecture in (QWEN2, QWEN3, LLAMA, MISTRAL, SMOLLM3, GRANITE, OLMO2)
}


def architecture_of(name: str) -> Architecture:
    """Return an architecture; the ``ValueError`` for an unknown one lists those supported."""
    if name not in ARCHITECTURES:
        raise ValueError(f"architecture {name!r} is not supported, only {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
