"""Causal attention within each of many sequences packed into one row.

A mask over such a row would be dense, width x width. Instead, neighbouring sequences of equal
length are one batch of attention, and sorting by length makes nearly all of them neighbours. It
needs no mask and no padding on any device, and memory linear in the tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from typing_extensions import override

PACKED = "prime_packed"
"""Name under which transformers knows this attention."""

_WITHOUT_EFFECT = frozenset({"dropout", "position_ids", "use_cache"})
"""Arguments of transformers' layers that change no score: there is no dropout."""

_SLOW_TOKENS = 256

Run = tuple[int, int]
"""(length, count) of neighbouring sequences of equal length."""


def packed_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    runs: Sequence[Run],
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence of ``[1, heads, width, size]``; transformers' interface.

    Raises ``ValueError`` for a mask or an argument that changes the scores (window, sinks,
    soft-capping): ignoring it would give wrong numbers.
    """
    given = {name for name, argument in others.items() if argument is not None}
    unknown = given - _WITHOUT_EFFECT
    if attention_mask is not None or unknown:
        names = ", ".join(sorted(unknown)) or "a mask"
        raise ValueError(f"packed attention does not compute {names}; train another model")
    grouped = _takes_groups(query)
    if not grouped:
        repeats = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(repeats, 1) for one in (key, value))
    sizes = [length * count for length, count in runs]
    pieces = []
    for (length, count), *parts in zip(
        runs, *(torch.split(tensor[0], sizes, dim=1) for tensor in (query, key, value)), strict=True
    ):
        q, k, v = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
        kernel = _ExactGradient.apply if _is_slow(q) else _attended
        pieces.append(kernel(q, k, v, scaling, grouped).transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)[None], None


def _takes_groups(query: Tensor) -> bool:
    """Return whether the kernel that torch chooses takes fewer key heads than query heads.

    The CPU's does, and of CUDA's the one for bf16 (flash), which validators also use without
    copies; the one for float32 does not, and a copy is cheaper than the score matrix.
    """
    return query.device.type == "cpu" or query.dtype != torch.float32


def _is_slow(query: Tensor) -> bool:
    """Return whether the CPU's bf16 backward kernel takes longer than its float32 kernels.

    Measured with AMX: 4.7 times as long for 40 tokens a sequence, twice for 128, as long for 300.
    """
    on_cpu = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return on_cpu and query.shape[2] < _SLOW_TOKENS and torch.is_grad_enabled()


def _attended(q: Tensor, k: Tensor, v: Tensor, scaling: float, grouped: bool) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)


class _ExactGradient(torch.autograd.Function):
    """``_attended`` with the gradient of float32 attention over the same values."""

    @staticmethod
    @override
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scaling: float, grouped: bool) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scaling, ctx.grouped = scaling, grouped
        return _attended(q, k, v, scaling, grouped)

    @staticmethod
    @override
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            heads = [one.detach().float().requires_grad_() for one in ctx.saved_tensors]
            attended = _attended(heads[0], heads[1], heads[2], ctx.scaling, ctx.grouped)
            grads = torch.autograd.grad(attended, heads, grad.float())
        return *(one.to(grad.dtype) for one in grads), None, None


AttentionInterface.register(PACKED, packed_attention)
