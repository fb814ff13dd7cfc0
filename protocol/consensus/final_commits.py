"""Commits that the recent final pages list and draw.

They follow from the recent pages that are here: a node that restarts, or joins late, receives these
pages in any order.
"""

from collections.abc import Callable, Mapping

from protocol.consensus.page_node import OFFERED_MAX, PageNode


class FinalCommits:
    """Commits in the final chain, back to the first page that is not here."""

    def __init__(self) -> None:
        self.drawn: dict[bytes, PageNode] = {}
        """For each commit, the first page that draws its committee."""
        self.listed: set[bytes] = set()
        self.certified: set[bytes] = set()
        self._is_known = False

    def forget(self) -> None:
        """Note that the final page, or the pages that are here, have changed."""
        self._is_known = False

    def of(self, root: PageNode, recent: Mapping[bytes, PageNode]) -> "FinalCommits":
        """Return the commits of the chain that ends with the final page ``root``."""
        if not self._is_known:
            self._is_known = True
            self.drawn, self.listed, self.certified = {}, set(), set()
            node = recent.get(root.digest)
            while node is not None and node.page is not None:
                self.drawn |= dict.fromkeys(node.drawn, node)
                self.listed |= set(node.page.message.commits)
                self.certified |= set(node.page.message.certified)
                node = recent.get(node.page.message.parent)
        return self


def with_listing(node: PageNode, page: Callable[[bytes], PageNode | None]) -> dict[bytes, PageNode]:
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
