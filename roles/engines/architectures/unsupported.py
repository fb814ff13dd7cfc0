"""Unsupported model families: the unsupported feature, and the nearest supported family."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A feature that the engines do not support, and the nearest family without it."""

    feature: str
    nearest: str


_EXPERTS = "mixtures of experts"
_LINEAR = "linear attention (recurrent layers)"
_MLA = "multi-head latent attention (MLA)"
_SPACES = "state-space layers"
_WINDOWS = "sliding windows in some layers"

UNSUPPORTED: Mapping[str, Unsupported] = {
    "bamba": Unsupported(_SPACES, "granite"),
    "bloom": Unsupported("ALiBi positions", "llama"),
    "cohere": Unsupported("layers whose attention and gated unit are parallel", "llama"),
    "cohere2": Unsupported(f"{_WINDOWS} and parallel layers", "llama"),
    "deepseek_v2": Unsupported(f"{_MLA} and {_EXPERTS}", "llama"),
    "deepseek_v3": Unsupported(f"{_MLA} and {_EXPERTS}", "llama"),
    "falcon": Unsupported("ALiBi positions and parallel layers", "llama"),
    "falcon_h1": Unsupported(_SPACES, "llama"),
    "gemma": Unsupported("GELU and norms around 1 + weight", "llama"),
    "gemma2": Unsupported(f"soft-capping of scores and logits and {_WINDOWS}", "llama"),
    "gemma3": Unsupported(f"images and {_WINDOWS}", "llama"),
    "gemma3_text": Unsupported(f"{_WINDOWS}, GELU and norms around 1 + weight", "llama"),
    "gemma3n": Unsupported(f"{_WINDOWS} and layers of alternating updates", "llama"),
    "gemma3n_text": Unsupported(f"{_WINDOWS} and layers of alternating updates", "llama"),
    "glm4": Unsupported("rotation of a part of each head", "llama"),
    "glm4_moe": Unsupported(f"rotation of a part of each head and {_EXPERTS}", "llama"),
    "gpt_oss": Unsupported(f"attention sinks, {_WINDOWS} and {_EXPERTS}", "qwen3"),
    "granitemoe": Unsupported(_EXPERTS, "granite"),
    "granitemoehybrid": Unsupported(f"{_SPACES} and {_EXPERTS}", "granite"),
    "jamba": Unsupported(f"{_SPACES} and {_EXPERTS}", "llama"),
    "lfm2": Unsupported("convolutional layers", "qwen3"),
    "llama4": Unsupported(f"chunked attention, {_EXPERTS} and images", "llama"),
    "llama4_text": Unsupported(f"chunked attention and {_EXPERTS}", "llama"),
    "mamba": Unsupported(_SPACES, "llama"),
    "mamba2": Unsupported(_SPACES, "llama"),
    "minimax": Unsupported(f"{_LINEAR} and {_EXPERTS}", "llama"),
    "ministral": Unsupported(_WINDOWS, "mistral"),
    "mistral3": Unsupported("images", "mistral"),
    "mixtral": Unsupported(_EXPERTS, "mistral"),
    "mpt": Unsupported("ALiBi positions", "llama"),
    "olmo": Unsupported("layer norms and clipped queries, keys and values", "olmo2"),
    "olmo3": Unsupported(_WINDOWS, "olmo2"),
    "olmoe": Unsupported(_EXPERTS, "olmo2"),
    "phi3": Unsupported("one stored tensor for queries, keys and values", "llama"),
    "qwen2_5_vl": Unsupported("images", "qwen2"),
    "qwen2_moe": Unsupported(_EXPERTS, "qwen2"),
    "qwen3_5": Unsupported(f"{_LINEAR} and images", "qwen3"),
    "qwen3_5_text": Unsupported(_LINEAR, "qwen3"),
    "qwen3_5_moe": Unsupported(f"{_LINEAR}, {_EXPERTS} and images", "qwen3"),
    "qwen3_moe": Unsupported(_EXPERTS, "qwen3"),
    "qwen3_next": Unsupported(f"{_LINEAR} and {_EXPERTS}", "qwen3"),
    "starcoder2": Unsupported("layer norms, GELU and no gated unit", "qwen2"),
}
"""By Hugging Face's ``model_type``; unlisted names are rejected without a reason."""
