"""Causal attention inside each of many sequences that lie one after another in one row.

A mask over such a row would be dense, width x width. Neighbours of equal length are attended to as
one batch instead, and sorted by length they are nearly all neighbours: no mask and no padding, on
every device and in every precision, in memory that grows with the tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED = "prime_packed"
"""Name of this attention among those of transformers."""

_WITHOUT_EFFECT = frozenset({"dropout", "position_ids", "use_cache"})
"""Arguments of transformers' layers that change no score here: there is no dropout."""

Run = tuple[int, int]
"""Length of neighbouring sequences, and how many of them there are."""


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
    """Attend inside each sequence of ``[1, heads, width, size]``; transformers' interface.

    Raises ``ValueError`` for a mask or an argument that changes the scores: a window, sinks,
    soft-capping. Dropping it would give wrong numbers.
    """
    given = {name for name, argument in others.items() if argument is not None}
    unknown = given - _WITHOUT_EFFECT
    if attention_mask is not None or unknown:
        names = ", ".join(sorted(unknown)) or "a mask"
        raise ValueError(f"packed attention does not compute {names}; train another model")
    # Of the kernels that need no matrix of scores, some know no groups of query heads.
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
