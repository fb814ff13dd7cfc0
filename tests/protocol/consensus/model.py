"""Model check of the page machine: honest members against a network that an adversary controls.

``python -m tests.protocol.consensus.model --steps 1000000`` runs many schedules and prints what
they reached; it fails if two honest nodes ever hold conflicting final pages. A step is a message
that reaches a node, a chain of pages that reaches it, or a member that acts.

Less than a third of each council is dishonest: it proposes and votes for everything, and shows each
message to the nodes it likes. The adversary splits the honest nodes into two sides, with some nodes
between them that see both. It delays messages, hides the votes on a page from all or from all but
one node, and shows such a certificate when that lets it fork the chain. Epochs are skewed by one.
Nodes restart with all they had, or with nothing but their last vote and the chains
that another node serves. Councils change in part and completely, and are drawn anew with random
seats. In a run with a recovery so many members are gone that only more than half of the seats
remain. Pages list commits: nodes that know what a final page draws must agree on it.
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from protocol.consensus.council import NotarisedPage, PageRules, vote_for
from protocol.consensus.member import Contents, CouncilMember
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reveals import Reveals
from protocol.core.codec import encode
from protocol.core.crypto import digest, peer_id_from_public_key, signing_bytes
from protocol.core.types import PeerId, RunId
from protocol.messages import Message, Page, PageVote, Reveal, Signed, with_signature
from tests.protocol.consensus.councils import fast_output, fast_proof

RUN = RunId(digest(b"a run"))
KEYS = {peer_id_from_public_key(key): key for key in (digest(b"k%d" % n) for n in range(40))}
NEVER = 10**6
KEPT_EPOCHS = 40
RECENT_PAGES = 60
"""Pages that the adversary still uses."""

BETWEEN = 2
"""Side of the nodes that see both sides."""

ERA_EPOCHS = 8

FORGOTTEN_EPOCHS = 25
"""Messages that the network loses after so many epochs."""


def sign(peer: PeerId, text: bytes) -> bytes:
    """Return a signature that costs 1 us; nobody in the model forges one."""
    return digest(peer.encode() + text) * 2


def verify(peer: PeerId, text: bytes, signature: bytes) -> bool:
    return sign(peer, text) == signature


def signed(peer: PeerId, message: Message) -> Signed:
    text = signing_bytes(message.kind, RUN, encode(message.model_dump()))
    return with_signature(message, RUN, peer, sign(peer, text))


class ConflictError(AssertionError):
    """Two honest nodes hold conflicting final pages, or disagree on what one draws."""


@dataclass(frozen=True)
class Setting:
    """Start of one schedule."""

    seed: int
    size: int = 4
    dishonest: int = 1
    gone: int = 0
    """Members that are gone for good; positive: with a recovery."""
    changes: float = 0.1
    """Probability that a proposer changes the council."""


class Node:
    """An honest node: tree, conduct, and what a restart restores."""

    def __init__(self, model: "Model", me: PeerId) -> None:
        self.model, self.me = model, me
        self.skew = 0
        self.vote: Signed[PageVote] | None = None
        self.stored: list[Signed] = []
        self.restart([])

    def restart(self, messages: list[Signed]) -> None:
        model = self.model
        self.tree = PageTree(model.genesis, model.rules, verify, fast_output, KEPT_EPOCHS)
        self.reveals = Reveals(self.tree, fast_output)
        self.member = CouncilMember(
            self.tree, self.reveals, self.me, lambda alpha: fast_proof(self.me, alpha), model
        )
        self.stash: list[Signed] = []
        self.stored = []
        if self.vote is not None:
            self.member.restore_vote(self.vote)
        for one in messages:
            self.receive(one)

    def receive(self, message: Signed) -> None:
        if message.message.council not in self.tree.councils:
            self.stash.append(message)
            return
        seat = self.tree.council.seat
        self.offer(message)
        self.stored.append(message)
        if self.tree.council.seat != seat:
            stash, self.stash = self.stash, []
            for one in stash:
                self.receive(one)

    def offer(self, message: Signed) -> None:
        if isinstance(message.message, Page):
            self.tree.offer_page(message)
        else:
            self.tree.offer_vote(message)

    def act(self, epoch: int, share: float) -> list[Signed]:
        messages = [signed(self.me, one) for one in self.member.act(epoch + self.skew, share)]
        for one in messages:
            if isinstance(one.message, Reveal):
                self.reveals.offer(one, share)
            else:
                if isinstance(one.message, PageVote):
                    self.vote = one
                self.receive(one)
        return messages


@dataclass
class Model:
    """One schedule."""

    setting: Setting
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        setting = self.setting
        self.rng = random.Random(setting.seed)
        peers, size, bad = list(KEYS), setting.size, setting.dishonest
        self.genesis = peers[:size]
        self.bad = set(peers[:bad]) | set(peers[size : size + bad])
        self.gone = set(peers[bad : bad + setting.gone])
        self.pool = peers[: 2 * size]
        recovery = 12 if setting.gone else NEVER
        self.rules = PageRules(RUN, recovery, 8, 3 * size, ERA_EPOCHS)
        self.nodes = {
            peer: Node(self, peer) for peer in self.pool if peer not in self.bad | self.gone
        }
        self.pages: dict[bytes, Signed[Page]] = {}
        self.places: dict[bytes, PageNode] = {}
        """A node of each page, of any tree that has it."""
        self.votes: dict[bytes, dict[PeerId, Signed[PageVote]]] = {}
        self.waiting: list[tuple[int, Signed, PeerId]] = []
        """Epoch of each message, and the node that it has not reached."""
        self.depths: dict[bytes, int] = {b"": 0}
        self.final: dict[int, bytes] = {0: b""}
        self.councils: dict[int, bytes] = {}
        self.drawn: dict[bytes, list[bytes]] = {}
        """Commits that each page draws."""
        self.side = dict.fromkeys(self.pool, 0)
        self.is_split = self.hides = self.is_duel = False
        self.leak = 0.0
        self.asleep: set[PeerId] = set()
        """Nodes that receive nothing and do nothing."""
        self.audience: dict[bytes, set[PeerId] | None] = {}
        """Nodes that see the votes on a page; None: all."""
        self.roots: dict[PeerId, bytes] = {}

    # Judgement of the honest members

    def contents(self, parent: PageNode, epoch: int) -> Contents:
        """List two commits, and propose a council of which less than a third is dishonest."""
        changes = self.changes(parent, epoch)
        if changes != Contents():
            return changes
        return Contents(commits=tuple(sorted(digest(self.rng.randbytes(8)) for _ in range(2))))

    def changes(self, parent: PageNode, epoch: int) -> Contents:
        members = set(parent.council.members)
        if self.setting.gone and self.gone & members:
            late = epoch - parent.shown_epoch >= self.rules.recovery_epochs
            return Contents(removed=keys(self.gone & members)) if late else Contents()
        is_due = (
            self.setting.changes and not self.is_duel and epoch // ERA_EPOCHS > parent.council.era
        )
        if is_due and self.rng.random() < 0.4:
            return self.draw()
        if self.rng.random() > self.setting.changes:
            return Contents()
        some = self.rng.sample(sorted(members), self.rng.randint(0, min(2, len(members))))
        outside = [peer for peer in self.pool if peer not in members and peer not in self.gone]
        if parent.council.era:
            removed, joined = set(some), set()
        elif self.rng.random() < 0.5:
            removed, joined = members, set(outside)  # the whole council
        else:
            removed = set(some)
            joined = set(self.rng.sample(outside, min(len(outside), self.rng.randint(0, 2))))
        changes = Contents(keys(joined), keys(removed))
        return changes if self._is_safe(self._after(parent, joined, removed)) else Contents()

    def draw(self) -> Contents:
        """Return a drawn council: a few heavy members, or many light ones."""
        rng, seats = self.rng, dict[PeerId, int]()
        peers = [peer for peer in self.pool if peer not in self.gone]
        while not self._is_safe(seats):
            most = rng.choice([1, 3])
            chosen = rng.sample(peers, rng.randint(1, len(peers)))
            seats = {peer: rng.randint(1, most) for peer in chosen}
        by_key = sorted((KEYS[peer], count) for peer, count in seats.items())
        return Contents(
            drawn=tuple(key for key, _ in by_key), seats=tuple(count for _, count in by_key)
        )

    def approves(self, page: Page, parent: PageNode) -> bool:
        """Approve all changes but those to an unsafe council."""
        peers = {key: peer for peer, key in KEYS.items()}
        if page.drawn:
            drawn = (peers[key] for key in page.drawn)
            return self._is_safe(dict(zip(drawn, page.seats, strict=True)))
        removed, joined = ({peers[key] for key in part} for part in (page.removed, page.joined))
        if self.rules.begins_recovery(page) and not removed <= self.gone:
            return False
        after = self._after(parent, joined, removed)
        return not page.changes_council or self._is_safe(after)

    @staticmethod
    def _after(parent: PageNode, joined: set[PeerId], removed: set[PeerId]) -> dict[PeerId, int]:
        """Return the seats after some members have joined and left."""
        council = parent.council
        kept = {peer: council.seats_of([peer]) for peer in council.members if peer not in removed}
        return kept | dict.fromkeys(joined, 1)

    def _is_safe(self, seats: dict[PeerId, int]) -> bool:
        bad, total = sum(seats[peer] for peer in seats.keys() & self.bad), sum(seats.values())
        return 1 <= total <= self.rules.council_max and 3 * bad < total

    # Network

    def step(self, node: Node, kind: str) -> None:
        """Count a step and check the invariant."""
        self.counts[kind] += 1
        tree = node.tree
        if tree.watch.conflict is not None:
            raise ConflictError(f"{self.setting}: a node knows two final pages that conflict")
        if self.roots.get(node.me) == tree.root.digest:
            return
        self.roots[node.me] = tree.root.digest
        self.check_drawn(tree)
        page = tree.root.digest
        while page not in self.final.values():
            place = self.depth(page)
            if place in self.final:
                raise ConflictError(f"{self.setting}: two final pages at {place}")
            self.final[place] = page
            page = self.pages[page].message.parent
        deepest = max(self.final)
        if set(self.final) != set(range(deepest + 1)):
            raise ConflictError(f"{self.setting}: a final page is on no final chain")
        for council in tree.councils.values():
            if self.councils.setdefault(council.number, council.seat) != council.seat:
                raise ConflictError(f"{self.setting}: two councils with number {council.number}")

    def check_drawn(self, tree: PageTree) -> None:
        """Check what the recent pages of a node draw."""
        for node in tree.notarised():
            if node.draws and node.drawn_known:
                drawn = list(node.drawn)
                if self.drawn.setdefault(node.digest, drawn) != drawn:
                    raise ConflictError(f"{self.setting}: page {node.epoch} draws others")
                self.counts["drawn"] += len(drawn)

    def depth(self, page: bytes) -> int:
        """Return the number of pages before one."""
        path = []
        while page not in self.depths:
            path.append(page)
            page = self.pages[page].message.parent
        for one in reversed(path):
            self.depths[one] = self.depths[page] + 1
            page = one
        return self.depths[page]

    def near(self, one: PeerId, other: PeerId) -> bool:
        """Return whether messages pass: on one side, or to and from those between the sides."""
        sides = {self.side[one], self.side[other]}
        if {one, other} & self.asleep:
            return False
        return not self.is_split or len(sides) == 1 or BETWEEN in sides

    def send(self, epoch: int, message: Signed, shown: float = 0.95) -> None:
        """Show a message to the nodes near its signer; the others may see it later."""
        page = message.digest
        if isinstance(message.message, Page):
            self.pages[page] = message
        else:
            page = message.message.page
            self.votes.setdefault(page, {})[message.signer] = message
        audience = self.audience_of(page) if isinstance(message.message, PageVote) else None
        for peer, node in self.nodes.items():
            if peer == message.signer or (audience is not None and peer not in audience):
                continue
            likely = shown if self.near(peer, message.signer) else self.leak
            if self.rng.random() < likely:
                node.receive(message)
                self.step(node, "messages")
            else:
                self.waiting.append((epoch, message, peer))

    def audience_of(self, page: bytes) -> set[PeerId] | None:
        """Decide once for each page which nodes see its votes."""
        if page not in self.audience:
            place, peers = self.places.get(page), list(self.nodes)
            shown: set[PeerId] | None = None
            if self.is_split and place is not None and place.finalises:
                # Those between the sides do not learn that one side has a final page.
                shown = {peer for peer in peers if self.side[peer] != BETWEEN}
            elif self.hides and self.rng.random() < 0.5:
                shown = set(self.rng.sample(peers, self.rng.randint(0, 2)))
            self.audience[page] = shown
        return self.audience[page]

    def deliver(self, epoch: int, share: float) -> None:
        """Let waiting messages arrive, in any order."""
        kept = []
        self.rng.shuffle(self.waiting)
        for sent, message, peer in self.waiting:
            likely = share if self.near(peer, message.signer) else self.leak
            if self.rng.random() < likely:
                self.nodes[peer].receive(message)
                self.step(self.nodes[peer], "messages")
            elif sent > epoch - FORGOTTEN_EPOCHS:
                kept.append((sent, message, peer))
        self.waiting = kept

    # Adversary

    def known(self) -> list[PageNode]:
        """Return the notarised pages of all honest trees, and those whose votes are hidden."""
        known: dict[bytes, PageNode] = {}
        recent = list(self.pages)[-RECENT_PAGES:]
        for node in self.nodes.values():
            for one in [*node.tree.tips(), node.tree.root]:
                known.setdefault(one.digest, one)
            for page in recent:
                place = node.tree.get(page)
                if place is None:
                    continue
                self.places.setdefault(page, place)
                if place.is_notarised or self.missing(page) is not None:
                    known.setdefault(page, place)
        return sorted(known.values(), key=lambda one: (-one.epoch, one.digest))[:8]

    def certificate(self, page: bytes) -> NotarisedPage | None:
        """Return a page with the honest votes on it, and those of all dishonest members."""
        missing = self.missing(page)
        if missing is None:
            return None
        node = self.places[page]
        assert node.page is not None
        message = vote_for(node.page)
        votes = [*self.votes.get(page, {}).values(), *(signed(peer, message) for peer in missing)]
        return NotarisedPage.of(node.page, votes, node.council)

    def missing(self, page: bytes) -> list[PeerId] | None:
        """Return the dishonest members that a certificate needs; None if it has no quorum."""
        node = self.places.get(page)
        if node is None or node.page is None:
            return None
        council = node.council
        if council.seat != node.page.message.council:
            return None
        votes = self.votes.get(page, {})
        missing = [peer for peer in council.members if peer in self.bad and peer not in votes]
        needed = council.recovery_quorum if node.is_recovery else council.quorum
        return missing if council.seats_of([*votes, *missing]) >= needed else None

    def attack(self, epoch: int) -> None:
        """Let dishonest members propose a child of any page they may, one for each side."""
        parents = self.known()
        if self.is_duel:
            awake = [
                one for one in self.nodes if not {one} & self.asleep and self.side[one] != BETWEEN
            ]
            parents = [one for peer in awake for one in self.nodes[peer].tree.tips()]
        for parent in dict.fromkeys(parents):
            proposers = parent.council.proposers(parent.beacon, epoch)
            signer = proposers[0] if self.rng.random() < 0.5 else self.rng.choice(proposers)
            if parent.epoch >= epoch or signer not in self.bad:
                continue
            if self.hides:
                self.show_parent(parent)
            for side in (BETWEEN,) if self.is_duel else self.rng.choice([(0,), (1,), (0, 1)]):
                page = signed(signer, self.forged(parent, epoch))
                self.side[signer] = side if self.rng.random() < 0.8 else BETWEEN
                self.send(epoch, page)
                self.counts["attacks"] += 1

    def show_parent(self, parent: PageNode) -> None:
        """Show a page with hidden votes to the nodes that will vote for its child."""
        depth = self.depth(parent.digest)
        chain = self.chain_to(parent, 4)
        for node in self.nodes.values():
            tip = node.tree.tip()
            assert tip is not None
            if chain and self.depth(tip.digest) <= depth and tip is not parent:
                self.show(node, [(one,) for one in chain])

    def chain_to(self, one: PageNode | None, length: int) -> tuple[NotarisedPage, ...]:
        """Return a page of a council and those before it, with their votes."""
        chain: list[NotarisedPage] = []
        while one is not None and len(chain) < length:
            proof = self.certificate(one.digest)
            if proof is None:
                break
            chain.insert(0, proof)
            if proof.page.message.parent == proof.page.message.council:
                break
            one = self.places.get(proof.page.message.parent)
        return tuple(chain)

    def forged(self, parent: PageNode, epoch: int) -> Page:
        """Return a page that members accept, with reveals of some of its members."""
        drawn = parent.council.revealers(parent.beacon, epoch, self.rules.revealers)
        alpha = self.rules.alpha(parent.beacon, epoch)
        proofs = [fast_proof(peer, alpha) if self.rng.random() < 0.98 else b"" for peer in drawn]
        contents = Contents() if parent.is_closing else self.contents(parent, epoch)
        return Page(
            epoch=epoch,
            council=parent.council.seat,
            parent=parent.digest,
            seed=parent.beacon,
            final_epoch=parent.shown_epoch,
            reveals=() if parent.is_closing else tuple(proofs),
            **contents.fields(parent),
        )

    def bad_votes(self, epoch: int) -> None:
        """Let dishonest members vote for every page of an epoch, each seen by its side."""
        for page in [one for one in self.pages.values() if one.message.epoch == epoch]:
            place = self.places.get(page.digest)
            voters = self.bad & place.council.places.keys() if place is not None else ()
            for peer in sorted(voters):
                if self.rng.random() < 0.95:
                    self.side[peer] = self.side[page.signer]
                    self.send(epoch, signed(peer, vote_for(page)))

    def show_chain(self, node: Node) -> None:
        """Show a node linked pages with their votes, hidden ones too."""
        ends = list(self.places.values())[-20:]
        if ends:
            chain = self.chain_to(self.rng.choice(ends), self.rng.randint(1, 4))
            self.show(node, [chain])

    def show(self, node: Node, chains: list[tuple[NotarisedPage, ...]]) -> None:
        for chain in chains:
            known = node.tree.get(chain[-1].page.digest) if chain else node.tree.root
            if known is None or not known.is_notarised:
                node.tree.offer_chain(chain)
                self.step(node, "chains")
        stash, node.stash = node.stash, []
        for one in stash:
            node.receive(one)

    def catch_up(self, node: Node, source: Node) -> None:
        """Show a node what an honest one serves late joiners."""
        tree, mine = source.tree, node.tree
        self.show(node, tree.handovers[mine.council.number :])
        recent = [one.to_offer() for one in tree.notarised() if one.epoch > mine.root.epoch]
        self.show(node, [tree.newest, *recent])

    # Schedule

    def run(self, epochs: int, steps: int = NEVER) -> None:
        """Run some epochs, at most so many steps."""
        for epoch in range(epochs):
            self.run_epoch(epoch)
            if self.counts["messages"] + self.counts["acts"] + self.counts["chains"] >= steps:
                break
        self.counts["epochs"] += epoch + 1
        self.counts["final"] += max(self.final)
        self.counts["handovers"] += len(self.councils) - 1 if self.councils else 0
        trees = (one.tree for one in self.nodes.values())
        seated = {seat: council for tree in trees for seat, council in tree.councils.items()}
        self.counts["redraws"] += sum(bool(council.era) for council in seated.values())
        self.counts["heavy seats"] += sum(bool(council.seats) for council in seated.values())

    def run_epoch(self, epoch: int) -> None:
        rng = self.rng
        if rng.random() < 0.08 and not self.is_duel:
            self.change_network()
        is_calm = not self.is_split and not self.hides
        for node in self.nodes.values():
            node.skew = 0 if is_calm or rng.random() < 0.97 else rng.choice([-1, 1])
        if not self.is_duel:
            self.troubles(epoch)
        self.deliver(epoch, 0.3 if self.hides else 0.6)
        self.attack(epoch)
        for share in (0.05, 0.4, 0.6, 0.8, 0.9):
            self.known()
            for node in rng.sample(list(self.nodes.values()), len(self.nodes)):
                if rng.random() < 0.02 or node.me in self.asleep:
                    continue
                if (
                    share == 0.8
                    and not self.is_duel
                    and self.side[node.me] == BETWEEN
                    and rng.random() < 0.1
                ):
                    self.lose_disk(node, rng.choice(list(self.nodes.values())))
                for message in node.act(epoch, share):
                    self.spread(epoch, message, share)
                self.step(node, "acts")
            if share == 0.6:
                self.bad_votes(epoch)
                self.deliver(epoch, 0.3)

    def duel(self) -> None:
        """Let one side make pages final, then hide them and let the other side try.

        Each side has a quorum with the dishonest members and the few nodes between the sides. These
        do not learn what is final, and some forget all but their vote before the other side wakes.
        """
        setting, rng = self.setting, self.rng
        honest = rng.sample(
            [peer for peer in self.genesis if peer in self.nodes],
            len(self.genesis) - setting.dishonest,
        )
        quorum = 2 * setting.size // 3 + 1
        between = next(
            number
            for number in range(1, len(honest))
            if (len(honest) - number) // 2 + number + setting.dishonest >= quorum
        )
        self.is_split = self.is_duel = True
        half = (len(honest) - between) // 2
        groups = honest[:half], honest[half : 2 * half], honest[2 * half :]
        for side, group in enumerate(groups):
            self.side.update(dict.fromkeys(group, side))
        epoch = 0
        for phase in range(3):
            self.asleep = set(self.nodes) - set(groups[phase % 2]) - set(groups[BETWEEN])
            self.waiting.clear()
            for peer in groups[BETWEEN] if phase else ():
                if rng.random() < 0.5:
                    self.lose_disk(self.nodes[peer], self.nodes[groups[phase % 2][0]])
            final = len(self.final)
            for _ in range(20):
                self.run_epoch(epoch)
                epoch += 1
                if len(self.final) > final:
                    break
        self.is_split, self.asleep = False, set()
        for node in self.nodes.values():
            self.catch_up(node, rng.choice(list(self.nodes.values())))
        for _ in range(5):
            self.run_epoch(epoch)
            epoch += 1
        self.counts["duels"] += 1
        self.counts["final in duels"] += max(self.final)

    def change_network(self) -> None:
        """Choose who sees whom for a while."""
        rng = self.rng
        self.is_split, self.hides = rng.choice(
            [(False, False), (True, False), (True, False), (False, True), (True, True)]
        )
        self.leak = rng.choice([0.0, 0.0, 0.0, 0.03])
        members = rng.sample(self.pool, len(self.pool))
        blocks = self.pool[: self.setting.size], self.pool[self.setting.size :]
        for block in blocks:
            group = [peer for peer in members if peer in self.nodes and peer in block]
            between = rng.randint(0, max(0, len(group) - 2))
            for place, peer in enumerate(group):
                self.side[peer] = BETWEEN if place < between else place % 2

    def lose_disk(self, node: Node, source: Node) -> None:
        """Restart a node with its last vote only, and with what another node serves."""
        node.restart([])
        self.catch_up(node, source)
        self.counts["lost disks"] += 1

    def spread(self, epoch: int, message: Signed, share: float) -> None:
        if not isinstance(message.message, Reveal):
            self.send(epoch, message)
            return
        for peer, node in self.nodes.items():
            if self.near(peer, message.signer):
                node.reveals.offer(message, share)

    def troubles(self, epoch: int) -> None:
        """Restart nodes, show them chains, and let late ones catch up."""
        rng, nodes = self.rng, list(self.nodes.values())
        for node in nodes:
            draw = rng.random()
            if draw < 0.01:
                node.restart(node.stored)
                self.counts["restarts"] += 1
            elif draw < 0.02:
                self.lose_disk(node, rng.choice(nodes))
            elif self.hides and draw < 0.2:
                self.show_chain(node)
            elif draw < (0.05 if self.is_split else 0.4):
                source = rng.choice(nodes)
                if self.near(node.me, source.me):
                    self.catch_up(node, source)
        for page in [key for key, one in self.places.items() if one.epoch < epoch - 30]:
            del self.places[page]


def keys(peers) -> tuple[bytes, ...]:
    return tuple(KEYS[peer] for peer in sorted(peers))


SETTINGS = [(4, 1, 0), (7, 2, 0), (7, 1, 0), (4, 1, 0), (7, 1, 3)]
"""Seats, dishonest members, members gone for good."""

STEPS = ("messages", "acts", "chains")


def run_many(steps: int, seed: int, epochs: int = 60) -> Counter[str]:
    """Run schedules until they have made so many steps."""
    counts: Counter[str] = Counter()
    while sum(counts[kind] for kind in STEPS) < steps:
        size, dishonest, gone = SETTINGS[seed % len(SETTINGS)]
        changes = (0.0, 0.05, 0.2)[seed % 3]
        model = Model(Setting(seed, size, dishonest, gone, changes), counts)
        if seed % 2 and not gone:
            model.duel()
        else:
            model.run(epochs)
        counts["schedules"] += 1
        seed += 1
    return counts


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    counts = run_many(options.steps, options.seed)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    sys.stdout.write(f"no conflict: {text} in {time.monotonic() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
