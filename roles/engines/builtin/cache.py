"""Key-value cache of sequences that are decoded together; it grows by blocks of columns.

The rows of a cache are at the same column: shorter ones are padded on the left. A row's memory
follows its current length, rounded up to a block, not its maximum.
"""

import resource
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

COLUMNS_PER_BLOCK = 256
"""Growing copies the cache once per block; the block's decode steps read it 256 times."""


SHARE = 0.5
"""Share of a machine's free memory; other processes use it, too. A guess."""

DEVICE_SHARE = 0.8
"""Share of a GPU's memory; the rest is for prefill, logits and copies. A guess."""


def cache_bytes(device: str) -> int:
    """Return how many bytes caches may take, at least one."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch has reserved but not allocated is available.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(1, int(DEVICE_SHARE * (free + unused)))
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - psutil.Process().memory_info().rss)
    return max(1, int(SHARE * free))


class Cache:
    """``keys`` and ``values`` of each layer, ``[rows, key heads, columns, head]``.

    The first ``filled`` columns are set; the first ``padding[rows]`` of them are padding.
    """

    def __init__(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        padding: Tensor,
        filled: int,
        *,
        padded: bool,
    ) -> None:
        self.keys = keys
        self.values = values
        self.padding = padding
        self.padded = padded
        self.filled = filled
        self._new = 0
        self._rows_held = len(padding)

    @classmethod
    def empty(
        cls,
        layers: int,
        heads: int,
        head_size: int,
        paddings: Sequence[int],
        columns: int,
        dtype: torch.dtype,
        device: str,
    ) -> "Cache":
        """Return a cache with room for ``columns`` and a row for each of ``paddings``."""
        shape = (len(paddings), heads, columns, head_size)

        def made() -> list[Tensor]:
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

        padding = torch.tensor(paddings, device=device)
        return cls(made(), made(), padding, 0, padded=any(paddings))

    @classmethod
    def joined(cls, one: "Cache", other: "Cache") -> "Cache":
        """Return the rows of ``one``, then those of ``other``, at the column of the longer one."""
        filled = max(one.filled, other.filled)
        padding = torch.cat([part.padding + (filled - part.filled) for part in (one, other)])

        def joined(parts: tuple[Tensor, Tensor]) -> Tensor:
            wide = max(part.shape[2] for part in parts)
            rows = sum(len(part) for part in parts)
            # Zeros: values of weight zero must still be finite.
            whole = parts[0].new_zeros(rows, parts[0].shape[1], wide, parts[0].shape[3])
            first = 0
            for part, cache in zip(parts, (one, other), strict=True):
                columns = slice(filled - cache.filled, filled)
                whole[first : first + len(part), :, columns] = part[:, :, : cache.filled]
                first += len(part)
            return whole

        keys = [joined(parts) for parts in zip(one.keys, other.keys, strict=True)]
        values = [joined(parts) for parts in zip(one.values, other.values, strict=True)]
        padded = one.padded or other.padded or one.filled != other.filled
        return cls(keys, values, padding, filled, padded=padded)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.padding)

    @property
    def columns(self) -> int:
        """Allocated columns of a row."""
        return self.keys[0].shape[2]

    @property
    def held(self) -> int:
        """Allocated rows times columns."""
        return self._rows_held * self.columns

    def grow(self, columns: int) -> None:
        """Allocate ``columns``; layers are copied one after another."""
        if columns <= self.columns:
            return
        for tensors in (self.keys, self.values):
            for index, old in enumerate(tensors):
                tensors[index] = old.new_empty(*old.shape[:2], columns, old.shape[3])
                tensors[index][:, :, : self.filled] = old[:, :, : self.filled]
        self._rows_held = self.rows

    def keep(self, rows: Sequence[int]) -> None:
        """Keep copies of these rows, in this order; a row may be repeated."""
        chosen = torch.tensor(rows, device=self.padding.device)
        for tensors in (self.keys, self.values):
            for index, old in enumerate(tensors):
                tensors[index] = old[chosen]
        self.padding = self.padding[chosen]
        self._rows_held = len(rows)

    def drop(self, rows: Sequence[int]) -> list[int]:
        """Remove rows; return the old indices of the remaining rows, in their new order.

        The last rows move into the gaps, so little is copied. Memory is freed when half of the rows
        are unused.
        """
        count = self.rows - len(rows)
        dropped = set(rows)
        moved = [row for row in range(count, self.rows) if row not in dropped]
        free = [row for row in rows if row < count]
        order = list(range(count))
        for row, place in zip(moved, free, strict=True):
            order[place] = row
        if 2 * count <= self._rows_held:
            self.keep(order)
            return order
        sources = torch.tensor(moved, dtype=torch.int64, device=self.padding.device)
        places = torch.tensor(free, dtype=torch.int64, device=self.padding.device)
        for tensors in (self.keys, self.values):
            for index, old in enumerate(tensors):
                if free:
                    old[places, :, : self.filled] = old[sources, :, : self.filled]
                tensors[index] = old[:count]
        self.padding[places] = self.padding[sources]
        self.padding = self.padding[:count]
        return order

    def extend(self, count: int) -> None:
        """Advance by ``count`` columns, which ``put`` then sets."""
        self._new = count
        self.filled += count

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Set the newest columns of a layer; return all its keys and values."""
        own_keys, own_values, new = self.keys[layer], self.values[layer], self.filled - self._new
        own_keys[:, :, new : self.filled] = keys
        own_values[:, :, new : self.filled] = values
        return own_keys[:, :, : self.filled], own_values[:, :, : self.filled]

    def positions(self) -> Tensor:
        """Return the positions of the newest columns: ``[rows, n]``; ``[1, n]`` without padding."""
        columns = torch.arange(self.filled - self._new, self.filled, device=self.padding.device)
        if not self.padded:
            return columns[None]
        return (columns - self.padding[:, None]).clamp(min=0)

    def mask(self) -> Tensor | None:
        """Return the attention mask ``[rows, 1, n, filled]`` of new columns; None without padding.

        Padding attends to itself: a softmax over nothing is NaN, and a NaN value spoils every row.
        """
        if not self.padded:
            return None
        seen = torch.arange(self.filled, device=self.padding.device)
        new = seen[self.filled - self._new :, None]
        return ((seen <= new) & (seen >= self.padding[:, None, None]) | (seen == new))[:, None]
