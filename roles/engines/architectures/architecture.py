"""What an architecture is made of, and the packed layer that all of them have.

Layers have the same parts in the same order: norm, attention, norm, gated linear unit. They differ
in which biases there are, whether queries and keys are normed, and what a head's size is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Config = Qwen2Config | Qwen3Config | LlamaConfig

CausalLM = Qwen2ForCausalLM | Qwen3ForCausalLM | LlamaForCausalLM

Weights = Mapping[str, Tensor]
"""Tensors by their name within a layer, such as ``self_attn.q_proj.weight``."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with ``weight[out, in]``, and what is added to it ``[out]``."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, states: Tensor) -> Tensor:
        """Return ``[..., out]`` of states ``[..., in]``."""
        return linear(states, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a layer, packed to few products.

    ``query_key_norm[heads + key heads, 1, head]`` is there if queries and keys are normed.
    ``places`` are views of these by the names of the tensors that are there now; one that is there
    several times has more dimensions than its tensor.
    """

    input_norm: Tensor
    qkv: Linear
    query_key_norm: Tensor | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    places: Weights


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of Hugging Face's; ``computed`` are the keys of ``config.json`` that only it has."""

    config: type[Config]
    model: type[CausalLM]
    rotary: type[torch.nn.Module]
    computed: frozenset[str]
    pack: Callable[[Weights, Config], Layer]


def head_size(config: Config) -> int:
    """Return the length of one head's queries; also where it is not ``hidden_size / heads``."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def key_heads(config: Config) -> int:
    """Return how many heads have keys and values of their own."""
    return config.num_key_value_heads or config.num_attention_heads


def pack_layer(weights: Weights, query_key_norms: Weights | None = None) -> Layer:
    """Return a layer with the biases that there are, in memory of its own."""
    places: dict[str, Tensor] = {}

    def joined(parts: Weights) -> Tensor:
        whole = torch.cat([*parts.values()])
        own = torch.split(whole, [*map(len, parts.values())])
        places.update(zip(parts, own, strict=True))
        return whole

    def product(*names: str) -> Linear:
        """Return several products of the same states as one; all have a bias, or none."""
        weight, bias = [
            {key: weights[key] for name in names if (key := f"{name}.{kind}") in weights}
            for kind in ("weight", "bias")
        ]
        return Linear(joined(weight), joined(bias) if bias else None)

    def norm(name: str) -> Tensor:
        return joined({name: weights[name]})

    return Layer(
        input_norm=norm("input_layernorm.weight"),
        qkv=product(*(f"self_attn.{part}_proj" for part in "qkv")),
        query_key_norm=None if query_key_norms is None else joined(query_key_norms),
        output=product("self_attn.o_proj"),
        post_norm=norm("post_attention_layernorm.weight"),
        gate_up=product("mlp.gate_proj", "mlp.up_proj"),
        down=product("mlp.down_proj"),
        places=places,
    )


def pack_plain(weights: Weights, _config: Config) -> Layer:
    """Return a layer whose queries and keys are not normed."""
    return pack_layer(weights)
