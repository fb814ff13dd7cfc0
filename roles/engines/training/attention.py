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

PACKED = "prime_packed"
"""Name under which transformers knows this attention."""

_WITHOUT_EFFECT = frozenset({"dropout", "position_ids", "use_cache"})
"""Arguments of transformers' layers that change no score: there is no dropout."""

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
    # Some kernels that avoid the score matrix do not support grouped query heads.
    repeats = query.shape[1] // key.shape[1]
    heads = query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    sizes = [length * count for length, count in runs]
    pieces = []
    for (length, count), *parts in zip(
        runs, *(torch.split(tensor[0], sizes, dim=1) for tensor in heads), strict=True
    ):
        q, k, v = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
        pieces.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)[None], None


AttentionInterface.register(PACKED, packed_attention)
