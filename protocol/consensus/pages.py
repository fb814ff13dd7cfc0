"""Pages: what the council decides, one page an epoch, final by Streamlet (Chan and Shi 2020).

A page extends another page and is notarised by the votes of its council: more than two thirds of
the seats. Of three notarised pages of consecutive epochs, each the parent of the next, the second
is final, and so are its ancestors. Less than a third of dishonest seats cannot make two conflicting
pages final, whatever the network does.

A page that changes the council ends its council's chain. The pages after it change nothing, carry
no reveals and draw nothing; they only make it final. Then the new council continues from that page,
and not from the ones after it. So no two councils ever extend one chain at the same time: their
quorums need not intersect. Without this rule a node that has seen the old council's last votes and
one that has not could follow two final chains.

If nothing is final for ``recovery_epochs``, more than half of the seats suffice for a page that
removes members, and for the pages that make it final. This is safe only if the silent members are
gone, not merely disconnected.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain as joined

from protocol.consensus.conflict import ConflictWatch
from protocol.consensus.council import (
    Council,
    NotarisedPage,
    PageRules,
    check_page,
    follows_change,
    peers_of,
    vote_for,
)
from protocol.consensus.final_commits import FinalCommits, with_listing
from protocol.consensus.page_node import PageNode, check_chain, place_fault, proofs_of
from protocol.consensus.page_votes import VOTED_EPOCHS_MAX, CastVotes
from protocol.core.containers import BoundedDict, SizeGauge
from protocol.core.crypto import Output, Verifier, digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.messages import Page, PageVote, Signed

VOTES_EACH_MAX = 2
"""Votes of one member in one epoch for pages that are not here: two prove equivocation."""

PROPOSALS_EACH_MAX = 16
"""Pages of one member, without enough votes, in the tree."""

ORPHANS_MAX = 32
"""Pages that wait for the votes on their parents; one to three arrive in an epoch."""

RECENT_EPOCHS = 64
"""Epochs for which a tree keeps whether they have a notarised page."""

OLD_PAGES_MAX = 1024
"""Pages that are too old for new certificates; 13 KB each at 200 seats."""


class PageTree:
    """Pages of one run: the present council's tree, and the final chain before it."""

    def __init__(
        self,
        genesis: Sequence[PeerId],
        rules: PageRules,
        verify: Verifier,
        output: Output,
        kept_epochs: int,
    ) -> None:
        self.rules, self._verify, self._output = rules, verify, output
        self._kept_epochs = kept_epochs
        council = Council(b"", tuple(sorted(genesis)))
        self.councils = {b"": council}
        """All councils of the run, by the page that seated them."""
        beacon = digest(b"prime-node/beacon" + rules.run_id)
        self.root = PageNode(b"", -1, council, beacon, -1, is_notarised=True)
        """The newest final page, or the beginning of the run."""
        self._nodes: dict[bytes, PageNode] = {b"": self.root}
        self._votes = CastVotes()
        self._orphans: dict[bytes, Signed[Page]] = {}
        self._adopted = deque[Signed[Page]](maxlen=ORPHANS_MAX)
        self._foreign: Signed[Page] | None = None  # the last page of an unknown council
        self._recent: dict[bytes, PageNode] = {}
        """Recent notarised pages, in any branch."""
        self._final = FinalCommits()
        self._finalised: list[PageNode] = []
        self._old = BoundedDict[bytes, PageNode](OLD_PAGES_MAX)
        """Older pages: evidence against workers names them."""
        self._members = frozenset(council.members)
        self._ended: dict[bytes, int] = {}
        """For each former council, the epoch of the page that ended it."""
        self.watch = ConflictWatch()
        """Finds final pages that conflict, in any branch."""
        self.notarised_epochs = BoundedDict[int, bool](RECENT_EPOCHS)
        """Recent epochs with a notarised page; True if it draws committees."""
        self.handovers: list[tuple[NotarisedPage, ...]] = []
        """For each council after the genesis, the pages that show its seating page final."""
        self.newest: tuple[NotarisedPage, ...] = ()
        """Three pages that show the root final; empty if it is a seating page."""
        self.removals: dict[PeerId, list[int]] = {}
        """Epochs of the final pages that removed each key."""
        self.heard: dict[PeerId, int] = {}
        """Newest epoch of a page or vote of each member of the present council."""
        self.equivocations: dict[PeerId, tuple[Signed[PageVote], Signed[PageVote]]] = {}
        """Two votes in one epoch, of each member that signed both."""
        self.tables = (
            SizeGauge(
                "page_votes",
                VOTED_EPOCHS_MAX * rules.council_max,
                lambda: len(self._votes),
            ),
            SizeGauge(
                "page_proposals",
                PROPOSALS_EACH_MAX * rules.council_max,
                lambda: sum(not node.is_notarised for node in self._nodes.values()),
            ),
            SizeGauge("page_orphans", ORPHANS_MAX, lambda: len(self._orphans)),
            self.watch.gauge,
        )

    # Queries

    @property
    def council(self) -> Council:
        """The council of the next page."""
        return self.root.council

    def get(self, page: bytes) -> PageNode | None:
        """Return a page of the present council's tree."""
        return self._nodes.get(page)

    def tips(self) -> list[PageNode]:
        """Return the notarised pages with the longest chains: an honest member extends one."""
        known = [node for node in self._nodes.values() if node.is_notarised]
        longest = max(node.length for node in known)
        return [node for node in known if node.length == longest]

    def tip(self, epoch: int | None = None) -> PageNode | None:
        """Return the tip, of those before ``epoch``, that this node extends."""
        tips = [tip for tip in self.tips() if epoch is None or tip.epoch < epoch]
        return min(tips, key=lambda tip: (-tip.epoch, tip.digest), default=None)

    def pages_of(self, epoch: int) -> list[PageNode]:
        """Return the pages of an epoch that are here, notarised or not."""
        return [node for node in self._nodes.values() if node.epoch == epoch]

    def drawing(self, commit: Digest, tip: PageNode | None = None) -> PageNode | None:
        """Return the page that draws the committee of a commit, on the chain of this node's tip.

        None while no page has listed the commit, or none has drawn committees since.
        """
        final = self._final.of(self.root, self._recent).drawn.get(commit)
        tip = tip or self.tip()
        assert tip is not None
        path = (self._recent.get(node.digest, node) for node in tip.path())
        on_path = [one for one in path if commit in one.drawn]
        return final or (on_path[-1] if on_path else None)

    def is_listed(self, commit: Digest, tip: PageNode) -> bool:
        """Return whether a page up to ``tip`` has listed a commit."""
        if commit in self._final.of(self.root, self._recent).listed:
            return True
        return any(commit in page.commits for page in tip.pages())

    def lists(self, commit: Digest) -> bool:
        """Return whether a page of the present council's tree lists a commit."""
        pages = (node.page.message for node in self._nodes.values() if node.page is not None)
        return any(commit in page.commits for page in pages)

    def unlisted(self, commits: Iterable[Digest], tip: PageNode) -> list[Digest]:
        """Return the commits that no page up to ``tip`` has listed."""
        listed = frozenset(joined.from_iterable(page.commits for page in tip.pages()))
        final = self._final.of(self.root, self._recent).listed
        return [one for one in commits if one not in listed and one not in final]

    def outcome(self, commit: Digest, tip: PageNode) -> bool | None:
        """Return whether a page up to ``tip`` accepts a commit; None if no page decides it."""
        for page in tip.pages():
            if commit in page.certified or commit in page.rejected:
                return commit in page.certified
        return self._final.of(self.root, self._recent).decided.get(commit)

    def page(self, page: bytes) -> PageNode | None:
        """Return a recent notarised page, in any branch, or an older one that is still kept."""
        return self._recent.get(page) or self._old.get(page)

    def is_member(self, peer: PeerId) -> bool:
        """Return whether a key is in the present council or in one with a recent drawing page."""
        return peer in self._members

    def last_vote(self, peer: PeerId) -> Signed[PageVote] | None:
        """Return the newest vote of a member for an epoch after the root's."""
        return self._votes.newest(peer)

    def is_behind(self) -> bool:
        """Return whether a page waits for its parent, or is of a council that is unknown here."""
        later = self._foreign.message if self._foreign else None
        unseated = later and later.epoch > self.root.epoch and later.council not in self.councils
        return bool(self._orphans or unseated)

    def chains(self, named: Iterable[bytes] = ()) -> Iterator[tuple[NotarisedPage, ...]]:
        """Yield what a node that knows only the genesis needs, in the order to offer it.

        These are all handovers, the newest final page, and those that ``notarised`` returns.
        """
        yield from self.handovers
        if self.newest:
            yield self.newest
        yield from (node.to_offer() for node in self.notarised(named))

    def notarised(self, named: Iterable[bytes] = ()) -> list[PageNode]:
        """Return the recent notarised pages by epoch, and the older ones that are ``named``.

        With the latter come the pages that list the commits that they draw.
        """
        kept = {**self._recent, **self._nodes}
        for page in named:
            if page in self._old:
                kept |= with_listing(self._old[page], self.page)
        nodes = sorted(kept.values(), key=lambda node: node.epoch)
        return [node for node in nodes if node.proof is not None]

    def undecided(self) -> Iterator[Signed[Page] | Signed[PageVote]]:
        """Yield the pages that are not notarised, and the votes outside of ``chains``."""
        for node in (one for one in self._nodes.values() if one is not self.root):
            if node.page is not None and not node.is_notarised:
                yield node.page
            proven = {place for place, _ in node.proof.votes} if node.proof else ()
            places = node.council.places
            yield from (vote for vote in node.votes.values() if places[vote.signer] not in proven)
        yield from self._votes.loose()

    def take_finalised(self) -> list[PageNode]:
        """Return the pages that became final since the last call, oldest first.

        A node that was behind may have missed pages before the first of them.
        """
        finalised, self._finalised = self._finalised, []
        return finalised

    def take_adopted(self) -> list[Signed[Page]]:
        """Return the waiting pages that were accepted since the last call."""
        adopted = list(self._adopted)
        self._adopted.clear()
        return adopted

    # Messages

    def offer_page(self, page: Signed[Page]) -> Fault | bool:
        """Accept a page; False if it is known, old, or must wait for its parent."""
        news = self._offer_page(page, self._votes.loose_voters(page.digest))
        if news is True:
            self._limit_proposals(page.signer)
        return news

    def _offer_page(self, page: Signed[Page], voters: Collection[PeerId]) -> Fault | bool:
        message = page.message
        if message.council not in self.councils:
            self._foreign = page
        if page.digest in self._nodes or message.council != self.council.seat:
            return False
        if message.epoch <= self.root.epoch or page.signer not in self.council.places:
            return False
        parent = self._nodes.get(message.parent)
        if parent is None or not parent.is_notarised:
            self._keep_orphan(page)
            return False
        fault = place_fault(message, parent)
        if fault is not None:
            return fault
        checked = check_page(page, self.council, self.rules, self._output)
        if isinstance(checked, Fault):
            return checked
        is_second = any(
            one.parent is parent and one.page is not None and one.page.signer == page.signer
            for one in self.pages_of(message.epoch)
        )
        if is_second and 3 * self.council.seats_of(voters) < self.council.seats_total:
            return Fault(FaultCode.EQUIVOCATION, f"{page.signer} proposed two pages")
        node = parent.child(checked, self.rules)
        loose, vote = self._votes.take_loose(page.digest), vote_for(page)
        node.votes = {peer: one for peer, one in loose.items() if one.message == vote}
        self._nodes[page.digest] = node
        self._hear(page.signer, node.epoch)
        self._count(node)
        return True

    def _keep_orphan(self, page: Signed[Page]) -> None:
        self._orphans.setdefault(page.digest, page)
        if len(self._orphans) > ORPHANS_MAX:
            counts = Counter(one.signer for one in self._orphans.values())
            most = max(counts.values())
            del self._orphans[
                next(key for key, one in self._orphans.items() if counts[one.signer] == most)
            ]

    def _limit_proposals(self, signer: PeerId) -> None:
        pages = [
            node
            for node in self._nodes.values()
            if not node.is_notarised and node.page is not None and node.page.signer == signer
        ]
        if len(pages) > PROPOSALS_EACH_MAX:
            oldest = min(pages, key=lambda node: node.epoch)
            del self._nodes[oldest.digest]
            self._votes.put_back(oldest.digest, oldest.votes)

    def offer_vote(self, vote: Signed[PageVote]) -> Fault | bool:
        """Accept a vote of a member of the present council; False if it is known or unneeded."""
        message, voter = vote.message, vote.signer
        if message.council != self.council.seat or message.epoch <= self.root.epoch:
            return False
        if voter not in self.council.places:
            return Fault(FaultCode.NOT_IN_COUNCIL)
        node = self._nodes.get(message.page)
        if node is not None and node.page is not None and message != vote_for(node.page):
            return Fault(FaultCode.WRONG_EPOCH, "it says something else of its page")
        cast = self._votes.of(voter, message.epoch)
        if message.page in cast or (node is not None and voter in node.votes):
            return False
        if cast:
            self.equivocations.setdefault(voter, (next(iter(cast.values())), vote))
            if len(cast) >= VOTES_EACH_MAX and node is None:
                return False
        self._votes.add(vote, is_loose=node is None)
        self._hear(voter, message.epoch)
        if node is not None:
            node.votes[voter] = vote
            self._count(node)
        return True

    def offer_chain(self, chain: Sequence[NotarisedPage]) -> Fault | bool:
        """Accept notarised pages, each the parent of the next; False if they are no news.

        Three of consecutive epochs at the end show the ones before the last final: then this node
        continues from there, or from the page among them that changes the council.
        """
        council = self.councils.get(chain[0].page.message.council) if chain else None
        if council is None:
            return False
        before = self._before(chain[0].page.message, council)
        nodes = check_chain(chain, before, self.rules, self._verify, self._output)
        if isinstance(nodes, Fault):
            return nodes
        news = True in [self._keep_recent(node) for node in nodes]
        if council is not self.council:
            return news
        if not nodes[-1].finalises:
            return self._attach(chain, council) or news
        seating = next((number for number, one in enumerate(nodes) if one.changes_council), None)
        if seating is not None and seating < len(nodes) - 1:
            shown = next(i for i, one in enumerate(nodes) if one.finalises and i > seating)
            self._seat(nodes[seating], tuple(chain[min(seating, shown - 2) : shown + 1]))
            return True
        newest = nodes[-2]
        parent = self._nodes.get(chain[0].page.message.parent)
        is_linked = newest.digest in self._nodes or (parent is not None and parent.is_notarised)
        if is_linked or newest.is_closing or newest.epoch <= self.root.epoch:
            # Not from there: it would forget longer chains, or that a page ended the council.
            return self._attach(chain, council) or news
        self._finalised += [one for one in nodes[:-1] if one.epoch > self.root.epoch]
        newest.parent, newest.length = None, 0
        self.newest = tuple(chain[-3:])
        self._continue_from(newest, {newest.digest: newest})
        self._attach(chain[-1:], council)
        return True

    def _attach(self, chain: Sequence[NotarisedPage], council: Council) -> bool:
        """Accept pages and votes whose signatures are checked."""
        news = False
        for one in chain:
            news |= self._offer_page(one.page, one.voters(council)) is True
            for vote in one.opened_votes(council, self.rules.run_id):
                news |= self.offer_vote(vote) is True
        return news

    def _before(self, first: Page, council: Council) -> PageNode:
        """Return what stands for the parent of a page whose ancestors may not be here."""
        known = self.page(first.parent) or self._nodes.get(first.parent)
        return PageNode(
            first.parent,
            -1,
            council,
            Digest(first.seed),
            first.final_epoch,
            is_closing=follows_change(first),
            due={} if known is None else known.due,
            due_known=not first.parent or (known is not None and known.due_known),
        )

    # Consequences

    def _hear(self, peer: PeerId, epoch: int) -> None:
        self.heard[peer] = max(epoch, self.heard.get(peer, -1))

    def _count(self, node: PageNode) -> None:
        """Notarise a page if its votes suffice, and finalise what follows."""
        council = node.council
        needed = council.recovery_quorum if node.is_recovery else council.quorum
        if node.is_notarised or council.seats_of(node.votes) < needed:
            return
        assert node.page is not None
        node.is_notarised = True
        node.proof = NotarisedPage.of(node.page, list(node.votes.values()), council)
        self._keep_recent(node)
        if node.finalises and node.parent is not self.root:
            self._finalise(node)
        for orphan in [one for one in self._orphans.values() if one.message.parent == node.digest]:
            self._orphans.pop(orphan.digest, None)
            if self.offer_page(orphan) is True:
                self._adopted.append(orphan)

    def _keep_recent(self, node: PageNode) -> bool:
        """Keep a notarised page; False if it is known, or of a council that had ended."""
        if node.epoch > self.root.epoch - RECENT_EPOCHS:
            drew = node.draws or self.notarised_epochs.get(node.epoch, False)
            self.notarised_epochs[node.epoch] = drew
        oldest, newest = self.root.epoch - self._kept_epochs, self._ended.get(node.council.seat)
        # Keys of a council that ended long ago prove nothing: anybody may hold them.
        if node.proof and node.epoch > oldest and (newest is None or newest > oldest):
            self.watch.add(node.proof)
        if newest is not None and node.epoch > newest:
            return False
        pages = self._recent if node.epoch > oldest else self._old
        kept = pages.setdefault(node.digest, node)
        parent = self.page(node.page.message.parent) if node.page is not None else None
        for source in filter(None, (node.parent, parent)):
            kept.learn_due(source)
        self._final.forget()
        self._spread_due(kept)
        return kept is node

    def _spread_due(self, first: PageNode) -> None:
        """Complete what the pages after one draw."""
        known = [first]
        unknown = [one for one in self._recent.values() if not (one.drawn_known and one.due_known)]
        while unknown and known:
            parent = known.pop()
            known += [one for one in unknown if one.learn_due(parent)]

    def _finalise(self, shown_by: PageNode) -> None:
        """Make the parent of a page final, with all before it."""
        path = list(shown_by.path())[::-1]  # from the root to the page that shows it
        seating = next((one for one in path[1:-1] if one.changes_council), None)
        if seating is not None:
            # From the seating page on, and at least the three that show it final.
            start = min(path.index(seating), len(path) - 3)
            self._seat(seating, proofs_of(path[start:]))
            return
        newest = path[-2]
        self._finalised += path[1:-1]
        self.newest = proofs_of(path[-3:])
        newest.parent = None
        kept = {one.digest: one for one in self._nodes.values() if newest in one.path()}
        self._continue_from(newest, kept)

    def _seat(self, seating: PageNode, shown_by: tuple[NotarisedPage, ...]) -> None:
        """Continue with the council of a final page that changes it."""
        assert seating.page is not None
        council = self.council.after(seating.page, self.rules.era_epochs)
        before = list(seating.path())[::-1]
        self._finalised += [one for one in before if one.epoch > self.root.epoch]
        self.councils[council.seat] = council
        self.handovers.append(shown_by)
        self._ended[self.council.seat] = seating.epoch
        for peer in peers_of(seating.page.message.removed):
            self.removals.setdefault(peer, []).append(seating.epoch)
        self._votes = CastVotes()
        self.newest = ()
        root = replace(
            seating,
            council=council,
            draws=False,
            drawn={},  # by the council before it
            drawn_known=True,
            parent=None,
            length=0,
            shown_epoch=seating.epoch,
            follows_closely=False,
            finalises=False,
            is_closing=False,
            is_recovery=False,
        )
        self._continue_from(root, {root.digest: root})

    def _continue_from(self, root: PageNode, nodes: dict[bytes, PageNode]) -> None:
        self.root, self._nodes = root, nodes
        members, oldest = root.council.places, root.epoch - self._kept_epochs
        self._votes.retain(root.epoch)
        self.watch.forget(oldest)
        self._orphans = {
            key: one for key, one in self._orphans.items() if one.message.epoch > root.epoch
        }
        self.heard = {peer: self.heard.get(peer, root.epoch) for peer in members}
        for key in [key for key, node in self._recent.items() if node.epoch <= oldest]:
            self._old[key] = self._recent.pop(key)
        self._final.forget()
        recent = (node.council.members for node in self._recent.values())
        self._members = frozenset(joined.from_iterable((*recent, root.council.members)))
