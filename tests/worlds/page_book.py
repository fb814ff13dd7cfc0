"""The pages that an honest council with every key at hand makes, one an epoch from epoch 1 on."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from protocol.consensus.committee import Committee, draw
from protocol.consensus.council import CheckedPage, NotarisedPage, check_page, peers_of, vote_for
from protocol.consensus.member import Contents
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reveals import Reveals
from protocol.core.crypto import Identity, reveal_output, verify
from protocol.core.types import PeerId
from protocol.ledger.final_ledger import FinalLedger
from protocol.ledger.receipts import PageWork, Receipt, Reversal, Step
from protocol.messages import (
    OPENED_MAX,
    Certificate,
    Opened,
    Page,
    PageVote,
    Reveal,
    RolloutCommit,
    Signed,
    Verdict,
    VerdictSeal,
    open_any,
    seal,
)
from protocol.replica.page_intake import PageIntake, credit_rules
from protocol.replica.replica import Replica
from protocol.run.manifest import RunManifest

fast_output = cache(reveal_output)
"""Tests make many replicas, which check the same proofs."""

fast_verify = cache(verify)


class PageBook:
    """Pages of a council whose members reveal and vote in every epoch.

    ``contents``: what the page of an epoch decides; its members leave only if they are here.
    ``first``: the epoch of the first page. ``absent``: members that do nothing. There is no page of
    an epoch whose proposer is absent, or whose votes do not suffice.
    """

    def __init__(
        self,
        manifest: RunManifest,
        council: list[Identity],
        contents: Mapping[int, Contents] = MappingProxyType({}),
        first: int = 1,
        absent: Collection[PeerId] = (),
    ) -> None:
        self._run_id = manifest.run_id
        self._keys = {one.peer_id: one for one in council}
        self._contents, self._epoch, self._absent = dict(contents), first - 1, absent
        intake = PageIntake(manifest, fast_verify, fast_output, Opened(OPENED_MAX))
        self._tree: PageTree = intake.tree
        self._reveals: Reveals = intake.reveals
        self._root = self._tree.root
        self._votes: dict[int, list[Signed[PageVote]]] = {}
        self._nodes: dict[int, PageNode] = {}
        self._drawing: dict[tuple[bytes, int], PageNode] = {}
        self._manifest = manifest
        self.works: dict[bytes, PageWork] = {}
        """Work that pages of the book name, by its digest."""
        self._receipts: dict[bytes, Receipt] = {}
        """Receipts of the commits that pages of the book decide."""
        self._ledger = FinalLedger(credit_rules(manifest))
        self.roots = {-1: self._ledger.accounts.root}
        """Root of the accounts after the final page of each epoch."""

    def page(self, epoch: int) -> Signed[Page]:
        """Return the page of an epoch."""
        self._write_to(epoch)
        page = self._nodes[epoch].page
        assert page is not None
        return page

    def votes(self, epoch: int) -> list[Signed[PageVote]]:
        """Return the votes for it."""
        self._write_to(epoch)
        return self._votes[epoch]

    def reveals(self, epoch: int) -> list[Signed[Reveal]]:
        """Return what the drawn members reveal for it."""
        page, council = self.page(epoch).message, self._nodes[epoch].council
        drawn = council.revealers(page.seed, epoch, self._tree.rules.revealers)
        return [
            seal(
                Reveal(epoch=epoch, parent=page.parent, proof=proof), self._run_id, self._keys[peer]
            )
            for peer, proof in zip(drawn, page.reveals, strict=True)
            if proof
        ]

    def chain(self, first: int, last: int) -> list[NotarisedPage]:
        """Return the notarised pages of epochs ``first`` to ``last``."""
        self._write_to(last)
        nodes = [node for epoch, node in self._nodes.items() if first <= epoch <= last]
        return [node.proof for node in nodes if node.proof is not None]

    def drawing(self, *commits: Signed[RolloutCommit], after: int | None = None) -> PageNode:
        """Return the page that draws the committees of commits.

        It is in the chain if a page there lists them. Otherwise it is on a branch of its own, after
        the page of the first commit's epoch or of ``after``: one page lists the commits, the next
        one draws. ``BookReplica`` receives both when they are due.
        """
        listed = [one for one, said in self._contents.items() if commits[0].digest in said.commits]
        if listed and after is None:
            self._write_to(listed[0] + 1)
            return next(one for one in self._nodes.values() if commits[0].digest in one.drawn)
        epoch = commits[0].message.epoch if after is None else after
        key = commits[0].digest, epoch
        if key not in self._drawing:
            self._write_to(epoch)
            before = [node for number, node in self._nodes.items() if number <= epoch]
            parent = before[-1] if before else self._root
            digests = tuple(one.digest for one in commits)
            listing = self._extend(parent, epoch + 1, Contents(commits=digests))
            node = self._extend(listing, epoch + 2)
            self._drawing |= {(one, epoch): node for one in digests}
            BRANCHES[node.digest] = node
        return self._drawing[key]

    def extended(self, node: PageNode, *contents: Contents) -> list[PageNode]:
        """Return notarised pages after one of a branch, one an epoch."""
        nodes = [node]
        for one in contents:
            nodes.append(self._extend(nodes[-1], nodes[-1].epoch + 1, one))
        return nodes[1:]

    def show(self, replica, last: int, first: int = 1, *, with_work: bool = True) -> None:
        """Show a replica the pages up to an epoch, as a late joiner receives them.

        ``with_work``: it also receives the work of the final ones.
        """
        self._write_to(last)
        for epoch, node in self._nodes.items():
            if first <= epoch <= last:
                replica.pages.offer_chain(node.to_offer())
        if with_work:
            self.count(replica)

    def count(self, replica) -> None:
        """Count the final pages of a replica that has received their work from a peer."""
        replica.intake.count_final(
            replica.ledger.commits, lambda page, _head: self.works.get(page.work)
        )

    def list_in(self, epoch: int, *commits: Signed[RolloutCommit]) -> None:
        """Let the page of an epoch that is not written yet list commits."""
        assert epoch > self._epoch
        known = self._contents.get(epoch, Contents())
        listed = (*known.commits, *(one.digest for one in commits))
        self._contents[epoch] = replace(known, commits=listed)

    def _write_to(self, last: int) -> None:
        while self._epoch < last:
            self._epoch += 1
            self._write(self._epoch)

    def _write(self, epoch: int) -> None:
        tip = self._tree.tip()
        assert tip is not None
        if tip.council.proposer(tip.beacon, epoch) in self._absent:
            return
        contents = self._contents.get(epoch, Contents())
        if tip.is_closing or not set(peers_of(contents.removed)) <= set(tip.council.members):
            contents = Contents()
        if not tip.is_closing:
            contents = replace(contents, ledger=self.roots[tip.shown_epoch])
        page, votes = self._page_after(tip, epoch, contents)
        assert self._tree.offer_page(page) is True
        node = self._tree.get(page.digest)
        assert node is not None
        for one in votes:
            self._tree.offer_vote(one)
        if node.is_notarised:
            self._nodes[epoch], self._votes[epoch] = node, votes
        for final in self._tree.take_finalised():
            self._ledger.follow(final.page, final.beacon)
            self._ledger.count(lambda page, _head: self.works[page.work])
            self.roots[final.epoch] = self._ledger.accounts.root

    def _page_after(
        self, parent: PageNode, epoch: int, contents: Contents
    ) -> tuple[Signed[Page], list[Signed[PageVote]]]:
        """Return a page and the votes of all members that are here."""
        council, rules = parent.council, self._tree.rules
        if not parent.is_closing:
            contents = self._with_work(parent, contents)
        alpha = rules.alpha(parent.beacon, epoch)
        page = seal(
            Page(
                epoch=epoch,
                council=council.seat,
                parent=parent.digest,
                seed=parent.beacon,
                final_epoch=parent.shown_epoch,
                reveals=tuple(
                    b"" if peer in self._absent else _proof(self._keys[peer], alpha)
                    for peer in self._reveals.expected(parent, epoch)
                ),
                **contents.fields(parent),
            ),
            self._run_id,
            self._keys[council.proposer(parent.beacon, epoch)],
        )
        present = [peer for peer in council.members if peer not in self._absent]
        return page, [seal(vote_for(page), self._run_id, self._keys[peer]) for peer in present]

    def _with_work(self, parent: PageNode, contents: Contents) -> Contents:
        """Complete what a page states of the work of the commits and versions that it names."""
        receipts, checkers = [], []
        for commit in contents.certified + contents.rejected:
            known = _KNOWN.get(commit)
            accepted = commit in contents.certified
            committee = known and self._committee(known)
            if not committee:
                checkers.append(0)
                continue
            members = committee.first if accepted else committee.escalated[: committee.quorum]
            checkers.append(sum(1 << committee.escalated.index(one) for one in members))
            reason, message = "accepted" if accepted else "computation", known.message
            place = message.version, message.slot, message.evaluation, message.tokens
            keys = tuple(sorted(members))
            receipts.append(Receipt(commit, known.signer, *place, reason, keys))
        self._receipts |= {one.commit: one for one in receipts}
        reversals = [self._reversal(commit) for commit in contents.overturned]
        steps = self._steps(parent.head, contents.head)
        work = PageWork(tuple(receipts), steps, tuple(reversals))
        self.works[work.digest] = work
        return replace(contents, checkers=tuple(checkers), work=work.digest)

    def _reversal(self, commit: bytes) -> Reversal:
        receipt = self._receipts[commit]
        return Reversal(receipt, "computation" if receipt.reason == "accepted" else "accepted")

    def _committee(self, commit: Signed[RolloutCommit]) -> Committee | None:
        """Return the committee of a commit; None if no page here draws one."""
        node = next((one for one in self._nodes.values() if commit.digest in one.drawn), None)
        if node is None:
            listed = any(commit.digest in one.commits for one in self._contents.values())
            before = [one for one in self._nodes.values() if one.epoch <= commit.message.epoch]
            if listed or (before and before[-1].is_closing):
                return None
            node = self.drawing(commit)
        return draw(self._manifest, node, commit)

    def _steps(self, before: bytes, after: bytes | None) -> tuple[Step, ...]:
        found: list[Step] = []
        version = _KNOWN.get(after or before)
        while version is not None and version.digest != before and version.message.version:
            if not _KNOWN.keys() >= set(version.message.batch):
                return ()  # made-up rollouts
            learned = Counter[PeerId]()
            tokens = Counter[PeerId]()
            for commit in (_KNOWN[one] for one in version.message.batch):
                learned[commit.signer] += 1
                tokens[commit.signer] += commit.message.tokens
            workers = tuple((one, learned[one], tokens[one]) for one in sorted(learned))
            message = version.message
            step = message.version, version.digest, version.signer, workers, len(message.omitted)
            found.append(Step(*step))
            version = _KNOWN.get(message.parent)
        if before and (version is None or version.digest != before):
            return ()  # another branch: such a page is refused for its version
        return tuple(found[::-1])

    def _extend(
        self,
        parent: PageNode,
        epoch: int,
        contents: Contents = Contents(),  # noqa: B008 - frozen
    ) -> PageNode:
        """Return a notarised page outside of the tree, which states no accounts of its own."""
        page, votes = self._page_after(parent, epoch, contents)
        checked = check_page(page, parent.council, self._tree.rules, fast_output)
        assert isinstance(checked, CheckedPage), checked
        node = parent.child(checked, self._tree.rules)
        node.is_notarised, node.proof = True, NotarisedPage.of(page, votes, parent.council)
        return node


_KNOWN: dict[bytes, Signed] = {}
"""Commits and versions of all runs: pages that name others name no work of them."""


def knows(signed: Signed) -> Signed:
    """Note a commit or version, so that pages which name it state its work."""
    _KNOWN[signed.digest] = signed
    return signed


BRANCHES: dict[bytes, PageNode] = {}
"""Pages that books have made outside of their chains."""


class BookReplica(Replica):
    """Knows, when a certificate or verdict arrives, the pages of a book that drew its committee."""

    def receive(self, envelope, now, **options):
        self._show_pages(envelope)
        return super().receive(envelope, now, **options)

    def restore(self, envelope):
        self._show_pages(envelope)
        super().restore(envelope)

    def _show_pages(self, envelope):
        kinds = {kind.kind: kind for kind in (Certificate, Verdict, VerdictSeal)}
        signed = open_any(envelope, kinds, self.run_id, lambda *_: True)
        node = BRANCHES.get(signed.message.page) if isinstance(signed, Signed) else None
        if node is not None and self.pages.page(node.digest) is None:
            self.pages.offer_chain(node.to_offer())


_PROOFS: dict[tuple[PeerId, bytes], bytes] = {}


def _proof(key: Identity, alpha: bytes) -> bytes:
    """Return a proof; books of one run need the same ones."""
    if (key.peer_id, alpha) not in _PROOFS:
        _PROOFS[key.peer_id, alpha] = key.prove(alpha)
    return _PROOFS[key.peer_id, alpha]


_BOOKS: dict[bytes, PageBook] = {}


def page_book(manifest: RunManifest, council: list[Identity]) -> PageBook:
    """Return the book of a run's first council; tests of one run share it."""
    return _BOOKS.setdefault(manifest.run_id, PageBook(manifest, council))
