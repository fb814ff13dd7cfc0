"""The disk of a machine, a daemon's session on it, and its ``Store`` port.

A write takes ``COMMIT_SECONDS``. A daemon that dies meanwhile writes nothing of it, and its ports
change nothing afterwards.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from roles.ports.storage import (
    Delete,
    Owner,
    Put,
    StorageFullError,
    Store,
)
from simulations.ports.incoming_file import SimIncomingFile
from simulations.runtime.content import joined

COMMIT_SECONDS = 0.004
"""A synced SQLite transaction on an SSD; a guess."""


@dataclass(slots=True)
class Disk:
    """The disk of a machine; ``quota_bytes`` None means no limit."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    arrivals: dict[Digest, SimIncomingFile] = field(default_factory=dict)
    owners: dict[Owner, dict[Digest, None]] = field(default_factory=dict)
    files: dict[Path, bytes] = field(default_factory=dict)
    quota_bytes: int | None = None
    used_bytes: int = 0
    """Blobs and partial blobs."""

    def reserve(self, count: int) -> None:
        """Count bytes as used; raises ``StorageFullError``."""
        if self.quota_bytes is not None and self.used_bytes + count > self.quota_bytes:
            raise StorageFullError(f"no room for {count} bytes")
        self.used_bytes += count

    def require_room(self) -> None:
        """Check that the disk is not full; raises ``StorageFullError``."""
        if self.quota_bytes is not None and self.used_bytes >= self.quota_bytes:
            raise StorageFullError("the quota is used up")

    def file_of(self, index: Digest) -> bytes | None:
        """Return the file of an index; None unless all of its shards are here."""
        decoded = shard_index.decode(self.blobs.get(index, b""))
        if isinstance(decoded, Fault):
            return None
        shards = [self.blobs.get(shard.digest) for shard in decoded.shards]
        return None if None in shards else joined([shard for shard in shards if shard is not None])

    def wipe(self) -> None:
        """Delete everything."""
        for kept in (self.tables, self.blobs, self.arrivals, self.owners, self.files):
            kept.clear()
        self.used_bytes = 0


@dataclass(slots=True)
class Session:
    """One start of a daemon: alive or not, and the hook on its writes."""

    alive: bool = True
    at_write: Callable[[], Awaitable[None]] | None = None
    """Awaited before and after every durable write; a fault may end the session there."""

    @asynccontextmanager
    async def writing(self, seconds: float = COMMIT_SECONDS) -> AsyncGenerator[None, None]:
        """Wait for the duration of a durable write, which is made inside."""
        if self.at_write is not None and self.alive:
            await self.at_write()
        if seconds:
            await asyncio.sleep(seconds)
        yield
        if self.at_write is not None and self.alive:
            await self.at_write()


OnPut = Callable[[Put], None]


class SimStore(Store):
    """The ``Store`` port; ``on_put`` receives each entry that became durable."""

    def __init__(self, disk: Disk, session: Session, on_put: OnPut = lambda _put: None) -> None:
        self._disk = disk
        self._session = session
        self._on_put = on_put

    @override
    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        async with self._session.writing():
            if not self._session.alive:
                return
            self._disk.require_room()
            for change in changes:
                table = self._disk.tables.setdefault(change.table, {})
                if isinstance(change, Put):
                    table[change.key] = change.value
                    self._on_put(change)
                else:
                    table.pop(change.key, None)

    @override
    def get(self, table: str, key: bytes) -> bytes | None:
        return self._disk.tables.get(table, {}).get(key)

    @override
    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._disk.tables.get(table, {}).items())
