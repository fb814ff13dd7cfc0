"""Parts of an architecture, and the packed layer that all share.

Layers have the same parts in the same order: attention, then a gated linear unit. They differ in
biases, positions of norms, scale factors, layers that rotate, and head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

Config = (
    Qwen2Config
    | Qwen3Config
    | LlamaConfig
    | MistralConfig
    | SmolLM3Config
    | GraniteConfig
    | Olmo2Config
)

CausalLM = (
    Qwen2ForCausalLM
    | Qwen3ForCausalLM
    | LlamaForCausalLM
    | MistralForCausalLM
    | SmolLM3ForCausalLM
    | GraniteForCausalLM
    | Olmo2ForCausalLM
)

Weights = Mapping[str, Tensor]
"""Tensors by their name within a layer, such as ``self_attn.q_proj.weight``."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with ``weight[out, in]`` and an optional bias ``[out]``."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, states: Tensor) -> Tensor:
        """Map states ``[..., in]`` to ``[..., out]``."""
        return linear(states, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of a layer, packed into few products.

    A norm that the architecture lacks is None. ``query_key_norm[heads + key heads, 1, head]`` norms
    each head, ``projection_norms`` all queries and all keys of a token. ``attention_norm`` and
    ``mlp_norm`` norm the additions to the residual stream. ``places`` are views of the packed
    weights by original tensor name, with leading dimensions if a tensor has several copies.
    """

    input_norm: Tensor | None
    qkv: Linear
    query_key_norm: Tensor | None
    projection_norms: tuple[Tensor, Tensor] | None
    output: Linear
    attention_norm: Tensor | None
    post_norm: Tensor | None
    gate_up: Linear
    down: Linear
    mlp_norm: Tensor | None
    places: Weights


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Hugging Face architecture; ``computed`` are the ``config.json`` keys that only it has.

    ``norms_in_float32``: norms multiply by their weight before rounding to the model's precision,
    not after.
    """

    config: type[Config]
    model: type[CausalLM]
    rotary: type[torch.nn.Module]
    computed: frozenset[str]
    pack: Callable[[Weights, Config], Layer]
    norms_in_float32: bool = False


@dataclass(frozen=True, slots=True)
class Scales:
    """Constant factors of Granite; neutral in other architectures.

    ``attention`` replaces 1 / sqrt(head size), and ``logits`` divides the logits.
    """

    embedding: float = 1.0
    residual: float = 1.0
    attention: float | None = None
    logits: float = 1.0


def scales_of(config: Config) -> Scales:
    """Return a model's constant factors."""
    if not isinstance(config, GraniteConfig):
        return Scales()
    return Scales(
        config.embedding_multiplier,
        config.residual_multiplier,
        config.attention_multiplier,
        config.logits_scaling,
    )


def rotated_layers(config: Config) -> list[bool]:
    """Return, for each layer, whether it rotates queries and keys by position."""
    if isinstance(config, SmolLM3Config):
        return [bool(one) for one in config.no_rope_layers or ()]
    return [True] * config.num_hidden_layers


def head_size(config: Config) -> int:
    """Return the size of a head, which may differ from ``hidden_size / heads``."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def key_heads(config: Config) -> int:
    """Return the number of key-value heads."""
    return config.num_key_value_heads or config.num_attention_heads


def pack_layer(weights: Weights, query_key_norms: Weights | None = None) -> Layer:
    """Pack a layer, with the biases and norms that it has, into memory of its own.

    Query and key norms apply to whole projections, unless ``query_key_norms`` has them per head.
    """
    places: dict[str, Tensor] = {}

    def joined(parts: Weights) -> Tensor:
        whole = torch.cat([*parts.values()])
        own = torch.split(whole, [*map(len, parts.values())])
        places.update(zip(parts, own, strict=True))
        return whole

    def product(*names: str) -> Linear:
        """Join products of the same states into one; all have a bias, or none."""
        weight, bias = [
            {key: weights[key] for name in names if (key := f"{name}.{kind}") in weights}
            for kind in ("weight", "bias")
        ]
        return Linear(joined(weight), joined(bias) if bias else None)

    def norm(name: str) -> Tensor | None:
        key = f"{name}.weight"
        return joined({key: weights[key]}) if key in weights else None

    is_normed_after = "post_feedforward_layernorm.weight" in weights
    after_attention = norm("post_attention_layernorm")
    whole = None
    if query_key_norms is None:
        queries, keys = norm("self_attn.q_norm"), norm("self_attn.k_norm")
        whole = None if queries is None or keys is None else (queries, keys)
    return Layer(
        input_norm=norm("input_layernorm"),
        qkv=product(*(f"self_attn.{part}_proj" for part in "qkv")),
        query_key_norm=None if query_key_norms is None else joined(query_key_norms),
        projection_norms=whole,
        output=product("self_attn.o_proj"),
        attention_norm=after_attention if is_normed_after else None,
        post_norm=None if is_normed_after else after_attention,
        gate_up=product("mlp.gate_proj", "mlp.up_proj"),
        down=product("mlp.down_proj"),
        mlp_norm=norm("post_feedforward_layernorm"),
        places=places,
    )


def pack_plain(weights: Weights, _config: Config) -> Layer:
    """Pack a layer without per-head norms."""
    return pack_layer(weights)
