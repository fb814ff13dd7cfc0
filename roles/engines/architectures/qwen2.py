"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from roles.engines.architectures.architecture import (
    Architecture,
    Config,
    Layer,
    Weights,
    pack_layer,
)


def _pack(weights: Weights, _config: Config) -> Layer:
    return pack_layer(weights)


QWEN2 = Architecture(
    config=Qwen2Config,
    model=Qwen2ForCausalLM,
    rotary=Qwen2RotaryEmbedding,
    computed=frozenset(
        {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
    ),
    pack=_pack,
)
