"""A batched decode loop for dense decoders with a static key-value cache.

The mathematics of Hugging Face's module in fewer, larger operations: queries, keys and values are
one product, so are gate and up; one decode step is one small attention per key head. Prompts are
padded on the left, which keeps every row's next slot in the same column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from roles.engines.architectures.architecture import Config, Layer, head_size, key_heads
from roles.engines.architectures.model import rotary
from roles.engines.architectures.registry import architecture_of
from roles.engines.builtin.head import Head, HeadPrecision
from roles.engines.noise import Draws

Noise = Callable[[Sequence[int], int], Draws | None]
"""(rows, position) -> what is added to the scaled logits; None is zero."""


_OUTER = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
"""What is in no layer; a tied output layer is the embedding, and not there."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One row: tokens ``[n]``, their log-probabilities ``[n]``, the states behind them ``[n, h]``.

    State ``i`` is the final hidden state, after the last norm, from which token ``i`` was drawn.
    """

    tokens: Tensor
    logprobs: Tensor
    states: Tensor


@dataclass(slots=True)
class Cache:
    """Keys and values ``[layers, rows, key heads, columns, head]``; ``filled`` columns are set."""

    keys: Tensor
    values: Tensor
    padding: Tensor
    padded: bool
    filled: int = 0

    def keep(self, alive: Tensor) -> None:
        """Forget all rows but those ``alive[rows]``."""
        self.keys = self.keys[:, alive]
        self.values = self.values[:, alive]
        self.padding = self.padding[alive]


class Decoder:
    """A model's weights packed for decoding.

    One that is ``streamed`` computes once: each layer is packed when it is reached, so that one is
    held at a time.
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
        self._goes_on = torch.ones(config.vocab_size, dtype=torch.bool, device=device)
        self._goes_on[config.eos_token_id] = False
        self._rotary = rotary(config, device)
        outer = {name: tensors[name].to(device, dtype) for name in _OUTER if name in tensors}
        self._embedding, self._norm, *_ = outer.values()
        self.head = Head(outer.get("lm_head.weight", self._embedding), head)
        # One after another: what is packed is no longer held beside its parts.
        layers = (
            architecture_of(config.model_type).pack(
                {name: tensor.to(device, dtype) for name, tensor in _within(tensors, index)}, config
            )
            for index in range(config.num_hidden_layers)
        )
        self._layers: Iterable[Layer] = layers if streamed else list(layers)

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        tokens_max: Sequence[int],
        temperature: float,
        noise: Noise,
    ) -> list[Decoded]:
        """Continue every prompt until an end token or its ``tokens_max``, as one batch.

        Each token is ``argmax(logits / temperature + noise)``; without noise that is greedy
        decoding.
        """
        longest = max(tokens_max)
        steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        limits = torch.tensor(tokens_max, device=self.device)
        rows = torch.arange(len(prompts), device=self.device)
        cache, states = self._prefill(prompts, longest)
        for position in range(longest):
            sampled = self.head.sample(states, temperature, noise(rows.tolist(), position))
            tokens = sampled.tokens
            # A view of the states would keep those of the whole prompts.
            steps.append((rows, tokens, sampled.logprobs, states.clone()))
            alive = self._goes_on[tokens] & (position + 1 < limits[rows])
            if not alive.any():
                break
            if not alive.all():
                rows, tokens = rows[alive], tokens[alive]
                cache.keep(alive)
            states = self._forward(tokens[:, None], cache)[:, -1]
        return _by_row(steps)

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the final states ``[n, hidden]`` of each sequence of ``n`` tokens."""
        states = self._begin(sequences, 0)[1]
        return [row[-len(own) :] for row, own in zip(states, sequences, strict=True)]

    def _prefill(self, prompts: Sequence[Sequence[int]], tokens_max: int) -> tuple[Cache, Tensor]:
        """Return the cache after the prompts, and each row's state at its prompt's last token."""
        cache, states = self._begin(prompts, tokens_max)
        return cache, states[:, -1]

    def _begin(self, prompts: Sequence[Sequence[int]], tokens_max: int) -> tuple[Cache, Tensor]:
        """Return the cache after the prompts and all their states, both padded on the left."""
        width = max(len(prompt) for prompt in prompts)
        padding = [width - len(prompt) for prompt in prompts]
        tokens = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        shape = (
            self.config.num_hidden_layers,
            len(prompts),
            self._key_heads,
            width + tokens_max,
            self._head_size,
        )
        cache = Cache(
            torch.empty(shape, dtype=self.dtype, device=self.device),
            torch.empty(shape, dtype=self.dtype, device=self.device),
            torch.tensor(padding, device=self.device),
            any(padding),
        )
        return cache, self._forward(torch.tensor(tokens, device=self.device), cache)

    def _forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Append ``tokens[rows, n]`` to the cache; return their states ``[rows, n, hidden]``."""
        new = slice(cache.filled, cache.filled + tokens.shape[1])
        columns = torch.arange(new.start, new.stop, device=self.device)
        cache.filled = new.stop
        states = self._embedding[tokens]
        positions = columns[None]
        mask = None
        if cache.padded:
            positions = (positions - cache.padding[:, None]).clamp(min=0)
            mask = _mask(columns, cache)
        rotation = self._rotary(states, positions)
        for index, layer in enumerate(self._layers):
            normed = self._normed(states, layer.input_norm)
            queries, keys, values = self._project(layer, normed, rotation)
            cache.keys[index, :, :, new] = keys
            cache.values[index, :, :, new] = values
            states = states + layer.output(self._attend(queries, index, cache, mask))
            gate, up = layer.gate_up(self._normed(states, layer.post_norm)).chunk(2, dim=-1)
            states = states + layer.down(silu(gate) * up)
        return self._normed(states, self._norm)

    def _project(
        self, layer: Layer, states: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, each ``[rows, its heads, n, head]``."""
        rows, length, _ = states.shape
        mixed = layer.qkv(states).view(rows, length, -1, self._head_size).transpose(1, 2)
        turning, values = mixed.tensor_split([self._heads + self._key_heads], dim=1)
        if layer.query_key_norm is not None:
            turning = self._normed(turning, layer.query_key_norm)
        queries, keys = _rotated(turning, *rotation).tensor_split([self._heads], dim=1)
        return queries, keys, values

    def _attend(self, queries: Tensor, index: int, cache: Cache, mask: Tensor | None) -> Tensor:
        """Return the attention output ``[rows, n, heads * head]`` of ``queries`` over the cache."""
        rows, _, length, _ = queries.shape
        keys = cache.keys[index, :, :, : cache.filled]
        values = cache.values[index, :, :, : cache.filled]
        if length == 1:
            # The query heads of one key head become its query positions: no key is copied.
            folded = queries.reshape(rows, self._key_heads, -1, self._head_size)
            mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
            return mixed.reshape(rows, 1, -1)
        causal = mask is None
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(rows, length, -1)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm, computed in float32 and rounded before the weight, as HF does."""
        size, eps = weight.shape[-1:], self.config.rms_norm_eps
        return weight * rms_norm(states.float(), size, eps=eps).to(self.dtype)


def _by_row(steps: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> list[Decoded]:
    """Return what a batch has produced, on the CPU; each step has rows, tokens and so on."""
    rows, *produced = (torch.cat(parts).cpu() for parts in zip(*steps, strict=True))
    order, lengths = rows.argsort(stable=True), torch.bincount(rows).tolist()
    by_row = (torch.split(part[order], lengths) for part in produced)
    return [Decoded(*parts) for parts in zip(*by_row, strict=True)]


def _within(tensors: Mapping[str, Tensor], index: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a layer with their names within it."""
    prefix = f"model.layers.{index}."
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), tensor


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each head's halves against each other by the angle of the position."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return states * cosine[:, None] + turned * sine[:, None]


def _mask(columns: Tensor, cache: Cache) -> Tensor:
    """Return which columns ``[rows, 1, n, filled]`` each new column may see: causal, no padding.

    Padding sees itself, because a softmax over nothing is NaN and a NaN value spoils every row.
    """
    seen = torch.arange(cache.filled, device=columns.device)
    causal = seen <= columns[:, None]
    filled = seen >= cache.padding[:, None, None]
    return ((causal & filled) | (seen == columns[:, None]))[:, None]
