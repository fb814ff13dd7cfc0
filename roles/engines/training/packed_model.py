"""Model on packed sequences: the decoder and the output layer in one module, whole or sharded.

A policy's model has its weights in its precision. Embedding and output layer hold the same values
in float32: an embedding's gradient in bf16 would lose the tokens that occur often, and the output
layer multiplies in float32.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from roles.engines.architectures.architecture import CausalLM, Config
from roles.engines.architectures.model import build_model, model_of, rotary
from roles.engines.builtin.head import Head
from roles.engines.training.attention import PACKED
from roles.engines.training.batch import Pass
from roles.engines.training.head import target_logprobs
from roles.engines.training.ranks import Ranks

_IN_FLOAT32 = ("model.embed_tokens.", "lm_head.")

_keeping_inputs = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Activation checkpointing: keep only the arguments; no such function draws random numbers."""


class PackedModel(torch.nn.Module):
    """Log-probabilities of the targets of a pass, and the entropies at their positions, ``[n]``.

    ``head_precision`` is the manifest's; ``temperature`` divides the logits.
    """

    def __init__(
        self,
        causal: CausalLM,
        dtype: torch.dtype,
        head_precision: str,
        temperature: float,
        *,
        entropy_gradient: bool,
    ) -> None:
        super().__init__()
        self.causal = causal
        self._dtype = dtype
        self._head_precision = head_precision
        self._temperature = temperature
        self._entropy_gradient = entropy_gradient

    @override
    def forward(self, packed: Pass) -> tuple[Tensor, Tensor]:
        causal = self.causal
        states: Tensor = causal.model(
            inputs_embeds=causal.model.embed_tokens(packed.tokens).to(self._dtype),
            position_ids=packed.positions,
            runs=packed.runs,
            use_cache=False,
        ).last_hidden_state
        return target_logprobs(
            states[0, packed.predictors],
            causal.lm_head.weight,
            packed.targets,
            self._temperature,
            head=self._head(),
            entropy_gradient=self._entropy_gradient,
        )

    def _head(self) -> Head | None:
        """Return the output layer of validators; None for float32 policies.

        There the logits of one product differ from theirs by rounding of float32 alone.
        """
        if self._dtype == torch.float32:
            return None
        weight = self.causal.lm_head.weight
        return Head(weight.to(self._dtype) if self._head_precision == "model" else weight, "model")

    def keep_inputs_only(self, beyond: int) -> None:
        """Recompute decoder layers in the backward pass where a pass has more tokens than that."""
        for layer in self.causal.model.layers:
            layer.forward = partial(_computed, layer.forward, beyond)

    def let_go(self) -> None:
        """Give back what a forward pass without a backward pass has gathered from other ranks."""
        if isinstance(self, FSDPModule):
            self.reshard()


def whole_model(
    config: Config, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: str
) -> CausalLM:
    """Return a model with a policy's weights."""
    model = model_of(config, tensors, dtype, device)
    for module in (model.model.embed_tokens, model.lm_head):
        module.float()
    model.set_attn_implementation(PACKED)
    return model


def _computed(forward: Callable[..., Tensor], beyond: int, states: Tensor, **others: Any) -> Tensor:
    """Compute a decoder layer; keep only its arguments for more tokens than ``beyond``."""
    if states.shape[1] <= beyond:
        return forward(states, **others)
    recomputed: Tensor = _keeping_inputs(forward, states, **others)
    return recomputed


def is_cast(name: str) -> bool:
    """Return whether a sharded model rounds this tensor to nearest itself: all but two."""
    return not name.startswith(_IN_FLOAT32)


def sharded(
    packed_of: Callable[[CausalLM], PackedModel],
    config: Config,
    value_of: Callable[[str], Tensor],
    dtype: torch.dtype,
    device: str,
    ranks: Ranks,
) -> PackedModel:
    """Return a model of which each rank holds its rows, in float32 (FSDP2).

    A decoder layer is gathered in ``dtype`` for its computation, embedding and output layer in
    float32. Gradients are summed over the ranks in float32. ``value_of`` returns a whole tensor in
    float32; at any time those of one layer exist.
    """
    model = build_model(config, torch.float32, "meta", PACKED)
    model.model.rotary_emb = rotary(config, device)
    rounded = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for prefix, module in (
        *((f"model.layers.{place}.", layer) for place, layer in enumerate(model.model.layers)),
        ("model.norm.", model.model.norm),
    ):
        _fill(module, prefix, value_of, device)
        fully_shard(module, mesh=ranks.mesh, mp_policy=rounded)
    _fill(model.model.embed_tokens, "model.embed_tokens.", value_of, device)
    if not config.tie_word_embeddings:
        _fill(model.lm_head, "lm_head.", value_of, device)
    model.tie_weights()
    packed = packed_of(model)
    fully_shard(packed, mesh=ranks.mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    for module in packed.modules():
        if isinstance(module, FSDPModule):
            # The weights of tokens divide their losses, over all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return packed


def _fill(
    module: torch.nn.Module, prefix: str, value_of: Callable[[str], Tensor], device: str
) -> None:
    values = {
        name: value_of(prefix + name).to(device, copy=True) for name, _ in module.named_parameters()
    }
    module.load_state_dict(values, assign=True)
