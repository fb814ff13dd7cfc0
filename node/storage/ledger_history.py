"""Reader of the stored ledger of a run: final pages with their work, and accounts.

It also reads the store of a node that runs.
"""

from collections.abc import Callable, Iterator

from node.storage.state import ACCOUNTS_TABLE, LEDGER_TABLE
from protocol.core.codec import decode
from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.ledger.final_ledger import CountedPage, FinalLedger
from protocol.messages import Page, Signed

START_KEY, STATE_KEY, NEWEST_KEY = b"start", b"state", b"newest"
"""Accounts before the oldest stored page, newest stored accounts, and the newest stored page."""

Get = Callable[[str, bytes], bytes | None]
"""Returns a value of a table in the node's store."""

OpenPage = Callable[[bytes], Signed[Page] | Fault]
"""Opens the envelope of a page of the run."""


class LedgerHistory:
    """Reader of the stored ledger of a run."""

    def __init__(self, get: Get, open_page: OpenPage) -> None:
        self._get, self._open_page = get, open_page

    def restore(self, ledger: FinalLedger) -> None:
        """Continue a ledger with what is stored."""
        leaves = self.leaves(STATE_KEY)
        if leaves:
            ledger.restore(leaves)
        ledger.replay(self.since(ledger.accounts.header.page))

    def leaves(self, key: bytes) -> tuple[bytes, ...]:
        """Return stored accounts; empty for those of the beginning of the run."""
        data = self._get(ACCOUNTS_TABLE, key)
        leaves = decode(data, bytes_max=len(data)) if data else ()
        return () if isinstance(leaves, Fault) else tuple(leaves)

    def page(self, page: bytes) -> CountedPage | None:
        """Return a stored page with its work."""
        data = self._get(LEDGER_TABLE, page)
        fields = decode(data, bytes_max=len(data)) if data else None
        if not isinstance(fields, tuple):
            return None
        envelope, beacon, work = fields
        opened = self._open_page(envelope)
        return None if isinstance(opened, Fault) else CountedPage(opened, Digest(beacon), work)

    def since(self, page: bytes) -> list[CountedPage]:
        """Return the stored pages after one, the oldest first; none if that one is unknown."""
        found: list[CountedPage] = []
        for one in self.back_from(self.newest):
            if one.page.digest == page:
                return found[::-1]
            found.append(one)
        is_whole = bool(found) and found[-1].page.message.parent == page
        return found[::-1] if is_whole else []

    @property
    def newest(self) -> bytes:
        """Digest of the newest stored page; empty for none."""
        return self._get(ACCOUNTS_TABLE, NEWEST_KEY) or b""

    def back_from(self, page: bytes) -> Iterator[CountedPage]:
        """Yield a page and those before it, as far as they are stored."""
        while (stored := self.page(page)) is not None:
            yield stored
            page = stored.page.message.parent
