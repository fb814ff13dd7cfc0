"""Granite, dense: Llama with constant factors in four places."""

from transformers import GraniteConfig, GraniteForCausalLM
from transformers.models.granite.modeling_granite import GraniteRotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

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
