"""Llama 1 to 3, and the many models of its shape: no biases unless the configuration asks."""

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

LLAMA = Architecture(
    config=LlamaConfig,
    model=LlamaForCausalLM,
    rotary=LlamaRotaryEmbedding,
    computed=frozenset({"attention_bias", "mlp_bias"}),
    pack=pack_plain,
)
