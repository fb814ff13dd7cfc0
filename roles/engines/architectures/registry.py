"""The architectures that engines compute, by the name that Hugging Face gives them."""

from collections.abc import Mapping

from roles.engines.architectures.architecture import Architecture
from roles.engines.architectures.granite import GRANITE
from roles.engines.architectures.llama import LLAMA
from roles.engines.architectures.mistral import MISTRAL
from roles.engines.architectures.olmo2 import OLMO2
from roles.engines.architectures.qwen2 import QWEN2
from roles.engines.architectures.qwen3 import QWEN3
from roles.engines.architectures.smollm3 import SMOLLM3

ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.config.model_type: architecture
    for architecture in (QWEN2, QWEN3, LLAMA, MISTRAL, SMOLLM3, GRANITE, OLMO2)
}


def architecture_of(name: str) -> Architecture:
    """Return an architecture; raises ``ValueError`` naming what there is."""
    if name not in ARCHITECTURES:
        raise ValueError(f"architecture {name!r} is not supported, only {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
