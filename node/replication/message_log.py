"""The messages that this node has accepted, in order, so that a restart finds its replica again.

What we announce is written and synced before it leaves (``keep``). What others announced is written
in batches (``later``): losing the last of it costs a synchronisation, nothing else. What the
replica no longer needs is deleted (``compact``), so the log is as long as the replica is large.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import structlog

from node.storage.state import read_table
from protocol.messages import ENVELOPE_BYTES_MAX
from protocol.replica.replica import Replica
from roles.ports.storage import Delete, Put, StorageFullError, Store

log = structlog.get_logger()

_TABLE = "messages"


def stored_messages(path: Path) -> list[bytes]:
    """Return the envelopes in the store at ``path``, also of a node that runs; writes nothing.

    Raises ``ValueError`` for a file that is none.
    """
    return [value for _, value in read_table(path, _TABLE) if len(value) <= ENVELOPE_BYTES_MAX]


class MessageLog:
    """A log of envelopes in the node's store, one row each; the keys give the order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._pending: dict[bytes, bytes] = {}  # envelope -> key
        self._written: dict[bytes, bytes] = {}  # envelope -> key
        self._writing = asyncio.Lock()

    def replay(self) -> Iterator[bytes]:
        """Yield the envelopes in the order they were written."""
        for key, envelope in self._store.scan(_TABLE):
            self._written[envelope] = key
            self._next = int.from_bytes(key, "big") + 1
            if len(envelope) <= ENVELOPE_BYTES_MAX:
                yield envelope

    async def keep(self, envelope: bytes) -> bool:
        """Write an envelope durably, after everything that came before it; False if it was here.

        Raises ``StorageFullError``, and then it is not written later either: its author makes
        another one, and a restart must not find both.
        """
        known = envelope in self._written or envelope in self._pending
        try:
            # Whoever keeps it too may have had to give it up, and ``compact`` may have deleted it.
            while envelope not in self._written:
                self.later(envelope)
                await self.flush()
        except StorageFullError:
            self._pending.pop(envelope, None)
            raise
        return not known

    def later(self, envelope: bytes) -> None:
        """Write an envelope with the next ``flush``."""
        if envelope not in self._written and envelope not in self._pending:
            self._pending[envelope] = self._next.to_bytes(8, "big")
            self._next += 1

    async def flush(self) -> None:
        """Write what is pending; raises ``StorageFullError`` and keeps it pending."""
        async with self._writing:  # one at a time, or a later message could be here alone
            batch = dict(self._pending)
            if batch:
                await self._store.commit([Put(_TABLE, key, data) for data, key in batch.items()])
            for envelope, key in batch.items():
                self._pending.pop(envelope, None)
                self._written[envelope] = key

    async def forget(self, envelope: bytes) -> None:
        """Delete an envelope that was kept and then never announced."""
        self._pending.pop(envelope, None)
        if envelope in self._written:
            await self._delete([envelope])

    async def compact(self, replica: Replica) -> None:
        """Delete what ``replica`` would not need after a restart, written or pending."""
        needed = dict.fromkeys(replica.envelopes())
        for envelope in [item for item in self._pending if item not in needed]:
            del self._pending[envelope]
        await self._delete([item for item in self._written if item not in needed])

    async def _delete(self, envelopes: list[bytes]) -> None:
        # Taken out first: what comes again meanwhile is written again, under another key.
        rows = {item: self._written.pop(item) for item in envelopes}
        try:
            if rows:
                await self._store.commit([Delete(_TABLE, key) for key in rows.values()])
        except StorageFullError as error:  # SQLite writes before it frees; the next one tries
            log.warning("old messages are not deleted", error=str(error))
            self._written = rows | self._written
