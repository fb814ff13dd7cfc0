"""Pages that one replica receives in virtual time: an honest council's view is the replica's."""

import asyncio
from collections.abc import Callable

from protocol.consensus.committee import Committee, draw
from protocol.consensus.member import Contents
from protocol.core.crypto import Identity
from protocol.core.types import PeerId
from protocol.messages import RolloutCommit, Signed
from protocol.replica.page_contents import PageContents
from protocol.replica.replica import Replica
from tests.worlds.network import LoopClock
from tests.worlds.page_book import PageBook

PAGE_SHARE = 0.02
"""Share of an epoch after which its page arrives: it lists the commits that are there by then."""


class PageWriter(PageBook):
    """Writes the page of each epoch with the commits that a replica knows, until it is stopped.

    ``notify`` is called after each page. Beacons do not depend on what a page lists.
    """

    def __init__(
        self, replica: Replica, council: list[Identity], notify: Callable[[], None]
    ) -> None:
        super().__init__(replica.manifest, council, first=0)
        self._replica, self._notify, self._is_stopped = replica, notify, False
        self._judgement = PageContents(replica, PeerId(""), 0, lambda: replica.ledger.chain.version)
        self._await(0)

    def stop(self) -> None:
        """Write no further page."""
        self._is_stopped = True

    def committee(self, commit: Signed[RolloutCommit]) -> Committee:
        """Return the ranked committee of a commit that was here when its epoch began."""
        self._write_to(commit.message.epoch + 1)
        committee = draw(self._replica.manifest, self._nodes[commit.message.epoch + 1], commit)
        assert committee is not None
        return committee

    def write(self, epoch: int) -> None:
        """Write a page after the replica's newest one."""
        parent = self._replica.pages.tip(epoch)
        assert parent is not None
        contents = self._judgement.contents(parent, epoch)
        node = self._extend(parent, epoch, Contents() if parent.is_closing else contents)
        assert self._replica.pages.offer_chain([node.proof]) is True
        self._replica.count_final()
        self._notify()

    def _await(self, epoch: int) -> None:
        manifest = self._replica.manifest
        due_at = manifest.epoch_start(epoch) + PAGE_SHARE * manifest.epochs.seconds
        asyncio.get_running_loop().call_later(due_at - LoopClock().now(), self._show, epoch)

    def _show(self, epoch: int) -> None:
        if not self._is_stopped:
            self.write(epoch)
            self._await(epoch + 1)
