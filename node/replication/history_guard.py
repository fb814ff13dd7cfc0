"""Guard of the history that a node follows: its trusted page, and conflicting final pages.

A page that the operator gives with ``--page`` is stored, so that later starts check it too. A node
whose history has passed the epoch of that page without it must not go on, nor one that no peer
shows the page. Two final pages that conflict prove that a third of a council's seats is dishonest:
no node can know which of them counts, so the node stops and leaves the decision to its operator.
"""

import asyncio
from collections.abc import Mapping

import structlog

from node.context import NodeContext
from protocol.consensus.conflict import Conflict
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.types import PeerId
from roles.ports.storage import Put, StorageFullError

log = structlog.get_logger()

PATIENCE_EPOCHS = 4.0
"""Epochs after the first peer with another history in which one with the trusted page may answer: a
guess, the same as for the peers to synchronise with."""

_TABLE, _KEY = "trusted-page", b""


class HistoryGuard:
    """Guard of one node; ``wait_refused`` returns when the node must stop."""

    def __init__(
        self,
        context: NodeContext,
        others: Mapping[PeerId, float],
        given: TrustedPage | None = None,
    ) -> None:
        self._context, self.others = context, others
        self._intake = context.replica.intake
        self._page = given or self._stored()
        self.conflict: Conflict | None = None
        """Two final pages that conflict, if they are the reason of a stop."""
        self.refusal = ""
        """Why the node must stop; empty while it may run."""

    @property
    def page(self) -> TrustedPage | None:
        """The page by which this node checks, or has checked, its history."""
        return self._page

    async def begin(self) -> str:
        """Check the restored history; return why the node must not start, or an empty string."""
        page, tree = self._page, self._intake.tree
        if page is None:
            return ""
        if page.contradicts(tree):
            return self._refuse(
                f"this data dir holds another history than that of page {page}, up to epoch "
                f"{tree.root.epoch}; compare the page with other members, and start with an empty "
                "--data-dir if it is right"
            )
        try:
            await self._context.ports.store.commit([Put(_TABLE, _KEY, str(page).encode())])
        except StorageFullError as error:  # this start checks it all the same
            log.warning("trusted page not stored", error=str(error))
        if not page.is_in(tree):
            self._intake.awaited = page
        return ""

    async def wait_refused(self) -> str:
        """Wait until the node must stop, and return why."""
        epoch_seconds = self._context.replica.manifest.epochs.seconds
        changes, loop = self._context.changes, asyncio.get_running_loop()
        ends_at: float | None = None
        while True:
            count = changes.count
            self.conflict = self._intake.tree.watch.conflict
            if self.conflict is not None:
                first, second = sorted(self.conflict.epochs)
                return self._refuse(
                    f"two histories of this run are final, up to epochs {first} and {second}: a "
                    "third of a council's seats has signed both"
                )
            if self.others and ends_at is None:
                ends_at = loop.time() + PATIENCE_EPOCHS * epoch_seconds
            is_late = ends_at is not None and loop.time() >= ends_at
            if self._intake.awaited is not None and is_late:
                return self._refuse(
                    f"{len(self.others)} peers show another history than that of page "
                    f"{self._page}, and none shows that page; compare the page with other members, "
                    "or choose other --initial-peers"
                )
            await changes.wait(epoch_seconds, count)

    def _refuse(self, reason: str) -> str:
        self.refusal = reason
        log.error("history_refused", reason=reason)
        return reason

    def _stored(self) -> TrustedPage | None:
        text = self._context.ports.store.get(_TABLE, _KEY)
        return None if text is None else TrustedPage.parse(text.decode("ascii"))
