"""Detection of two final pages of which neither is an ancestor of the other.

Less than a third of dishonest seats cannot make such pages. So the two chains that show them final
prove that the assumption of the run is broken, and no node can tell which of them counts.

Pages after a change of the council are no part of the final chain and are left out. The others lie
on one line: pages of one epoch are the same, and no final page lies between a final page and its
parent. After the page that ends a council, each final page of that council follows the change.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from protocol.consensus.council import NotarisedPage, encode_chain, follows_change
from protocol.core.codec import encode
from protocol.core.containers import SizeGauge
from protocol.messages import Page

PAGES_MAX = 1024
"""Notarised pages that are compared: more than those of the epochs that a tree keeps."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two chains of notarised pages; the last three pages of each show the one before final."""

    first: tuple[NotarisedPage, ...]
    second: tuple[NotarisedPage, ...]

    @property
    def epochs(self) -> tuple[int, int]:
        """Epoch of the newest page that each chain shows final."""
        first, second = (chain[-2].page.message.epoch for chain in (self.first, self.second))
        return first, second

    def encoded(self) -> bytes:
        """Return the canonical bytes of both chains."""
        return encode([encode_chain(self.first), encode_chain(self.second)])


class ConflictWatch:
    """Notarised pages of recent epochs, and which of them are final, in any branch."""

    def __init__(self) -> None:
        self.conflict: Conflict | None = None
        """The first conflict, for good."""
        self._pages: dict[bytes, NotarisedPage] = {}
        self._children: dict[bytes, list[bytes]] = {}
        self._next: dict[bytes, bytes] = {}
        """For each final page, the page after it on the chain that shows it final."""
        self._epochs: list[int] = []
        self._line: dict[int, bytes] = {}
        """Final pages by epoch, except those after a change of the council."""
        self._ends: dict[bytes, int] = {}
        """For each council, the epoch of the final page that ends it."""
        self.gauge = SizeGauge("watched_pages", PAGES_MAX, lambda: len(self._pages))

    def add(self, page: NotarisedPage) -> None:
        """Add a page whose votes are checked."""
        key = page.page.digest
        if self.conflict is not None or key in self._pages or len(self._pages) >= PAGES_MAX:
            return
        self._pages[key] = page
        self._children.setdefault(page.page.message.parent, []).append(key)
        children = self._children.get(key, [])
        later = [last for child in children for last in self._children.get(child, [])]
        for last in (key, *children, *later):
            self._examine(last)
        for child in children:
            if child in self._next and self._is_same_council(key, child):
                self._finalise(key, child)

    def forget(self, oldest: int) -> None:
        """Forget the pages up to an epoch."""
        old = [key for key in self._pages if self._epoch(key) <= oldest]
        for key in old:
            page = self._pages.pop(key)
            siblings = self._children[page.page.message.parent]
            siblings.remove(key)
            if not siblings:
                del self._children[page.page.message.parent]
            self._next.pop(key, None)
            if self._line.get(page.page.message.epoch) == key:
                del self._line[page.page.message.epoch]
                self._epochs.remove(page.page.message.epoch)
        self._ends = {seat: epoch for seat, epoch in self._ends.items() if epoch > oldest}

    def _epoch(self, key: bytes) -> int:
        return self._pages[key].page.message.epoch

    def _parent(self, key: bytes) -> bytes:
        return self._pages[key].page.message.parent

    def _council(self, key: bytes) -> bytes:
        return self._pages[key].page.message.council

    def _is_same_council(self, one: bytes, other: bytes) -> bool:
        return self._council(one) == self._council(other)

    def _examine(self, last: bytes) -> None:
        """Make the parent of a page final if the page is the last of three consecutive epochs."""
        middle = self._parent(last)
        first = self._parent(middle) if middle in self._pages else b""
        if first not in self._pages:
            return
        epoch = self._epoch(last)
        consecutive = (self._epoch(middle), self._epoch(first)) == (epoch - 1, epoch - 2)
        if consecutive and all(self._is_same_council(last, one) for one in (middle, first)):
            self._finalise(middle, last)

    def _finalise(self, key: bytes, after: bytes) -> None:
        """Make a page final, and its ancestors of the same council."""
        found: list[bytes] = []
        while key in self._pages and key not in self._next and self._is_same_council(key, after):
            self._next[key] = after
            found.append(key)
            key, after = self._parent(key), key
        for one in reversed(found):
            if not follows_change(self._pages[one].page.message):
                self._compare(one)

    def _compare(self, key: bytes) -> None:
        """Put a page that has become final on the line of final pages, and compare it."""
        page = self._pages[key].page.message
        pairs = [(key, self._across_the_end(page))]
        if page.epoch in self._line:
            pairs.append((key, self._line[page.epoch]))
        else:
            insort(self._epochs, page.epoch)
            self._line[page.epoch] = key
            if page.changes_council:
                self._ends[page.council] = page.epoch
            place = bisect_right(self._epochs, page.epoch)
            after = [self._line[epoch] for epoch in self._epochs[place : place + 1]]
            children = filter(self._is_final, self._children.get(key, []))
            pairs += [(one, self._between(one)) for one in (key, *after, *children)]
        for one, rival in pairs:
            if rival and self.conflict is None and self._is_same_council(one, rival):
                self.conflict = Conflict(self._chain(one), self._chain(rival))

    def _between(self, key: bytes) -> bytes:
        """Return a final page between a final page and its parent, if that is final too."""
        place = bisect_left(self._epochs, self._epoch(key))
        before = self._line[self._epochs[place - 1]] if place else b""
        parent = self._parent(key)
        return before if self._is_final(parent) and parent != before else b""

    def _is_final(self, key: bytes) -> bool:
        """Return whether a page is known to be final; the beginning of the run is."""
        return not key or (key in self._pages and self._line.get(self._epoch(key)) == key)

    def _across_the_end(self, page: Page) -> bytes:
        """Return a final page of its council that the end of the council divides from a page."""
        ends = self._ends.get(page.council)
        if ends is not None and page.epoch > ends:
            return self._line[ends]
        later = self._epochs[bisect_right(self._epochs, page.epoch) :]
        found = (self._line[epoch] for epoch in later if page.changes_council)
        return next((one for one in found if self._council(one) == page.council), b"")

    def _chain(self, key: bytes) -> tuple[NotarisedPage, ...]:
        """Return the pages that show a page final, from its parent on if that is known."""
        path = [key]
        while path[-1] in self._next:
            path.append(self._next[path[-1]])
        parent = self._parent(key)
        if parent in self._pages and self._is_same_council(parent, key):
            path.insert(0, parent)
        return tuple(self._pages[one] for one in path)
