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

from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.models.granite.modeling_granite import GraniteRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding
from transformers.models.olmo2.modeling_olmo2 import Olmo2RotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

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
    config=GraniteConfig,
    model=GraniteForCausalLM,
    rotary=GraniteRotaryEmbedding,
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
    config=LlamaConfig,
    model=LlamaForCausalLM,
    rotary=LlamaRotaryEmbedding,
    computed=frozenset({"attention_bias", "mlp_bias"}),
    pack=pack_plain,
)


MISTRAL = Architecture(
    config=MistralConfig,
    model=MistralForCausalLM,
    rotary=MistralRotaryEmbedding,
    computed=frozenset({"sliding_window"}),
    pack=pack_plain,
)


OLMO2 = Architecture(
    config=Olmo2Config,
    model=Olmo2ForCausalLM,
    rotary=Olmo2RotaryEmbedding,
    computed=frozenset({"attention_bias"}),
    pack=pack_plain,
    norms_in_float32=True,
)


QWEN2 = Architecture(
    config=Qwen2Config,
    model=Qwen2ForCausalLM,
    rotary=Qwen2RotaryEmbedding,
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
    config=Qwen3Config,
    model=Qwen3ForCausalLM,
    rotary=Qwen3RotaryEmbedding,
    computed=QWEN2.computed | {"attention_bias"},
    pack=_pack,
)


SMOLLM3 = Architecture(
    config=SmolLM3Config,
    model=SmolLM3ForCausalLM,
    rotary=SmolLM3RotaryEmbedding,
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
    architecture.config.model_type: architecture
    for architecture in (QWEN2, QWEN3, LLAMA, MISTRAL, SMOLLM3, GRANITE, OLMO2)
}


def architecture_of(name: str) -> Architecture:
    """Return an architecture; the ``ValueError`` for an unknown one lists those supported."""
    if name not in ARCHITECTURES:
        raise ValueError(f"architecture {name!r} is not supported, only {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
