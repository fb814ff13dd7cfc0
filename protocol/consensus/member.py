"""One council member's conduct: what it reveals, proposes and votes in each epoch.

The machine has no clock and no key: ``act`` gets the time and returns messages to sign. A vote must
be stored before it is sent, and restored after a restart: a second vote in one epoch is evidence.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from protocol.consensus.council import vote_for
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reveals import IN_TIME_SHARE, Reveals
from protocol.core.types import PeerId
from protocol.messages import Message, Page, PageVote, Reveal, Signed

PROPOSE_SHARES = (0.5, 0.65, 0.75)
"""Shares of an epoch at which each proposer no longer waits: the first one for reveals, each other
one for a page of those before it that it supports."""

LATER_VOTE_SHARE = 0.85
"""Share of an epoch at which members no longer wait for the page of the first proposer."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Decisions of a page: the council, commits, the leading trainer, the final version, accounts.

    ``term`` and ``head`` are None while those of the parent stand.
    """

    joined: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    drawn: tuple[bytes, ...] = ()
    seats: tuple[int, ...] = ()
    commits: tuple[bytes, ...] = ()
    certified: tuple[bytes, ...] = ()
    rejected: tuple[bytes, ...] = ()
    checkers: tuple[int, ...] = ()
    overturned: tuple[bytes, ...] = ()
    work: bytes = b""
    ledger: bytes = b""
    term: int | None = None
    head: bytes | None = None

    def fields(self, parent: PageNode) -> dict[str, Any]:
        """Return the fields of a page after ``parent`` that decides this."""
        term = parent.term if self.term is None else self.term
        head = parent.head if self.head is None else self.head
        return {**asdict(self), "term": term, "head": head}


class Judgement(Protocol):
    """A member's view of the contents of pages."""

    def contents(self, parent: PageNode, epoch: int) -> Contents | None:
        """Return what a child of ``parent`` should decide; None while this node cannot tell."""

    def approves(self, page: Page, parent: PageNode) -> bool:
        """Return whether this node's view supports what a page decides."""


class CouncilMember:
    """The duties of one member; idle while it has no seat."""

    def __init__(
        self,
        tree: PageTree,
        reveals: Reveals,
        me: PeerId,
        prove: Callable[[bytes], bytes],
        judgement: Judgement,
    ) -> None:
        self._tree, self._reveals, self._me = tree, reveals, me
        self._prove, self._judgement = prove, judgement
        self._voted_epoch = self._proposed_epoch = -1
        self._revealed: tuple[int, bytes] | None = None
        self._restored: PageVote | None = None

    def restore_vote(self, vote: Signed[PageVote]) -> None:
        """Vote neither again in an epoch of a stored vote, nor for a child of a shorter chain.

        The parent of the page that it last voted for must be here again, with its votes, or a
        final page of that epoch or a later one.
        """
        if vote.message.epoch > self._voted_epoch:
            self._voted_epoch, self._restored = vote.message.epoch, vote.message

    def _has_forgotten(self) -> bool:
        """Return whether the chain of the restored vote is not here."""
        vote, tree = self._restored, self._tree
        if vote is None:
            return False
        if vote.council != tree.council.seat:
            return vote.council not in tree.councils
        parent = tree.get(vote.parent)
        return tree.root.epoch < vote.epoch and not (parent and parent.is_notarised)

    def act(self, epoch: int, share: float) -> list[Message]:
        """Return what to sign now, ``share`` of ``epoch`` having passed.

        Each message must reach this node's own tree before the next call.
        """
        if self._me not in self._tree.council.places:
            return []
        return [*self._reveal(epoch), *self._propose(epoch, share), *self._vote(epoch, share)]

    def _reveal(self, epoch: int) -> list[Message]:
        tip = self._tree.tip(epoch)
        if tip is None or self._revealed == (epoch, tip.digest):
            return []
        if self._me not in self._reveals.expected(tip, epoch):
            return []
        self._revealed = epoch, tip.digest
        proof = self._prove(self._tree.rules.alpha(tip.beacon, epoch))
        return [Reveal(epoch=epoch, parent=tip.digest, proof=proof)]

    def _propose(self, epoch: int, share: float) -> list[Message]:
        tip = self._tree.tip(epoch)
        if tip is None or epoch <= self._proposed_epoch:
            return []
        proposers = tip.council.proposers(tip.beacon, epoch)
        if self._me not in proposers:
            return []
        if any(one.page and one.page.signer == self._me for one in self._tree.pages_of(epoch)):
            return []  # proposed before a restart
        place, proofs = proposers.index(self._me), self._reveals.proofs(tip, epoch)
        if share < PROPOSE_SHARES[place] and (place or not all(proofs)):
            return []
        pages = (one for one in self._tree.pages_of(epoch) if one.parent is tip)
        if any(one.place < place and self._supports(one, share) for one in pages):
            return []
        contents = Contents() if tip.is_closing else self._judgement.contents(tip, epoch)
        if contents is None:
            return []
        self._proposed_epoch = epoch
        return [
            Page(
                epoch=epoch,
                council=tip.council.seat,
                parent=tip.digest,
                seed=tip.beacon,
                final_epoch=tip.shown_epoch,
                reveals=proofs,
                **contents.fields(tip),
            )
        ]

    def _vote(self, epoch: int, share: float) -> list[Message]:
        if epoch <= self._voted_epoch or self._has_forgotten():
            return []
        self._restored = None
        # The root may be of another council: this node's votes are for pages after it.
        pages = (one for one in self._tree.pages_of(epoch) if one is not self._tree.root)
        for node in sorted(pages, key=lambda one: one.place):
            # Another vote for a notarised page makes no other one notarised, and is a sign of life.
            is_early = node.place > 0 and share < LATER_VOTE_SHARE  # the first may still arrive
            is_good = not is_early and self._supports(node, share)
            if node.page and (node.is_notarised or is_good):
                self._voted_epoch = epoch
                return [vote_for(node.page)]
        return []

    def _supports(self, node: PageNode, share: float) -> bool:
        page, parent = node.page, node.parent
        if page is None or parent is None or parent not in self._tree.tips():
            return False
        if share < IN_TIME_SHARE and not all(page.message.reveals):
            return False  # the missing ones may still arrive in time, this node's own among them
        complete = self._reveals.are_in_time(parent, page.message)
        return complete and self._judgement.approves(page.message, parent)
