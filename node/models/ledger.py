"""Ledger in a data directory, also while its node runs: accounts, pages, proofs and exports."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from node.local.errors import ExitCode, NodeError
from node.models.held import HeldRun, open_held_run
from node.models.ledger_export import write_export, write_proof
from node.storage.ledger_history import START_KEY, LedgerHistory
from node.storage.state import stored_value
from protocol.core.types import Digest, PeerId
from protocol.ledger.accounts import Accounts
from protocol.ledger.final_ledger import CountedPage
from protocol.ledger.receipts import PageWork, decode_work

PREFIX_MIN = 8
"""Least hex digits of a page's digest that name it."""


class HeldLedger:
    """Accounts of a run, and the final pages that they follow from."""

    def __init__(self, held: HeldRun) -> None:
        self.held = held
        intake = held.replica.intake
        self.accounts: Accounts = intake.accounts
        self._intake = intake
        get = partial(stored_value, held.state_path)
        self._history = LedgerHistory(get, intake.open_page)

    @property
    def is_behind(self) -> bool:
        """True if the node knows final pages that it has not counted yet."""
        return self._intake.tree.root.digest != self.accounts.header.page

    def page(self, name: str) -> CountedPage:
        """Return a page by its epoch or by first digits of its digest; raises ``NodeError``."""
        epoch = int(name) if name.isdecimal() and len(name) < PREFIX_MIN else None
        for counted in self._history.back_from(self._history.newest):
            found = counted.page.message.epoch
            is_named = counted.page.digest.hex().startswith(name) if epoch is None else None
            if is_named or found == epoch:
                return counted
            if epoch is not None and found < epoch:
                break
        raise NodeError(
            f"no final page {name} in {self.held.root}; give an epoch or at least {PREFIX_MIN} hex "
            "digits of a page's digest",
            ExitCode.CONFIG,
        )

    @staticmethod
    def work(counted: CountedPage) -> PageWork:
        """Return the work of a stored page."""
        work = decode_work(counted.work)
        assert isinstance(work, PageWork), "checked when it was stored"
        return work

    def prove(self, peer: PeerId, stream: BinaryIO) -> None:
        """Write a proof of a key's account that ``prime-node ledger verify`` accepts.

        It shows the account whose root the newest final page states. Raises ``NodeError``.
        """
        tree, statement = self._intake.tree, self._intake.statement
        shown = None if statement is None else self._intake.ledger.state(statement.final_epoch)
        accounts = None if shown is None else Accounts.restore(shown.leaves, self.accounts.rules)
        proof = accounts.proof(peer) if isinstance(accounts, Accounts) else None
        if proof is None:
            raise NodeError(
                f"no final page in {self.held.root} states an account of {peer} yet; try again "
                "after some epochs",
                ExitCode.RETRY,
            )
        manifest = self.held.manifest.encoded()
        write_proof(stream, manifest, tree.handovers, tree.newest, proof)

    def export(self, stream: BinaryIO) -> int:
        """Write an export of all stored pages; return their number. Raises ``NodeError``."""
        self._require_whole()
        tree, start = self._intake.tree, self._history.leaves(START_KEY)
        digests = self._digests()
        pages = ((one.page.envelope, one.work) for one in self._pages(digests))
        manifest = self.held.manifest.encoded()
        write_export(stream, manifest, start or None, tree.handovers, tree.newest, pages)
        return len(digests)

    def pages(self) -> Iterator[CountedPage]:
        """Yield all stored pages, the oldest first; raises ``NodeError``."""
        self._require_whole()
        return self._pages(self._digests())

    def _require_whole(self) -> None:
        if self.is_behind:
            raise NodeError(
                f"the node of {self.held.root} has not counted all final pages yet; let it run, "
                "and try again in a minute",
                ExitCode.RETRY,
            )
        if not self._history.newest:
            raise NodeError(f"{self.held.root} holds no final page yet", ExitCode.RETRY)

    def _digests(self) -> list[Digest]:
        stored = self._history.back_from(self._intake.tree.root.digest)
        return [one.page.digest for one in stored][::-1]

    def _pages(self, digests: list[Digest]) -> Iterator[CountedPage]:
        found = map(self._history.page, digests)
        return (one for one in found if one is not None)


def open_held_ledger(root: Path) -> HeldLedger:
    """Return the ledger of a data directory; raises ``NodeError`` if there is none."""
    held = open_held_run(root)
    if not held.state_path.is_file():
        raise NodeError(f"{root} holds no ledger: its node has not run yet", ExitCode.CONFIG)
    return HeldLedger(held)
