"""Qwen3, dense: queries and keys are normed head by head before they are rotated."""

from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from roles.engines.architectures.architecture import (
    Architecture,
    Config,
    Layer,
    Weights,
    key_heads,
    pack_layer,
)
from roles.engines.architectures.qwen2 import QWEN2


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
