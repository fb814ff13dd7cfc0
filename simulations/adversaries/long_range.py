"""Long-range attack: keys of a former council show joining nodes another history.

The keys that were the first council sign, much later, a page that seats themselves alone, and the
pages that make it final. Nodes that took part know the true page; a node that joins knows neither.
"""

from itertools import pairwise

from typing_extensions import override

from node.network.streams.deadline import within
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import PAGES
from protocol.consensus.council import (
    CheckedPage,
    NotarisedPage,
    check_page,
    encode_chain,
    vote_for,
)
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core.codec import decode, encode
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.messages import Page, seal
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, StreamHandler
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.passthrough import while_acting, word_of
from simulations.ports.parts import Parts

ROW = 3
"""Pages of consecutive epochs: one that seats the council, and two that make it final."""


class LongRangeTransport(GossipingTransport):
    """Answers a request for pages of a node that knows only the genesis with a forged history.

    Other nodes receive no page from it. All nodes of this behaviour lend their keys.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._forged: tuple[NotarisedPage, ...] = ()

    @override
    async def act(self, replica: Replica) -> None:
        """Forge a history once; respond to requests otherwise."""
        if not self._forged:
            self._forged = self._forge(replica, replica.intake.apart(()).tree)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        if word_of(protocol) == PAGES.word:
            handler = while_acting(self.parts, self._answer, handler)
        await super().handle(protocol, handler)

    async def _answer(self, stream: Stream) -> None:
        request = await self._read(stream)
        is_new = request.get("council") == b"" and request.get("epoch") == -1
        chains = [self._forged] if is_new and self._forged else []
        await write_frame(stream, encode({"chains": len(chains), "ids": []}))
        for chain in chains:
            await write_frame(stream, encode_chain(chain))
        await self._read(stream)

    async def _read(self, stream: Stream) -> dict[str, object]:
        frame = await within(PAGES.stall_seconds, read_frame(stream, PAGES.opener_bytes_max))
        fields = frame if isinstance(frame, Fault) else decode(frame, bytes_max=len(frame))
        return fields if isinstance(fields, dict) else {}

    def _forge(self, replica: Replica, first: PageTree) -> tuple[NotarisedPage, ...]:
        """Return three pages of recent epochs whose proposers are accomplices; empty if too few."""
        council, keys = first.council, self.parts.accomplices
        honest = [peer for peer in council.members if peer not in keys]
        if council.seats_total - len(honest) < council.quorum:
            return ()
        now = replica.manifest.epoch_at(self.parts.ports.clock.now())
        removed = tuple(filter(None, map(public_key_from_peer_id, honest)))
        for epoch in range(now - ROW, 0, -1):
            nodes = [first.root]
            for number in range(ROW):
                node = self._next(first, nodes[-1], epoch + number, () if number else removed)
                if node is None:
                    break
                nodes.append(node)
            if len(nodes) > ROW:
                return tuple(node.proof for _, node in pairwise(nodes) if node.proof is not None)
        return ()

    def _next(
        self, tree: PageTree, parent: PageNode, epoch: int, removed: tuple[bytes, ...]
    ) -> PageNode | None:
        """Return a notarised page after another one; None if its proposer is honest."""
        council, rules, keys = parent.council, tree.rules, self.parts.accomplices
        proposer: PeerId = council.proposer(parent.beacon, epoch)
        if proposer not in keys:
            return None
        drawn = (
            () if parent.is_closing else council.revealers(parent.beacon, epoch, rules.revealers)
        )
        page = Page(
            epoch=epoch,
            council=council.seat,
            parent=parent.digest,
            seed=parent.beacon,
            final_epoch=parent.shown_epoch,
            reveals=tuple(b"" for _ in drawn),
            removed=removed,
        )
        signed = seal(page, rules.run_id, keys[proposer])
        checked = check_page(signed, council, rules, lambda *_: None)
        assert isinstance(checked, CheckedPage), checked
        node = parent.child(checked, rules)
        voters = [peer for peer in council.members if peer in keys]
        votes = [seal(vote_for(signed), rules.run_id, keys[peer]) for peer in voters]
        node.proof = NotarisedPage.of(signed, votes, council)
        return node


def long_range(parts: Parts, _rng: Rng) -> Parts:
    """Show joining nodes another history, with the keys of a former council."""
    return parts.with_ports(transport=LongRangeTransport(parts))
