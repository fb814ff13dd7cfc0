"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

QWEN2 = Architecture(
    config=Qwen2Config,
    model=Qwen2ForCausalLM,
    rotary=Qwen2RotaryEmbedding,
    computed=frozenset(
        {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
    ),
    pack=pack_plain,
)
