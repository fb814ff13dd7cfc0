"""Parts of an architecture, and the packed layer that all share.

Layers have the same parts in the same order: attention, then a gated linear unit. They differ in
biases, positions of norms, scale factors, layers that rotate, and head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    # Llama's types stand for those of all families: engines use only what all families have.
    from transformers import LlamaConfig, LlamaForCausalLM

    Config: TypeAlias = LlamaConfig
    CausalLM: TypeAlias = LlamaForCausalLM
else:
    Config, CausalLM = object, torch.nn.Module

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
    """A Hugging Face architecture; its modules are imported when a class is first used.

    ``name`` is its ``model_type`` and that of its modules; ``prefix`` begins the names of its
    classes. ``computed`` are the ``config.json`` keys that only it has. ``norms_in_float32``: norms
    multiply by their weight before rounding to the model's precision, not after.
    """

    name: str
    prefix: str
    computed: frozenset[str]
    pack: Callable[[Weights, Config], Layer]
    norms_in_float32: bool = False

    @property
    def config(self) -> type[Config]:
        """The class of its configurations."""
        made: type[Config] = self._class("configuration", f"{self.prefix}Config")
        return made

    @property
    def model(self) -> type[CausalLM]:
        """The class of its models."""
        made: type[CausalLM] = self._class("modeling", self.model_name)
        return made

    @property
    def model_name(self) -> str:
        """The name of ``model``, as in ``architectures`` of a ``config.json``."""
        return f"{self.prefix}ForCausalLM"

    @property
    def rotary(self) -> type[torch.nn.Module]:
        """The class of its rotary position embedding."""
        made: type[torch.nn.Module] = self._class("modeling", f"{self.prefix}RotaryEmbedding")
        return made

    def _class(self, kind: str, name: str) -> Any:
        module = import_module(f"transformers.models.{self.name}.{kind}_{self.name}")
        return getattr(module, name)


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
    return Scales(
        getattr(config, "embedding_multiplier", 1.0),
        getattr(config, "residual_multiplier", 1.0),
        getattr(config, "attention_multiplier", None),
        getattr(config, "logits_scaling", 1.0),
    )


def rotated_layers(config: Config) -> list[bool]:
    """Return, for each layer, whether it rotates queries and keys by position."""
    if hasattr(config, "no_rope_layers"):
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
