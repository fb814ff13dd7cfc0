"""The messages that this node has accepted, in order, so that a restart finds its replica again.

What we announce is written and synced before it leaves (``keep``). What others announced is written
in batches (``later``): losing the last of it costs a synchronisation, nothing else.
"""

from protocol.messages import ENVELOPE_BYTES_MAX
from protocol.replica import Replica
from roles.ports import Delete, Put, Store

_TABLE = "messages"


class Archive:
    """An append-only log of envelopes in the node's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._pending: list[Put] = []

    async def restore(self, replica: Replica, now: float) -> None:
        """Replay the log into an empty replica, then drop what it no longer needs."""
        log = list(self._store.scan(_TABLE))
        for _, envelope in log:
            if len(envelope) <= ENVELOPE_BYTES_MAX:
                replica.restore(envelope)
        replica.advance(now)
        kept = dict.fromkeys(replica.envelopes())
        stale = [Delete(_TABLE, key) for key, envelope in log if envelope not in kept]
        if stale:
            await self._store.commit(stale)
        self._next = int.from_bytes(log[-1][0], "big") + 1 if log else 0

    async def keep(self, envelope: bytes) -> None:
        """Write an envelope durably, after everything that came before it."""
        self.later(envelope)
        await self.flush()

    def later(self, envelope: bytes) -> None:
        """Write an envelope with the next ``flush``."""
        self._pending.append(Put(_TABLE, self._next.to_bytes(8, "big"), envelope))
        self._next += 1

    async def flush(self) -> None:
        """Write what is pending; raises ``StorageFullError`` and keeps it pending."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            await self._store.commit(pending)
        except BaseException:
            self._pending = pending + self._pending
            raise
