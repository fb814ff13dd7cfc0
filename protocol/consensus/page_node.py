"""Page in the tree of its council, with the votes that have arrived and what its ancestors show."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.consensus.council import (
    CheckedPage,
    Council,
    NotarisedPage,
    PageRules,
    check_page,
    follows_change,
)
from protocol.core.crypto import Output, Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.messages import Page, PageVote, Signed

DUE_MAX = 4096
"""Commits that wait for a page that draws committees; the newest are kept."""

OFFERED_MAX = 64
"""Pages that are sent with one that draws; a receiver may know those before them."""


@dataclass(slots=True, eq=False)
class PageNode:
    """A page in the tree, or the root that a council continues from."""

    digest: bytes
    epoch: int
    council: Council
    beacon: Digest
    shown_epoch: int
    """Epoch of the newest page that this page and its ancestors show final."""
    draws: bool = False
    """True if committees are drawn with its beacon."""
    drawn: Mapping[bytes, None] = field(default_factory=dict)
    """Commits whose committees it draws: those that its ancestors listed since the last draw."""
    drawn_known: bool = True
    """False if ``drawn`` may lack commits, because pages before it are not here."""
    due: Mapping[bytes, None] = field(default_factory=dict)
    """Commits whose committees the next page that draws will draw."""
    due_known: bool = True
    """False if ``due`` may lack commits."""
    parent: "PageNode | None" = None
    """None for a root: nothing before it is kept."""
    page: Signed[Page] | None = None
    """None for the beginning of the run."""
    votes: dict[PeerId, Signed[PageVote]] = field(default_factory=dict)
    proof: NotarisedPage | None = None
    """The page with the votes that notarised it."""
    is_notarised: bool = False
    length: int = 0
    """Pages since the root that its council or this node began from."""
    follows_closely: bool = False
    """True if its parent is a page of the same council and of the epoch before."""
    finalises: bool = False
    """True if its parent is final once this page is notarised."""
    is_closing: bool = False
    """True if this page or an ancestor of its council changes the council."""
    is_recovery: bool = False
    """True if more than half of the seats notarise it."""

    def path(self) -> "Iterator[PageNode]":
        """Yield this page and its ancestors, back to the root."""
        node: PageNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def pages(self) -> "Iterator[Page]":
        """Yield the messages of this page and its ancestors, back to the root."""
        return (node.page.message for node in self.path() if node.page is not None)

    @property
    def changes_council(self) -> bool:
        """True if another council follows this page."""
        return self.page is not None and self.page.message.changes_council

    @property
    def place(self) -> int:
        """Place of its signer among those that might propose it; 0 for a root."""
        if self.page is None or self.parent is None:
            return 0
        proposers = self.council.proposers(self.parent.beacon, self.epoch)
        return proposers.index(self.page.signer)

    @property
    def term(self) -> int:
        """Term of the trainer that leads after this page."""
        return self.page.message.term if self.page is not None else 0

    @property
    def head(self) -> bytes:
        """Manifest digest of the newest version that this page makes final; empty for none."""
        return self.page.message.head if self.page is not None else b""

    def to_offer(self) -> "tuple[NotarisedPage, ...]":
        """Return this notarised page with those before it that ``PageTree.offer_chain`` needs.

        Only the page that ends a council shows whether more than half of the seats notarise the
        pages after it. The pages since the last draw list the commits that this one draws.
        """
        chain = [self]
        while (parent := chain[-1].parent) is not None and parent.proof is not None:
            is_ended = chain[-1].is_closing and parent.is_closing
            if not is_ended and not self._needs(parent, chain):
                break
            chain.append(parent)
        return proofs_of(chain[::-1])

    def _needs(self, parent: "PageNode", chain: "Sequence[PageNode]") -> bool:
        """Return whether ``parent``, before a chain to this page, may list what this one draws."""
        begins = len(chain) > 1 and chain[-1].draws
        is_other = parent.page is None or parent.page.message.council != self.council.seat
        return self.draws and not begins and not is_other and len(chain) < OFFERED_MAX

    def learn_due(self, parent: "PageNode") -> bool:
        """Complete what this page draws, and leaves due, from its parent; True if that is news."""
        if self.page is None or self.page.message.parent != parent.digest:
            return False
        if not parent.due_known or (self.drawn_known and self.due_known):
            return False
        if self.draws:
            self.drawn = parent.due
        else:
            self.due = _waiting(parent.due, self.page.message.commits)
        self.drawn_known = self.due_known = True
        return True

    def child(self, checked: CheckedPage, rules: PageRules) -> "PageNode":
        """Return the node of a page after this one."""
        page, council = checked.page, self.council
        epoch, before = page.message.epoch, self.page
        consecutive = epoch == self.epoch + 1
        closely = consecutive and before is not None and before.message.council == council.seat
        finalises = closely and self.follows_closely
        draws = checked.draws
        commits = page.message.commits
        return PageNode(
            page.digest,
            epoch,
            council,
            checked.beacon,
            shown_epoch=self.epoch if finalises else self.shown_epoch,
            draws=draws,
            drawn=self.due if draws else {},
            drawn_known=not draws or self.due_known,
            due=dict.fromkeys(commits) if draws else _waiting(self.due, commits),
            due_known=draws or self.due_known,
            parent=self,
            page=page,
            length=self.length + 1,
            follows_closely=closely,
            finalises=finalises,
            is_closing=self.is_closing or page.message.changes_council,
            is_recovery=rules.begins_recovery(page.message)
            or (self.is_recovery and self.is_closing),
        )


def _waiting(due: Mapping[bytes, None], commits: Sequence[bytes]) -> dict[bytes, None]:
    return dict.fromkeys([*due, *commits][-DUE_MAX:])


def proofs_of(path: Sequence[PageNode]) -> tuple[NotarisedPage, ...]:
    """Return the pages of a path with the votes that notarised them."""
    return tuple(node.proof for node in path if node.proof is not None)


def place_fault(page: Page, parent: PageNode) -> Fault | None:
    """Check what a page says of its ancestors."""
    if page.epoch <= parent.epoch:
        return Fault(FaultCode.WRONG_EPOCH, f"{page.epoch} after {parent.epoch}")
    if (page.seed, page.final_epoch) != (parent.beacon, parent.shown_epoch):
        return Fault(FaultCode.WRONG_PARENT, "it says something else of its parent")
    if page.term < parent.term:
        return Fault(FaultCode.OLD_TERM, f"term {page.term} after {parent.term}")
    may_lead = not (parent.is_closing or page.changes_council)
    if not may_lead and (page.term, page.head) != (parent.term, parent.head):
        return Fault(FaultCode.WRONG_COUNCIL, "another leader or version at a change of it")
    if parent.is_closing != follows_change(page):
        return Fault(FaultCode.BAD_REVEAL, "some after a change of the council, or none before it")
    return None


def check_chain(
    chain: Sequence[NotarisedPage],
    before: PageNode,
    rules: PageRules,
    verify: Verifier,
    output: Output,
) -> list[PageNode] | Fault:
    """Check notarised pages, each the parent of the next; ``before`` stands for the first parent.

    Its epoch and what it shows need not be known.
    """
    nodes: list[PageNode] = []
    council = before.council
    for one in chain:
        if one.page.message.parent != before.digest:
            return Fault(FaultCode.WRONG_PARENT, "pages that are not linked")
        # Pages before the first one may show more: its voters know them, this node does not.
        before.shown_epoch = one.page.message.final_epoch
        fault = None if not nodes else place_fault(one.page.message, before)
        checked = fault or check_page(one.page, council, rules, output)
        if isinstance(checked, Fault):
            return checked
        node = before.child(checked, rules)
        fault = one.verified(council, rules, verify, is_recovery=node.is_recovery)
        if fault is not None:
            return fault
        node.is_notarised, node.proof = True, one
        nodes.append(node)
        before = node
    return nodes
