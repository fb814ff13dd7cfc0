"""Seeded random stream that splits by label.

``Rng(seed).child("gossip")`` is independent of every other child, so a new consumer does not shift
the draws of others. The stream is BLAKE3 in counter mode: the same on every platform and Python
version. ``random.Random`` guarantees that only for ``random()``.
"""

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

T = TypeVar("T")


class Rng:
    """Draws from BLAKE3(seed || counter); not for decisions that need a hash over agreed data."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._counter = 0

    def child(self, label: str) -> "Rng":
        """Return an independent stream named ``label``."""
        return Rng(blake3(self._seed + b"/" + label.encode()).digest())

    def bits64(self) -> int:
        """Return a uniform integer in ``[0, 2**64)``."""
        block = blake3(self._seed + self._counter.to_bytes(8, "big")).digest(8)
        self._counter += 1
        return int.from_bytes(block, "big")

    def below(self, bound: int) -> int:
        """Return a uniform integer in ``[0, bound)``; the bias is under ``bound / 2**64``."""
        if bound < 1:
            raise ValueError("bound must be at least 1")
        return self.bits64() * bound >> 64

    def uniform(self) -> float:
        """Return a float in ``[0, 1)`` with 53 random bits."""
        return (self.bits64() >> 11) / (1 << 53)

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes."""
        block = blake3(self._seed + self._counter.to_bytes(8, "big") + b"b").digest(count)
        self._counter += 1
        return block

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return ``items`` in random order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            chosen = self.below(last + 1)
            result[last], result[chosen] = result[chosen], result[last]
        return result

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return up to ``count`` distinct items in random order."""
        result = list(items)
        count = max(0, min(count, len(result)))
        for place in range(count):
            chosen = place + self.below(len(result) - place)
            result[place], result[chosen] = result[chosen], result[place]
        return result[:count]
