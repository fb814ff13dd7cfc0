"""Pending pool: a bounded table of signed messages that cannot be processed yet."""

from collections import Counter
from typing import Any

from protocol.core.types import Digest
from protocol.messages.envelope import Signed


class PendingPool:
    """Pending messages with their arrival times, oldest first, at most ``limit``."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self.entries: dict[Digest, tuple[Signed[Any], float]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, digest: object) -> bool:
        return digest in self.entries

    def add(self, signed: Signed[Any], now: float) -> None:
        """Add a message; a pending one keeps its arrival time."""
        self.entries.setdefault(signed.digest, (signed, now))
        if len(self.entries) > self.limit:
            # Evict the oldest message of the signer with the most: a flood displaces only itself.
            counts = Counter(waiting.signer for waiting, _ in self.entries.values())
            most = max(counts, key=counts.__getitem__)
            self.remove(next(key for key, (one, _) in self.entries.items() if one.signer == most))

    def remove(self, digest: Digest) -> None:
        """Remove a message."""
        self.entries.pop(digest, None)

    def expire(self, oldest: float) -> None:
        """Drop messages that arrived before ``oldest``."""
        for digest in [key for key, (_, at) in self.entries.items() if at < oldest]:
            del self.entries[digest]

    def take(self) -> list[tuple[Signed[Any], float]]:
        """Empty the table and return its content, oldest first."""
        waited = list(self.entries.values())
        self.entries.clear()
        return waited
