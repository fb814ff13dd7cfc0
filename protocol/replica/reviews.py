"""Reviews: the commits that final pages draw for re-examination, objections and overturns.

Everything that decides about others follows from final pages: which commits a page draws, and which
members. A node judges an objection or an overturn once the page that drew is final here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from protocol.consensus.committee import draw
from protocol.consensus.final_commits import is_final
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reexamination import (
    MEMBERS_MIN,
    Panel,
    check_overturn,
    is_drawn,
    may_overturn,
    newly_shown,
    overturn_of,
    overturned_before,
    panel_of,
)
from protocol.core.containers import BoundedDict, LruCache, SizeGauge
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.commits import Entry
from protocol.ledger.ledger import Ledger
from protocol.ledger.receipts import Receipt
from protocol.messages import ACCEPTED, Objection, Overturn, Page, Signed, signature_of
from protocol.replica.settlement import Settlement
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.run.manifest import RunManifest

COMMITS_MAX = 1024
"""Commits with objections or overturns that are held. An honest run has none."""

WINDOWS_MAX = 256
"""Pages whose newly final commits are cached."""


class Review(NamedTuple):
    """A commit that a final page draws for re-examination."""

    page: PageNode
    """The page that draws."""
    panel: Panel
    receipt: Receipt
    """The outcome under review."""


@dataclass(frozen=True, slots=True)
class _Held:
    """An accepted overturn, and this node's epoch at that time."""

    overturn: Signed[Overturn]
    epoch: int


