"""Commits that the recent final pages list and draw.

They follow from the recent pages that are here: a node that restarts, or joins late, receives these
pages in any order.
"""

from collections.abc import Callable, Iterator, Mapping

from protocol.consensus.page_node import OFFERED_MAX, PageNode

PageOf = Callable[[bytes], PageNode | None]
"""Returns a notarised page that is here."""


class FinalCommits:
    """Commits in the final chain, back to the first page that is not here."""

    def __init__(self) -> None:
        self.drawn: dict[bytes, PageNode] = {}
        """For each commit, the first page that draws its committee."""
        self.listed: set[bytes] = set()
        self.decided: dict[bytes, bool] = {}
        """For each commit with a final outcome, whether it is accepted."""
        self._is_known = False

    def forget(self) -> None:
        """Note that the final page, or the pages that are here, have changed."""
        self._is_known = False

    def of(self, root: PageNode, recent: Mapping[bytes, PageNode]) -> "FinalCommits":
        """Return the commits of the chain that ends with the final page ``root``."""
        if not self._is_known:
            self._is_known = True
            self.drawn, self.listed, self.decided = {}, set(), {}
            node = recent.get(root.digest)
            while node is not None and node.page is not None:
                page = node.page.message
                self.drawn |= dict.fromkeys(node.drawn, node)
                self.listed |= set(page.commits)
                self.decided |= dict.fromkeys(page.rejected, False)
                self.decided |= dict.fromkeys(page.certified, True)
                node = recent.get(page.parent)
        return self


def is_final(node: PageNode, root: PageNode, page: PageOf) -> bool | None:
    """Return whether a page is final, by the final page ``root``.

    None if it is later than ``root``, or if a page between them is not here. ``page`` returns a
    page that is here.
    """
    later = page(root.digest)
    while later is not None and later.page is not None and later.epoch > node.epoch:
        later = page(later.page.message.parent)
    if later is None or node.epoch > root.epoch:
        return None
    return later.digest == node.digest


def lineage(page: PageNode, page_of: PageOf) -> Iterator[PageNode | None]:
    """Yield a page and those before it, the newest first; at the end None if one is not here."""
    node: PageNode | None = page
    while node is not None and node.page is not None:
        yield node
        parent = node.page.message.parent
        if not parent:
            return
        node = page_of(parent)
    if node is not page:
        yield None


def accepted_before(node: PageNode, page: PageOf, epochs: int) -> tuple[bytes, ...] | None:
    """Return the commits that a final page and those of some epochs before it accept.

    Without those that one of these pages overturns. None if one of them is not here. ``page``
    returns a page that is here.
    """
    found, overturned = list[bytes](), set[bytes]()
    for one in lineage(node, page):
        if one is None or one.page is None:
            return None
        if one.epoch <= node.epoch - epochs:
            break
        message = one.page.message
        found += (commit for commit in message.certified if commit not in overturned)
        overturned |= set(message.overturned)
    return tuple(found)


def with_listing(node: PageNode, page: PageOf) -> dict[bytes, PageNode]:
    """Return a page and those before it that list the commits that it draws.

    ``page`` returns a page that is here.
    """
    found, before = {node.digest: node}, node if node.draws else None
    while before is not None and before.page is not None and len(found) < OFFERED_MAX:
        before = page(before.page.message.parent)
        if before is not None:
            found[before.digest] = before
            before = None if before.draws else before
    return found
