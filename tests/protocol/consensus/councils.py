"""Keys of a council, and builders of pages, votes and reveals with real signatures."""

from dataclasses import dataclass

from protocol.consensus.council import Council, NotarisedPage, PageRules, vote_for
from protocol.consensus.member import Contents
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core import vrf
from protocol.core.crypto import (
    Identity,
    digest,
    peer_id_from_public_key,
    public_key_from_peer_id,
    verify,
)
from protocol.core.types import Digest, PeerId, RunId
from protocol.messages import Message, Page, PageVote, Reveal, Signed, seal

RUN = RunId(digest(b"a run"))
KEPT_EPOCHS = 50
SEEDS = {
    peer_id_from_public_key(Identity(seed).public_key): seed
    for seed in (digest(b"member %d" % number) for number in range(16))
}
KEYS = {peer: Identity(seed) for peer, seed in SEEDS.items()}
PEERS = sorted(KEYS)


def real_output(peer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
    return vrf.output(public_key_from_peer_id(peer), alpha, proof)


def real_proof(peer: PeerId, alpha: bytes) -> bytes:
    return vrf.prove(SEEDS[peer], KEYS[peer].public_key, alpha)


def fast_proof(peer: PeerId, alpha: bytes) -> bytes:
    """Return a proof of 80 bytes that costs 1 us; anybody can make it."""
    return (digest(b"proof" + peer.encode() + alpha) * 3)[: vrf.PROOF_BYTES]


def fast_output(peer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
    return digest(proof) * 2 if proof == fast_proof(peer, alpha) else None


def key_of(peer: PeerId) -> bytes:
    return KEYS[peer].public_key


def commit(number: int) -> Digest:
    return digest(b"commit %d" % number)


def sealed(peer: PeerId, message: Message) -> Signed:
    return seal(message, RUN, KEYS[peer])


def vote_on(peer: PeerId, page: Signed[Page], /, **changes) -> Signed[PageVote]:
    return sealed(peer, vote_for(page).model_copy(update=changes))


def summary(tree: PageTree) -> tuple:
    """Return what two nodes that know the same must agree on."""
    root = tree.root
    return (
        root.digest,
        root.epoch,
        root.beacon,
        root.shown_epoch,
        set((tree.page(root.digest) or root).due),
        root.follows_closely,
        root.is_closing,
        tree.council,
        sorted(tree.councils),
    )


def drawn_council(seats: dict[PeerId, int]) -> dict[str, tuple]:
    """Return the fields of a page that seats a drawn council."""
    by_key = {key_of(peer): count for peer, count in seats.items()}
    return {"drawn": tuple(sorted(by_key)), "seats": tuple(by_key[key] for key in sorted(by_key))}


def first_voters(council: Council, seats: int) -> list[PeerId]:
    """Return the first members that have so many seats together."""
    count = next(
        n for n in range(len(council.members) + 1) if council.seats_of(council.members[:n]) >= seats
    )
    return list(council.members[:count])


class Approving:
    """Judgement that proposes fixed contents in given epochs, and approves all."""

    def __init__(self, contents: dict[int, Contents] | None = None) -> None:
        self._contents = contents or {}

    def contents(self, _parent: PageNode, epoch: int) -> Contents:
        return self._contents.get(epoch, Contents())

    def approves(self, _page: Page, _parent: PageNode) -> bool:
        return True


@dataclass
class Councils:
    """Rules of a run whose first ``size`` keys are its genesis validators."""

    size: int = 4
    revealers: int = 8
    recovery_epochs: int = 10
    council_max: int = 12
    era_epochs: int = 1000
    is_real: bool = False
    """True: with the real verifiable random function."""

    def __post_init__(self):
        self.rules = PageRules(
            RUN, self.recovery_epochs, self.revealers, self.council_max, self.era_epochs
        )
        self.genesis = PEERS[: self.size]
        self.output = real_output if self.is_real else fast_output
        self.proof = real_proof if self.is_real else fast_proof

    def tree(self) -> PageTree:
        return PageTree(self.genesis, self.rules, verify, self.output, KEPT_EPOCHS)

    def proofs(self, parent: PageNode, epoch: int, missing=()) -> tuple[bytes, ...]:
        alpha = self.rules.alpha(parent.beacon, epoch)
        drawn = parent.council.revealers(parent.beacon, epoch, self.revealers)
        if parent.is_closing:
            return ()
        return tuple(b"" if peer in missing else self.proof(peer, alpha) for peer in drawn)

    def page(
        self,
        parent: PageNode,
        epoch: int,
        /,
        *,
        signer=None,
        silent=0,
        joined=(),
        removed=(),
        draw=None,
        **other,
    ) -> Signed[Page]:
        """Return the page of an epoch.

        It lists ``commit(epoch)`` if it may, and repeats leader and version. ``silent`` of the
        drawn members reveal nothing. ``draw``: seats by peer of a drawn council.
        """
        drawn = parent.council.revealers(parent.beacon, epoch, self.revealers)
        changes = joined or removed or draw or other.get("drawn")
        fields = {
            "epoch": epoch,
            "council": parent.council.seat,
            "parent": parent.digest,
            "seed": parent.beacon,
            "final_epoch": parent.shown_epoch,
            "term": parent.term,
            "head": parent.head,
            "reveals": self.proofs(parent, epoch, drawn[:silent]),
            "joined": tuple(map(key_of, joined)),
            "removed": tuple(map(key_of, removed)),
            **drawn_council(draw or {}),
            "commits": () if changes or parent.is_closing else (commit(epoch),),
        }
        signer = signer or parent.council.proposer(parent.beacon, epoch)
        return sealed(signer, Page(**{**fields, **other}))

    def extend(self, tree: PageTree, epoch: int, parent=None, *, voters=None, **fields) -> PageNode:
        """Offer a page and the votes of a quorum of its council; return its node."""
        parent = parent or tree.tip(epoch)
        page = self.page(parent, epoch, **fields)
        assert tree.offer_page(page) is True
        node = tree.get(page.digest)
        for peer in self.voters(node) if voters is None else voters:
            assert tree.offer_vote(vote_on(peer, page)) is True
        return node

    def voters(self, node: PageNode) -> list[PeerId]:
        council = node.council
        return first_voters(
            council, council.recovery_quorum if node.is_recovery else council.quorum
        )

    def run(self, tree: PageTree, epochs, **fields) -> list[PageNode]:
        return [self.extend(tree, epoch, **fields) for epoch in epochs]

    def notarised(self, page: Signed[Page], node: PageNode, voters=None) -> NotarisedPage:
        """Return a page after ``node`` with its votes."""
        council = node.council
        peers = first_voters(council, council.quorum) if voters is None else voters
        return NotarisedPage.of(page, [vote_on(peer, page) for peer in peers], council)

    def reveal(self, peer: PeerId, parent: PageNode, epoch: int, /, **changes) -> Signed[Reveal]:
        proof = self.proof(peer, self.rules.alpha(parent.beacon, epoch))
        fields = {"epoch": epoch, "parent": parent.digest, "proof": proof}
        return sealed(peer, Reveal(**{**fields, **changes}))


def known(tree: PageTree) -> set[Digest]:
    """Return the notarised pages in a tree."""
    return {one.digest for one in tree.notarised()}


def copied(source: PageTree, target: PageTree) -> None:
    """Give a late joiner what an old node serves: handovers, newest final pages, recent pages."""
    for chain in source.handovers:
        assert target.offer_chain(chain) is True
    if source.newest:
        assert target.offer_chain(source.newest) is True
    for one in source.notarised():
        target.offer_chain(one.to_offer())


def proofs(tree: PageTree) -> list[NotarisedPage | None]:
    """Return the recent notarised pages with their votes."""
    return [node.proof for node in tree.notarised()]
