"""Mistral without a window, as version 0.3: Llama without biases."""

from transformers import MistralConfig, MistralForCausalLM
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

MISTRAL = Architecture(
    config=MistralConfig,
    model=MistralForCausalLM,
    rotary=MistralRotaryEmbedding,
    computed=frozenset({"sliding_window"}),
    pack=pack_plain,
)
