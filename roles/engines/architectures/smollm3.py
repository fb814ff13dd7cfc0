"""SmolLM3: Llama of which some layers do not rotate (NoPE)."""

from transformers import SmolLM3Config, SmolLM3ForCausalLM
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

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
