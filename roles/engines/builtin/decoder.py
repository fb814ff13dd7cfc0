"""Dense decoder with a key-value cache: prefill prompts, then decode token by token.

The mathematics of Hugging Face's module in fewer, larger operations. Queries, keys and values are
one product, and so are gate and up; a decode step is one small attention per key head. Prompts are
padded on the left, so every row's next slot is in the same column. Rows of several caches share
every product; each cache has its own attention.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from roles.engines.architectures.architecture import (
    Config,
    Layer,
    head_size,
    key_heads,
    rotated_layers,
    scales_of,
)
from roles.engines.architectures.model import rotary
from roles.engines.architectures.registry import architecture_of
from roles.engines.builtin.cache import Cache
from roles.engines.builtin.head import Head, HeadPrecision

_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
"""Tensors outside the layers; a tied output layer is the embedding and absent here."""

_PREFIX = "model.layers.{}."


class Decoder:
    """A model's weights packed for decoding, in memory of their own.

    A ``streamed`` decoder computes once: each layer is packed when it is reached, so only one
    packed layer exists at a time; the other tensors are the given ones.
    """

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        head: HeadPrecision = "fp32",
        *,
        streamed: bool = False,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self._heads = config.num_attention_heads
        self._key_heads = key_heads(config)
        self._head_size = head_size(config)
        self._rotary = rotary(config, device)
        self._rotates = rotated_layers(config)
        self._scales = scales_of(config)
        self._norms_in_float32 = architecture_of(config.model_type).norms_in_float32
        outer = {
            name: tensors[name].to(device, dtype, copy=not streamed)
            for name in (_EMBEDDING, _NORM, _HEAD)
            if name in tensors
        }
        self._embedding, self._norm, *_ = outer.values()
        self._is_tied = _HEAD not in outer
        self.head = Head(outer.get(_HEAD, self._embedding), head, self._scales.logits)
        # One layer at a time, so that packed weights and their originals do not coexist.
        layers = (
            architecture_of(config.model_type).pack(
                {name: tensor.to(device, dtype) for name, tensor in _within(tensors, index)}, config
            )
            for index in range(config.num_hidden_layers)
        )
        self._layers: Iterable[Layer] = layers if streamed else list(layers)

    def places(self) -> dict[str, list[Tensor]]:
        """Return the packed views of each original tensor; once only if ``streamed``.

        A view has the dimensions of its tensor, with leading ones if it holds several copies.
        """
        places = {_EMBEDDING: [self._embedding], _NORM: [self._norm]}
        if not self._is_tied:
            places[_HEAD] = [self.head.weight]
        elif self.head.weight.data_ptr() != self._embedding.data_ptr():
            places[_EMBEDDING].append(self.head.weight)
        for index, layer in enumerate(self._layers):
            places |= {_PREFIX.format(index) + name: [at] for name, at in layer.places.items()}
        return places

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        end = self.config.eos_token_id
        return frozenset([end] if isinstance(end, int) else end or ())

    @property
    def bytes_per_column(self) -> int:
        """Cache bytes of one token of one row."""
        values = self.config.num_hidden_layers * self._key_heads * self._head_size
        return 2 * values * self.dtype.itemsize

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Tensor]:
        """Return a cache with room for ``room`` more columns than the longest prompt.

        Also returns the state ``[rows, hidden]`` at each prompt's last token. Equal prompts are
        computed once.
        """
        different = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        cache, every = self._begin(different, room)
        states = every[:, -1]
        if len(different) < len(prompts):
            places = {prompt: place for place, prompt in enumerate(different)}
            rows = [places[tuple(one)] for one in prompts]
            cache.keep(rows)
            states = states[rows]
        # A view would keep the whole prompts' states in memory.
        return cache, states.clone()

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the final states ``[n, hidden]`` of each sequence of ``n`` tokens."""
        states = self._begin(sequences, 0)[1]
        return [row[-len(own) :] for row, own in zip(states, sequences, strict=True)]

    def _begin(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Tensor]:
        """Return the prompts' cache and all their states, both padded on the left."""
        width = max(len(prompt) for prompt in prompts)
        cache = Cache.empty(
            self.config.num_hidden_layers,
            self._key_heads,
            self._head_size,
            [width - len(prompt) for prompt in prompts],
            width + room,
            self.dtype,
            self.device,
        )
        tokens = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        return cache, self._forward(torch.tensor(tokens, device=self.device), [cache])

    def step(self, tokens: Tensor, caches: Sequence[Cache]) -> Tensor:
        """Append ``tokens[rows of all caches]``; return the states ``[rows, hidden]`` after them.

        The caches must have room for one more column.
        """
        return self._forward(tokens[:, None], caches)[:, -1]

    def _forward(self, tokens: Tensor, caches: Sequence[Cache]) -> Tensor:
        """Append ``tokens[rows, n]`` to the caches; return their states ``[rows, n, hidden]``."""
        for cache in caches:
            cache.extend(tokens.shape[1])
        states = _scaled(self._embedding[tokens], self._scales.embedding)
        positions = [cache.positions() for cache in caches]
        if len(caches) > 1:
            rows = (
                own.expand(cache.rows, -1) for own, cache in zip(positions, caches, strict=True)
            )
            positions = [torch.cat([*rows])]
        rotation = self._rotary(states, positions[0])
        masks = [cache.mask() for cache in caches]
        for index, layer in enumerate(self._layers):
            turn = rotation if self._rotates[index] else None
            normed = self._normed(states, layer.input_norm)
            queries, keys, values = self._project(layer, normed, turn)
            mixed, first = [], 0
            for cache, mask in zip(caches, masks, strict=True):
                rows_of_it = slice(first, first + cache.rows)
                seen = cache.put(index, keys[rows_of_it], values[rows_of_it])
                mixed.append(self._attend(queries[rows_of_it], *seen, mask))
                first += cache.rows
            attended = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
            own = self._normed(layer.output(attended), layer.attention_norm)
            states = states + _scaled(own, self._scales.residual)
            gate, up = layer.gate_up(self._normed(states, layer.post_norm)).chunk(2, dim=-1)
            own = self._normed(layer.down(silu(gate) * up), layer.mlp_norm)
            states = states + _scaled(own, self._scales.residual)
        return self._normed(states, self._norm)

    def _project(
        self, layer: Layer, states: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, each ``[rows, its heads, n, head]``."""
        rows, length, _ = states.shape
        joined = layer.qkv(states)
        if layer.projection_norms is not None:
            widths = [self._heads * self._head_size, self._key_heads * self._head_size]
            *own, rest = torch.split(joined, [*widths, widths[1]], dim=-1)
            normed = map(self._normed, own, layer.projection_norms)
            joined = torch.cat([*normed, rest], dim=-1)
        mixed = joined.view(rows, length, -1, self._head_size).transpose(1, 2)
        turning, values = mixed.tensor_split([self._heads + self._key_heads], dim=1)
        if layer.query_key_norm is not None:
            turning = self._normed(turning, layer.query_key_norm)
        if rotation is not None:
            turning = _rotated(turning, *rotation)
        queries, keys = turning.tensor_split([self._heads], dim=1)
        return queries, keys, values

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output ``[rows, n, heads * head]`` of one cache's rows."""
        rows, _, length, _ = queries.shape
        scale = self._scales.attention
        if length == 1:
            # Fold the query heads of a key head into query positions: no key is copied.
            folded = queries.reshape(rows, self._key_heads, -1, self._head_size)
            mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
            return mixed.reshape(rows, 1, -1)
        causal = mask is None
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(rows, length, -1)

    def _normed(self, states: Tensor, weight: Tensor | None) -> Tensor:
        """Return the RMS norm, computed in float32 and rounded where Hugging Face does.

        Returns ``states`` unchanged where the architecture has no norm.
        """
        if weight is None:
            return states
        normed = rms_norm(states.float(), weight.shape[-1:], eps=self.config.rms_norm_eps)
        if self._norms_in_float32:
            return (weight * normed).to(self.dtype)
        return weight * normed.to(self.dtype)


def _within(tensors: Mapping[str, Tensor], index: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a layer's tensors with their names within it."""
    prefix = _PREFIX.format(index)
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), tensor


def _scaled(states: Tensor, factor: float) -> Tensor:
    return states if factor == 1 else states * factor


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the halves of each head by the angle of the position."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    # OLMo 2 keeps float32 angles in every precision.
    return (states * cosine[:, None] + turned * sine[:, None]).to(states.dtype)
