"""Reveals of the drawn members that a node has heard, for the pages of the last epochs."""

from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core.containers import BoundedDict
from protocol.core.crypto import Output
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from protocol.messages import COUNCIL_MAX, Page, Reveal, Signed

IN_TIME_SHARE = 0.25
"""Share of an epoch before which a reveal must arrive for this node to require it in a page."""

REVEALS_EACH_MAX = 16
"""Reveals kept of each member; it sends one in an epoch, or two after a fork."""

MEMBERS_KEPT_MAX = 2 * COUNCIL_MAX
"""Members of this council and of the one before."""


_Heard = BoundedDict[tuple[int, bytes], tuple[bytes, float]]
"""Proofs of a member by epoch and parent, and the share of the epoch at which each arrived."""


class Reveals:
    """Proofs by epoch and parent."""

    def __init__(self, tree: PageTree, output: Output) -> None:
        self._tree, self._output = tree, output
        self._heard = BoundedDict[PeerId, _Heard](MEMBERS_KEPT_MAX)

    def expected(self, parent: PageNode, epoch: int) -> tuple[PeerId, ...]:
        """Return the members that reveal for the child of ``parent`` in an epoch, in order."""
        if parent.is_closing:
            return ()
        return parent.council.revealers(parent.beacon, epoch, self._tree.rules.revealers)

    def offer(self, reveal: Signed[Reveal], share: float) -> Fault | bool:
        """Accept a reveal that arrived after ``share`` of its epoch; False if it is no news."""
        message, peer = reveal.message, reveal.signer
        parent = self._tree.get(message.parent)
        if parent is None or not parent.is_notarised or parent.is_closing:
            return False
        if message.epoch <= parent.epoch:
            return Fault(FaultCode.WRONG_EPOCH, f"{message.epoch} after {parent.epoch}")
        if peer not in self.expected(parent, message.epoch):
            return Fault(FaultCode.BAD_REVEAL, "not drawn")
        key = message.epoch, message.parent
        if key in self._heard.get(peer, ()):
            return False
        alpha = self._tree.rules.alpha(parent.beacon, message.epoch)
        if self._output(peer, alpha, message.proof) is None:
            return Fault(FaultCode.BAD_REVEAL)
        if peer not in self._heard:
            self._heard[peer] = _Heard(REVEALS_EACH_MAX)
        self._heard[peer][key] = message.proof, share
        return True

    def proofs(self, parent: PageNode, epoch: int) -> tuple[bytes, ...]:
        """Return the proofs for a child of ``parent``; empty where none was heard."""
        return tuple(
            heard[0] if (heard := self._of(peer, parent, epoch)) else b""
            for peer in self.expected(parent, epoch)
        )

    def are_in_time(self, parent: PageNode, page: Page) -> bool:
        """Return whether a page has every reveal that arrived here in time."""
        expected = self.expected(parent, page.epoch)
        return all(
            proof
            or (heard := self._of(peer, parent, page.epoch)) is None
            or heard[1] > IN_TIME_SHARE
            for peer, proof in zip(expected, page.reveals, strict=True)
        )

    def _of(self, peer: PeerId, parent: PageNode, epoch: int) -> tuple[bytes, float] | None:
        heard = self._heard.get(peer)
        return None if heard is None else heard.get((epoch, parent.digest))
