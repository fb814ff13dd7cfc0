"""Accounts of the run, which follow from the work of each final page.

A final page names its work by digest. This node derives the work from the messages that it holds
(``protocol.replica.settlement``), or receives it from a peer. It counts pages in their order, so a
page whose work is unknown makes those after it wait. A node that has missed pages walks back from a
page that it knows to be final, by the parents' digests, or takes over a snapshot of the accounts,
whose root a final page states.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.merkle import root_of
from protocol.core.types import Digest
from protocol.ledger.accounts import Accounts, CreditRules, HashedLeaf
from protocol.ledger.receipts import PageWork, decode_work, work_digest
from protocol.messages import Page, Signed

RECENT_STATES = 8
"""Newest states that are kept, for votes, proofs and snapshots: their leaves share memory. The
newest final page states the root of a state two to three pages older."""

HISTORY_EPOCHS_MAX = 1440
"""Epochs for which a node walks back: a day of one-minute epochs, and about as many requests as it
would take to fetch a snapshot of 20,000 accounts."""

PAGES_AT_ONCE = 64
"""Pages in one response: 64 KB of a busy run."""

WAITING_MAX = 2048
"""Final pages that may wait for work: more than a day of one-minute epochs. With their work they
take 0.5 KB each and 100 B per rollout."""


@dataclass(slots=True)
class FinalPage:
    """A page that is final, and its work once that is known."""

    page: Signed[Page]
    beacon: Digest
    work: PageWork | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the page."""
        return self.page.message.epoch


class CountedPage(NamedTuple):
    """A final page that is counted, with its encoded work."""

    page: Signed[Page]
    beacon: Digest
    work: bytes


@dataclass(frozen=True)
class AccountState:
    """All accounts after a final page."""

    epoch: int
    hashed: tuple[HashedLeaf, ...]

    @property
    def leaves(self) -> list[bytes]:
        """Leaves of the accounts."""
        return [leaf for leaf, _ in self.hashed]

    @cached_property
    def root(self) -> Digest:
        """Merkle root of the leaves. Members of the council need it, other nodes seldom do."""
        return root_of([one for _, one in self.hashed])


class Missing(NamedTuple):
    """A final page to request, and the number of pages back from it."""

    page: bytes
    pages: int


Derive = Callable[[Page, bytes], PageWork | None]
"""Derives the work of a page after one with the final version ``head``; None if it cannot."""


