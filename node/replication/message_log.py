"""Durable, ordered log of accepted messages, from which a restart rebuilds the replica.

Own messages are written and synced before they leave (``keep``). Others are written in batches
(``later``): the loss of the last batch costs one synchronisation. ``compact`` deletes what the
replica no longer needs, so the log grows only with the replica.
"""

import asyncio
from collections.abc import Iterator, Sequence

import structlog

from node.storage.state import MESSAGES_TABLE, PAGES_TABLE
from protocol.messages import ENVELOPE_BYTES_MAX
from protocol.replica.replica import Replica
from roles.ports.storage import Delete, Put, StorageFullError, Store

log = structlog.get_logger()


class MessageLog:
    """Log of envelopes in the node's store, one row each, ordered by key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._pending: dict[bytes, bytes] = {}  # envelope -> key
        self._written: dict[bytes, bytes] = {}  # envelope -> key
        self._new_chains: list[bytes] = []
        self._next_chain = 0
        self._writing = asyncio.Lock()

    def replay(self) -> Iterator[bytes]:
        """Yield the envelopes in the order of writing; restore the ``chains`` before them."""
        for key, envelope in self._store.scan(MESSAGES_TABLE):
            self._written[envelope] = key
            self._next = int.from_bytes(key, "big") + 1
            if len(envelope) <= ENVELOPE_BYTES_MAX:
                yield envelope

    async def keep(self, envelope: bytes) -> bool:
        """Write an envelope durably, after all earlier ones; False if it was here.

        After ``StorageFullError`` it is not written later either: its author makes another one, and
        a restart must not find both.
        """
        known = envelope in self._written or envelope in self._pending
        try:
            # A concurrent ``keep`` may have failed, and ``compact`` may have deleted the row.
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

    def later_chain(self, chain: bytes) -> None:
        """Write notarised pages of another node with the next ``flush``, before the envelopes."""
        self._new_chains.append(chain)

    async def flush(self) -> None:
        """Write what is pending; raises ``StorageFullError`` and keeps it pending."""
        async with self._writing:  # one at a time, or a later message could be here alone
            batch, chains = dict(self._pending), list(self._new_chains)
            changes = [
                *(_chain_row(self._next_chain + n, chain) for n, chain in enumerate(chains)),
                *(Put(MESSAGES_TABLE, key, data) for data, key in batch.items()),
            ]
            if changes:
                await self._store.commit(changes)
            del self._new_chains[: len(chains)]
            self._next_chain += len(chains)
            for envelope, key in batch.items():
                self._pending.pop(envelope, None)
                self._written[envelope] = key

    async def forget(self, envelope: bytes) -> None:
        """Delete an envelope that was kept and never announced."""
        self._pending.pop(envelope, None)
        if envelope in self._written:
            await self._delete([envelope])

    async def compact(self, replica: Replica) -> None:
        """Delete what ``replica`` would not need after a restart.

        Its notarised pages replace the pages and votes that arrived, so they are written first.
        What it needed before that write stays, and what came during it: a page may have been
        notarised meanwhile.
        """
        async with self._writing:
            needed = dict.fromkeys(replica.envelopes())
            old = [item for item in (*self._pending, *self._written) if item not in needed]
            if not await self._keep_chains(list(replica.chains())):
                return
        needed = dict.fromkeys(replica.envelopes())
        old = [item for item in old if item not in needed]
        for envelope in old:
            self._pending.pop(envelope, None)
        await self._delete([item for item in old if item in self._written])

    def chains(self) -> Iterator[bytes]:
        """Yield the encoded notarised pages, in the order to restore them."""
        for key, chain in self._store.scan(PAGES_TABLE):
            self._next_chain = int.from_bytes(key, "big") + 1
            yield chain

    async def _keep_chains(self, chains: Sequence[bytes]) -> bool:
        """Replace the stored pages; False if there is no room."""
        rows = [_chain_row(number, chain) for number, chain in enumerate(chains)]
        known, keys = dict(self._store.scan(PAGES_TABLE)), {row.key for row in rows}
        changes: list[Put | Delete] = [row for row in rows if known.get(row.key) != row.value]
        changes += [Delete(PAGES_TABLE, key) for key in known if key not in keys]
        taken = len(self._new_chains)
        try:
            await self._store.commit(changes)
        except StorageFullError as error:
            log.warning("pages not stored", error=str(error))
            return False
        del self._new_chains[:taken]
        self._next_chain = len(rows)
        return True

    async def _delete(self, envelopes: list[bytes]) -> None:
        # Removed first: an envelope that arrives again meanwhile gets a new row.
        rows = {item: self._written.pop(item) for item in envelopes}
        try:
            if rows:
                await self._store.commit([Delete(MESSAGES_TABLE, key) for key in rows.values()])
        except StorageFullError as error:  # SQLite writes before it frees; the next call retries
            log.warning("old messages not deleted", error=str(error))
            self._written = rows | self._written


def _chain_row(number: int, chain: bytes) -> Put:
    return Put(PAGES_TABLE, number.to_bytes(8, "big"), chain)
