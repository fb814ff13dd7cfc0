"""OLMo 2: norms behind attention and gated unit, and over all queries and all keys."""

from transformers import Olmo2Config, Olmo2ForCausalLM
from transformers.models.olmo2.modeling_olmo2 import Olmo2RotaryEmbedding

from roles.engines.architectures.architecture import Architecture, pack_plain

OLMO2 = Architecture(
    config=Olmo2Config,
    model=Olmo2ForCausalLM,
    rotary=Olmo2RotaryEmbedding,
    computed=frozenset({"attention_bias"}),
    pack=pack_plain,
    norms_in_float32=True,
)