class FinalLedger:
    """Accounts up to the newest final page whose work this node knows."""

    def __init__(self, rules: CreditRules) -> None:
        self._rules = rules
        self._waiting = deque[FinalPage]()
        self._counted: list[CountedPage] = []
        self._reversals: list[tuple[Digest, str]] = []
        self._adopted: AccountState | None = None
        self._states = deque[AccountState](maxlen=RECENT_STATES)
        self.accounts = Accounts(rules)
        self._note()
        self.tables: tuple[Table, ...] = (
            SizeGauge("final_pages", WAITING_MAX, lambda: len(self._waiting)),
        )

    # Queries

    def root(self, epoch: int) -> Digest | None:
        """Return the root of the accounts after the final page of a recent epoch; -1 for none."""
        state = self.state(epoch)
        return None if state is None else state.root

    def state(self, epoch: int) -> AccountState | None:
        """Return all accounts after the final page of an epoch, if it is recent."""
        return next((one for one in self._states if one.epoch == epoch), None)

    @property
    def oldest_state(self) -> AccountState:
        """The oldest state that is kept whole."""
        return self._states[0]

    @property
    def is_behind(self) -> bool:
        """True while a final page waits for work."""
        return bool(self._waiting)

    @property
    def newest_epoch(self) -> int:
        """Epoch of the newest final page, counted or not."""
        return self._waiting[-1].epoch if self._waiting else self.accounts.header.epoch

    @property
    def has_gap(self) -> bool:
        """True while pages before the oldest waiting one are missing."""
        return bool(self._waiting) and self._parent_of_waiting != self.accounts.header.page

    @property
    def missing(self) -> Missing | None:
        """The pages that this node should request next with their work; None if it needs none."""
        if self.has_gap:
            return Missing(self._parent_of_waiting, PAGES_AT_ONCE)
        missing, pages, before = None, 0, b""
        for one in self._waiting:
            if pages == PAGES_AT_ONCE or (pages and one.page.message.parent != before):
                break  # a request ends where pages are missing: they are requested later
            if pages or one.work is None:
                pages, before = pages + 1, one.page.digest
            if one.work is None:
                missing = Missing(before, pages)
        return missing

    @property
    def is_far_behind(self) -> bool:
        """True if a snapshot is due instead of the pages that are missing."""
        return (
            self.has_gap
            and self._waiting[0].epoch - self.accounts.header.epoch > HISTORY_EPOCHS_MAX
        )

    @property
    def _parent_of_waiting(self) -> bytes:
        return self._waiting[0].page.message.parent

    # Final pages

    def follow(self, page: Signed[Page], beacon: Digest) -> None:
        """Count a page that has become final, now or once its work is known."""
        if page.message.epoch <= self.newest_epoch:
            return  # counted before a restart
        self._waiting.append(FinalPage(page, beacon))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()

    def count(self, derive: Derive) -> None:
        """Count the waiting pages, the oldest first, as far as their work is known."""
        while self._waiting and not self.has_gap:
            page = self._waiting[0]
            message = page.page.message
            work = page.work or _work_of(message, derive, self.accounts.header.head)
            if work is None:
                return
            self._waiting.popleft()
            self.accounts.apply(
                page.page.digest, message.epoch, page.beacon, Digest(message.head), work
            )
            self._counted.append(CountedPage(page.page, page.beacon, work.encoded()))
            self._reversals += ((Digest(one.receipt.commit), one.reason) for one in work.overturned)
            self._note()

    def _note(self) -> None:
        accounts = self.accounts
        self._states.append(AccountState(accounts.header.epoch, accounts.hashed_leaves))

    def take_counted(self) -> list[CountedPage]:
        """Return the pages that were counted since the last call, the oldest first."""
        counted, self._counted = self._counted, []
        return counted

    def take_reversals(self) -> list[tuple[Digest, str]]:
        """Return the commits that pages counted since the last call overturn, with the reasons."""
        reversals, self._reversals = self._reversals, []
        return reversals

    def take_adopted(self) -> AccountState | None:
        """Return the snapshot that was adopted since the last call: counting began anew with it."""
        adopted, self._adopted = self._adopted, None
        return adopted

    # Pages and snapshots of other nodes, and of this disk

    def offer(self, page: Signed[Page], work: bytes) -> Fault | bool:
        """Accept the ``missing`` page with its encoded work; False if it is not needed."""
        known = next((one for one in self._waiting if one.page.digest == page.digest), None)
        is_before = self.has_gap and page.digest == self._parent_of_waiting
        if known is None and not is_before:
            return False
        if work_digest(work) != page.message.work:
            return Fault(FaultCode.WRONG_WORK, "not the work of the page")
        found = decode_work(work)
        if isinstance(found, Fault):
            return found
        if known is not None:
            is_news = known.work is None
            known.work = found
            return is_news
        if len(self._waiting) >= WAITING_MAX:
            return False
        beacon = Digest(self._waiting[0].page.message.seed)
        self._waiting.appendleft(FinalPage(page, beacon, found))
        return True

    def adopt(self, leaves: Sequence[bytes], statement: Page) -> Fault | None:
        """Take over a snapshot of the accounts whose root a final page states.

        No effect if this node has counted as far meanwhile.
        """
        accounts = Accounts.restore(leaves, self._rules)
        if isinstance(accounts, Fault):
            return accounts
        if (accounts.root, accounts.header.epoch) != (statement.ledger, statement.final_epoch):
            return Fault(FaultCode.WRONG_WORK, "not the accounts that the page states")
        if accounts.header.epoch <= self.accounts.header.epoch:
            return None
        self._continue_with(accounts)
        self._adopted = self._states[-1]
        return None

    def restore(self, leaves: Sequence[bytes]) -> None:
        """Continue with the accounts that this node has stored.

        Accounts that cannot be read are left out: then this node adopts a snapshot.
        """
        accounts = Accounts.restore(leaves, self._rules)
        if not isinstance(accounts, Fault):
            self._continue_with(accounts)

    def replay(self, pages: Iterable[CountedPage]) -> None:
        """Count pages again that this node counted before a restart, the oldest first."""
        for one in pages:
            self.follow(one.page, one.beacon)
            self.offer(one.page, one.work)
            self.count(lambda _page, _head: None)
        self._counted.clear()

    def _continue_with(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self._counted.clear()
        self._waiting = deque(one for one in self._waiting if one.epoch > accounts.header.epoch)
        self._states.clear()
        self._note()


def _work_of(page: Page, derive: Derive, head: bytes) -> PageWork | None:
    """Return the work of a page if this node can derive just what the page names."""
    if not page.work:
        return PageWork()
    work = derive(page, head)
    return work if work is not None and work.digest == page.work else None
