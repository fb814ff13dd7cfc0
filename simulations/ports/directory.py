"""Modelled DHT: slow, stale, partial and lossy, with expiry.

A record becomes visible some time after its publication. A look-up takes some round trips, misses
some of the records, or fails.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.membership.directory_buckets import OWNERS_PER_KEY_MAX
from roles.ports.clock import Clock
from roles.ports.transport import Directory
from simulations.scenario.scenario import DirectoryQuality


@dataclass(slots=True)
class _StoredRecord:
    value: bytes
    visible_at: float
    expires_at: float
    previous: bytes | None
    """The value that readers see until ``visible_at``."""


class SharedDirectory:
    """The shared DHT; ``reaches(one, other)`` tells whether two machines can connect."""

    def __init__(
        self,
        clock: Clock,
        quality: DirectoryQuality,
        reaches: Callable[[PeerId, PeerId], bool] = lambda _one, _other: True,
    ) -> None:
        self._clock = clock
        self.quality = quality
        self._reaches = reaches
        self._stored: dict[str, dict[PeerId, _StoredRecord]] = {}

    def directory(self, owner: PeerId, rng: Rng) -> "SimDirectory":
        """Return one node's ``Directory`` port."""
        return SimDirectory(self, owner, rng)

    def store(self, key: str, owner: PeerId, value: bytes, expires_at: float) -> bool:
        """Store a record; False if there is no room for another owner."""
        now = self._clock.now()
        records = self._stored.setdefault(key, {})
        known = records.get(owner)
        if known is None and len(records) >= OWNERS_PER_KEY_MAX:
            self._forget_expired(records, now)
        if known is None and len(records) >= OWNERS_PER_KEY_MAX:
            return False
        previous = None if known is None else _visible(known, now)
        records[owner] = _StoredRecord(
            value, now + self.quality.delay_seconds, expires_at, previous
        )
        return True

    def read(self, key: str, reader: PeerId) -> dict[PeerId, bytes]:
        """Return every record visible to ``reader``, and drop expired ones."""
        now = self._clock.now()
        records = self._stored.get(key, {})
        self._forget_expired(records, now)
        seen = {owner: _visible(stored, now) for owner, stored in records.items()}
        return {
            owner: value
            for owner, value in seen.items()
            if value is not None and self._reaches(reader, owner)
        }

    def _forget_expired(self, records: dict[PeerId, _StoredRecord], now: float) -> None:
        for owner in [owner for owner, stored in records.items() if stored.expires_at <= now]:
            del records[owner]


class SimDirectory(Directory):
    """The ``Directory`` port of one node."""

    def __init__(self, shared: SharedDirectory, owner: PeerId, rng: Rng) -> None:
        self._shared = shared
        self._quality = shared.quality
        self._owner = owner
        self._rng = rng

    @override
    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        await self._take_time()
        if self._rng.uniform() < self._quality.failing:
            return False
        return self._shared.store(key, self._owner, value, expires_at)

    @override
    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        await self._take_time()
        if self._rng.uniform() < self._quality.failing:
            return {}
        found, missing = self._shared.read(key, self._owner), self._quality.missing
        if not missing:
            return found
        return {owner: value for owner, value in found.items() if self._rng.uniform() >= missing}

    async def _take_time(self) -> None:
        await asyncio.sleep(self._quality.lookup_seconds * (0.5 + self._rng.uniform()))


def _visible(stored: _StoredRecord, now: float) -> bytes | None:
    return stored.value if stored.visible_at <= now else stored.previous