class Reviews:
    """Reviews of one run, from the final pages and the messages that one node holds."""

    def __init__(
        self,
        manifest: RunManifest,
        ledger: Ledger,
        settlement: Settlement,
        pages: PageTree,
        verify: Verifier,
    ) -> None:
        self._manifest, self._ledger = manifest, ledger
        self._settlement, self._pages, self._verify = settlement, pages, verify
        self._epochs = manifest.committee.expire_after_epochs
        """Epochs after its page in which a commit may be objected to, and overturned."""
        self._windows = LruCache[bytes, dict[bytes, tuple[Page, int]]](WINDOWS_MAX)
        self._complete = BoundedDict[bytes, list[Review]](WINDOWS_MAX)
        """Reviews of the final pages of which this node knows every commit."""
        self._due: list[Review] = []
        self._due_at: tuple[bytes, int] | None = None
        self._awaited_commits: set[bytes] = set()
        self._awaited_at: tuple[bytes, int] | None = None
        self._objections = BoundedDict[Digest, dict[str, dict[PeerId, Signed[Objection]]]](
            COMMITS_MAX
        )
        self._overturns = BoundedDict[Digest, dict[str, _Held]](COMMITS_MAX)
        self._reversed = BoundedDict[Digest, str](COMMITS_MAX)
        """New reasons of the commits that counted pages have overturned."""
        self._listed: tuple[bytes, set[bytes]] = b"", set()
        settlement.overturns = self.reason
        self.tables = (
            SizeGauge("objections", COMMITS_MAX, lambda: len(self._objections)),
            SizeGauge("overturns", COMMITS_MAX, lambda: len(self._overturns)),
        )

    # Draws of final pages

    def review(self, commit: Digest, page: bytes) -> Review | Fault | None:
        """Return a commit that a page draws; None while this node cannot tell, or no longer."""
        node, root = self._pages.page(page), self._pages.root
        if node is None or root.epoch - node.epoch > self._epochs:
            return None
        final = is_final(node, root, self._pages.page)
        if not final:
            return None if final is None else Fault(FaultCode.BAD_OVERTURN, "its page is not final")
        window = self._windows.get_or_compute(page, lambda _: self._window(node))
        if isinstance(window, Fault):
            return None
        if commit not in window:
            return Fault(FaultCode.BAD_OVERTURN, "its page shows no outcome of the commit")
        return self._drawn(commit, node, *window[commit])

    def _window(self, node: PageNode) -> dict[bytes, tuple[Page, int]] | Fault:
        """Return the decided commits that a page may draw, with the pages that decide them."""
        if not node.draws:
            return {}
        pages = newly_shown(node, self._pages.page)
        if pages is None:
            return Fault(FaultCode.BAD_OVERTURN, "pages before its page are not here")
        return {one: (page, place) for page in pages for place, one in enumerate(page.decided)}

    def _drawn(
        self, commit: Digest, node: PageNode, page: Page, place: int
    ) -> Review | Fault | None:
        rules = self._manifest.committee
        is_rejected = place >= len(page.certified)
        by_lot = is_drawn(node.beacon, commit, rules.reexamine_share)
        if not by_lot and not (is_rejected and self._manifest.credit.slash):
            return Fault(FaultCode.BAD_OVERTURN, "its page does not draw the commit")
        entry = self._ledger.commits.known(commit)
        receipt = self._settlement.receipt_before(commit, node, 3 * self._epochs)
        drawing = self._pages.drawing(commit)
        if entry is None or receipt is None or drawing is None or drawing.epoch > node.epoch:
            return None
        if not by_lot and receipt.reason not in SLASHABLE_REASONS:
            return Fault(FaultCode.BAD_OVERTURN, "its page does not draw the commit")
        committee = draw(self._manifest, drawing, entry.commit)
        if committee is None:
            return None
        excluded = committee.escalated
        panel = panel_of(node, commit, receipt.worker, excluded, rules.reexamine_size)
        if panel is None:
            return Fault(FaultCode.BAD_OVERTURN, "the council has too few other members")
        return Review(node, panel, receipt)

    def due(self) -> list[Review]:
        """Return the commits that may be objected to, those of the newest pages first."""
        now = self._pages.root.digest, self._ledger.epoch
        if now != self._due_at:
            self._due_at = now
            self._due = [one for node in self._recent(self._epochs) for one in self._draws(node)]
        return self._due

    def awaits(self, entry: Entry) -> bool:
        """Return whether the body of a decided commit may still be needed for a review."""
        if entry.certificate is None or not self._has_others():
            return False
        if entry.final is None:
            return self._ledger.epoch - entry.decided_epoch <= self._epochs
        return entry.commit.digest in self._awaited()

    def _has_others(self) -> bool:
        """Return whether the council may have enough members beside a larger committee."""
        council, size = self._pages.council, self._manifest.committee.escalated_size
        return bool(council.seats) or len(council.members) >= size + MEMBERS_MIN

    def _awaited(self) -> set[bytes]:
        """Return the commits under review, and those that no final page could draw yet."""
        due = self.due()
        if self._awaited_at != self._due_at:
            self._awaited_at = self._due_at
            self._awaited_commits = {one.receipt.commit for one in due} | self._undrawn()
        return self._awaited_commits

    def _undrawn(self) -> set[bytes]:
        found, shown = set[bytes](), None
        for node in self._recent(self._epochs):
            if shown is None and node.draws and node.page is not None:
                shown = node.page.message.final_epoch
            if shown is not None and node.epoch <= shown:
                break
            found |= set(node.page.message.decided) if node.page is not None else set()
        return found

    def _draws(self, node: PageNode) -> list[Review]:
        """Return what a final page draws, as far as this node can tell."""
        if node.digest in self._complete:
            return self._complete[node.digest]
        window = self._windows.get_or_compute(node.digest, lambda _: self._window(node))
        if isinstance(window, Fault):
            return []
        found = [self._drawn(Digest(one), node, *place) for one, place in window.items()]
        reviews = [one for one in found if isinstance(one, Review)]
        if None not in found:
            self._complete[node.digest] = reviews
        return reviews

    def _recent(self, epochs: int) -> Iterator[PageNode]:
        """Yield the final pages of the last epochs, the newest first."""
        root = self._pages.root
        node = self._pages.page(root.digest)
        while node is not None and node.page is not None and node.epoch > root.epoch - epochs:
            yield node
            node = self._pages.page(node.page.message.parent)

    def needed(self) -> set[Digest]:
        """Return the commits whose receipts a page may still overturn, so they must stay."""
        pages = (node.page.message for node in self._recent(2 * self._epochs) if node.page)
        return {Digest(commit) for page in pages for commit in page.decided}

    # Objections and overturns

    def offer_objection(self, objection: Signed[Objection]) -> Fault | bool:
        """Accept an objection of a drawn member; False if it is known or decides nothing here."""
        message = objection.message
        review = self.review(Digest(message.commit), message.page)
        if not isinstance(review, Review):
            return False
        if objection.signer not in review.panel.members:
            return Fault(FaultCode.NOT_A_VALIDATOR, "not drawn for the commit")
        if not may_overturn(message.reason, review.receipt.reason):
            return False
        held = self._objections.get(Digest(message.commit), {})
        of_reason = held.setdefault(message.reason, {})
        self._objections[Digest(message.commit)] = held
        if objection.signer in of_reason:
            return False
        of_reason[objection.signer] = objection
        return True

    def objections(self, commit: Digest, reason: str) -> dict[PeerId, Signed[Objection]]:
        """Return the objections that are held."""
        return self._objections.get(commit, {}).get(reason, {})

    def assembled(self, review: Review) -> Overturn | None:
        """Return the overturn that the objections to an outcome form, unless one is held."""
        commit = Digest(review.receipt.commit)
        if commit in self._overturns:
            return None
        page = review.page.digest
        for reason, objections in sorted(self._objections.get(commit, {}).items()):
            held = {peer: one for peer, one in objections.items() if one.message.page == page}
            signatures = {peer: signature_of(one) for peer, one in held.items()}
            message = Objection(commit=commit, page=page, reason=reason)
            # One member may object for a reason of its own: it does not hold the others up.
            if (overturn := overturn_of(message, review.panel, signatures)) is not None:
                return overturn
        return None

    def offer_overturn(self, overturn: Signed[Overturn]) -> Fault | bool | None:
        """Accept an overturn; False if it is known, None if it must wait."""
        message, commit = overturn.message, Digest(overturn.message.commit)
        if message.reason in self._overturns.get(commit, {}):
            return False
        review = self.review(commit, message.page)
        if not isinstance(review, Review):
            return review
        if overturn.signer not in review.page.council.places:
            return Fault(FaultCode.NOT_A_VALIDATOR)
        if not may_overturn(message.reason, review.receipt.reason):
            return Fault(FaultCode.BAD_OVERTURN, "its reason does not contradict the outcome")
        run_id = self._manifest.run_id
        fault = check_overturn(message, review.panel, run_id, self._verify)
        if fault is not None:
            return fault
        self._hold(overturn, self._ledger.epoch)
        return True

    def restore(self, overturn: Signed[Overturn]) -> None:
        """Restore an overturn accepted before a restart."""
        self._hold(overturn, -1)

    def _hold(self, overturn: Signed[Overturn], epoch: int) -> None:
        commit = Digest(overturn.message.commit)
        held = self._overturns.get(commit, {})
        held[overturn.message.reason] = _Held(overturn, epoch)
        self._overturns[commit] = held

    def overturns(self) -> Iterator[Signed[Overturn]]:
        """Yield the overturns that are held."""
        for held in self._overturns.values():
            yield from (one.overturn for one in held.values())

    def current(self) -> Iterator[Signed[Overturn]]:
        """Yield the overturns that another node still accepts."""
        for one in self.overturns():
            page = self._pages.page(one.message.page)
            if page is not None and self._pages.root.epoch - page.epoch <= self._epochs:
                yield one

    def reason(self, commit: Digest) -> str | None:
        """Return the reason for which pages may overturn a commit; None if this node holds none.

        Of several the first in the alphabet, so all nodes choose the same.
        """
        return min(self._overturns.get(commit, {}), default=None)

    def retain(self) -> None:
        """Forget what concerns commits that the ledger no longer holds."""
        entries = self._ledger.commits.entries
        for table in (self._objections, self._overturns, self._reversed):
            for commit in [one for one in table if one not in entries]:
                del table[commit]

    # Pages

    def listable(self, parent: PageNode, epoch: int, settled_epochs: int) -> list[Digest]:
        """Return the overturned commits that a page after ``parent`` may list.

        Only those whose overturns this node has held for some epochs.
        """
        known = [
            commit
            for commit in self._overturns
            if max(one.epoch for one in self._overturns[commit].values()) <= epoch - settled_epochs
        ]
        done = self._overturned(parent) if known else set()
        return sorted(one for one in known if self._may_list(one, epoch, done))

    def may_list(self, commits: tuple[bytes, ...], parent: PageNode, epoch: int) -> bool:
        """Return whether this node holds the overturns of commits that a page lists."""
        done = self._overturned(parent) if commits else set()
        return all(self._may_list(Digest(one), epoch, done) for one in commits)

    def _may_list(self, commit: Digest, epoch: int, done: set[bytes]) -> bool:
        reason = self.reason(commit)
        if reason is None or commit in done:
            return False
        page = self._overturns[commit][reason].overturn.message.page
        review = self.review(commit, page)
        return isinstance(review, Review) and epoch - review.page.epoch <= self._epochs

    def _overturned(self, page: PageNode) -> set[bytes]:
        return overturned_before(page, self._pages.page, 2 * self._epochs)

    # Final outcomes

    def count(self, reversals: Iterable[tuple[Digest, str]]) -> None:
        """Overturn the commits that counted pages overturn, with their new reasons."""
        for commit, reason in reversals:
            self._reversed[commit] = reason
            self._ledger.overturn(commit, reason)

    def reversed_by(self, validator: PeerId) -> Digest | None:
        """Return the newest overturned commit here that a validator has decided, if any."""
        known = ((one, self._ledger.commits.known(one)) for one in reversed(self._reversed))
        return next(
            (one for one, entry in known if entry is not None and validator in entry.checkers), None
        )

    def fix_all(self) -> None:
        """Overturn the commits that final pages overturn, after a restart."""
        for commit in self._overturned_by_final():
            self.fix(Digest(commit))

    def fix(self, commit: Digest) -> None:
        """Overturn a commit in the ledger if a final page has overturned it."""
        reason = self._final_reason(commit)
        if reason is not None:
            self._ledger.overturn(commit, reason)

    def _final_reason(self, commit: Digest) -> str | None:
        """Return the reason for which a final page has overturned a commit; None if none has.

        A node that has not counted that page knows the reason from the overturn. Without it, only
        the outcome of a rejection is known.
        """
        if commit in self._reversed:
            return self._reversed[commit]
        if commit not in self._overturned_by_final():
            return None
        entry = self._ledger.commits.known(commit)
        certificate = None if entry is None else entry.certificate
        is_rejection = certificate is not None and not certificate.message.accepted
        return self.reason(commit) or (ACCEPTED if is_rejection else None)

    def _overturned_by_final(self) -> set[bytes]:
        """Return the commits that the final pages that are here overturn."""
        root = self._pages.root
        if self._listed[0] != root.digest:
            page = self._pages.page(root.digest) or root
            self._listed = root.digest, overturned_before(page, self._pages.page, root.epoch + 2)
        return self._listed[1]
