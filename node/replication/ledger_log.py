"""Durable ledger: all final pages that this node has counted with their work, and the accounts.

A restart continues with the stored accounts and the pages after them. The pages are kept for ever:
they are what a node exports, and what it serves to nodes that missed some. One takes about 0.5 KB,
and 0.2 KB more for each rollout. A node that adopts a snapshot begins anew with it.
"""

from collections.abc import Iterator, Sequence

import structlog

from node.storage.ledger_history import NEWEST_KEY, START_KEY, STATE_KEY, LedgerHistory, OpenPage
from node.storage.state import ACCOUNTS_TABLE, LEDGER_TABLE
from protocol.core.codec import encode
from protocol.ledger.final_ledger import CountedPage, FinalLedger
from roles.ports.storage import Delete, Put, Store

log = structlog.get_logger()


class LedgerLog(LedgerHistory):
    """The stored ledger of a running node."""

    def __init__(self, store: Store, open_page: OpenPage) -> None:
        super().__init__(store.get, open_page)
        self._store = store
        self._unwritten: list[Put | Delete] = []

    async def flush(self, ledger: FinalLedger) -> None:
        """Write the pages that were counted since the last call.

        Raises ``StorageFullError`` and keeps them for the next call.
        """
        adopted = ledger.take_adopted()
        if adopted is not None:
            log.info("ledger_snapshot_adopted", epoch=adopted.epoch, root=adopted.root.hex())
            old = [Delete(LEDGER_TABLE, key) for key, _ in self._store.scan(LEDGER_TABLE)]
            leaves = encode(adopted.leaves)
            rows = [Put(ACCOUNTS_TABLE, key, leaves) for key in (START_KEY, STATE_KEY)]
            self._unwritten = [*old, *rows, Delete(ACCOUNTS_TABLE, NEWEST_KEY)]
        self._unwritten += _rows(ledger.take_counted())
        if self._unwritten:
            await self._store.commit(self._unwritten)
            self._unwritten = []

    async def keep_accounts(self, ledger: FinalLedger) -> None:
        """Store the oldest recent accounts: a restart counts the pages after them again.

        So it has the accounts whose root the newest final page states, which prove its work.
        """
        await self.flush(ledger)
        leaves = encode(ledger.oldest_state.leaves)
        await self._store.commit([Put(ACCOUNTS_TABLE, STATE_KEY, leaves)])


def _rows(counted: Sequence[CountedPage]) -> Iterator[Put]:
    for one in counted:
        row = encode([one.page.envelope, one.beacon, one.work])
        yield Put(LEDGER_TABLE, one.page.digest, row)
    if counted:
        yield Put(ACCOUNTS_TABLE, NEWEST_KEY, counted[-1].page.digest)
