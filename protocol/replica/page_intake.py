"""Intake of pages, votes, reveals and evidence of a run, with the time at which they arrive.

Honest members propose and vote for the present epoch only. So a gossiped page or vote of an older
epoch is ignored: it could only fill tables. Late pages come with the votes that notarise them.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import compress

from protocol.consensus.council import NotarisedPage, PageRules, decode_chain, encode_chain
from protocol.consensus.equivocation import EquivocationTable
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reveals import Reveals
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.containers import LruCache
from protocol.core.crypto import Output, Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.commits import CommitTable
from protocol.ledger.final_ledger import Derive, FinalLedger
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import Opened, Page, PageVote, Reveal, Signed, open_envelope
from protocol.run.manifest import RunManifest

OUTPUTS_MAX = 512
"""Cached outputs: a proof arrives alone and in pages, and a check costs 1.6 ms."""


class PageIntake:
    """Tree of pages, reveals and evidence of one run."""

    def __init__(
        self, manifest: RunManifest, verify: Verifier, output: Output, opened: Opened
    ) -> None:
        self._manifest, self._verify, self._opened = manifest, verify, opened
        self._output = output
        rules = manifest.council
        self.rules = PageRules(
            manifest.run_id,
            rules.recovery_epochs,
            rules.revealers,
            rules.seats_max,
            rules.era_epochs,
        )
        self.ledger = FinalLedger(credit_rules(manifest))
        checked = _cached(output)
        genesis = [PeerId(key) for key in manifest.genesis.validators]
        # The ledger holds commits for four lifetimes, and a restart ranks their certificates again.
        kept_epochs = 4 * manifest.committee.expire_after_epochs + self._window_epochs()
        self._kept_epochs = kept_epochs
        self.tree = PageTree(genesis, self.rules, verify, checked, kept_epochs)
        self.reveals = Reveals(self.tree, checked)
        self.evidence = EquivocationTable(manifest.run_id, verify, self.tree.is_member)
        self.awaited: TrustedPage | None = None
        """Page that a peer must show before this node accepts gossiped pages; None once one has."""

    def apart(self, handovers: Iterable[tuple[NotarisedPage, ...]]) -> "PageIntake":
        """Return another intake of the run with some handovers, to examine a history in it."""
        apart = PageIntake(self._manifest, self._verify, self._output, self._opened)
        for chain in handovers:
            apart.tree.offer_chain(chain)
        return apart

    def _window_epochs(self) -> int:
        return 1 + math.ceil(CLOCK_SKEW_SECONDS_MAX / self._manifest.epochs.seconds)

    def offer_page(self, page: Signed[Page], now: float) -> Fault | bool:
        """Accept a page; False if it is known, out of time, or must wait."""
        return self._fault(page.message.epoch, now) or (
            self._takes(page.message.epoch, now) and self.tree.offer_page(page)
        )

    def offer_vote(self, vote: Signed[PageVote], now: float) -> Fault | bool:
        """Accept a vote; False if it is known or out of time."""
        return self._fault(vote.message.epoch, now) or (
            self._takes(vote.message.epoch, now) and self.tree.offer_vote(vote)
        )

    def offer_reveal(self, reveal: Signed[Reveal], now: float) -> Fault | bool:
        """Accept a reveal; False if it is known or out of time."""
        epoch = reveal.message.epoch
        fault = self._fault(epoch, now)
        if fault is not None or not self._takes(epoch, now):
            return fault or False
        began_at = self._manifest.epoch_start(epoch)
        return self.reveals.offer(reveal, (now - began_at) / self._manifest.epochs.seconds)

    def _fault(self, epoch: int, now: float) -> Fault | None:
        newest = self._manifest.epoch_at(now + CLOCK_SKEW_SECONDS_MAX)
        return Fault(FaultCode.FUTURE_EPOCH) if epoch > newest else None

    def _takes(self, epoch: int, now: float) -> bool:
        return self.awaited is None and self._is_recent(epoch, now)

    def _is_recent(self, epoch: int, now: float) -> bool:
        return epoch >= self._manifest.epoch_at(now) - self._window_epochs()

    def offer_chain(self, data: bytes) -> Fault | bool:
        """Accept encoded notarised pages of another node or of this disk; False if no news."""
        chain = decode_chain(data, self.rules.run_id, self._verify, self._opened)
        return chain if isinstance(chain, Fault) else self.tree.offer_chain(chain)

    def restore(self, message: Signed[Page] | Signed[PageVote]) -> None:
        """Restore a page or vote accepted before a restart."""
        if isinstance(message.message, Page):
            self.tree.offer_page(message)
        else:
            self.tree.offer_vote(message)

    def open_page(self, envelope: bytes) -> Signed[Page] | Fault:
        """Open the envelope of a page of the run."""
        return open_envelope(envelope, Page, self.rules.run_id, self._verify, self._opened)

    @property
    def statement(self) -> Page | None:
        """The newest final page if it states a root of the accounts."""
        page = self.tree.root.page
        return page.message if page is not None and page.message.ledger else None

    @property
    def accounts(self) -> Accounts:
        """Accounts up to the newest final page whose work is known here."""
        return self.ledger.accounts

    def is_slashed(self, worker: PeerId) -> bool:
        """Return whether a final page has slashed a worker."""
        return self.accounts.is_slashed(worker)

    def was_cleared(self, worker: PeerId) -> bool:
        """Return whether a final page has overturned a rejection of a worker."""
        return self.accounts.was_cleared(worker)

    def count_final(self, commits: CommitTable, derive: Derive) -> None:
        """Count the pages that have become final, and fix the outcomes that they name."""
        for node in self.tree.take_finalised():
            if node.page is not None:
                _fix_outcomes(node.page.message, commits)
                self.ledger.follow(node.page, node.beacon)
        self.ledger.count(derive)

    def fix_counted(self, commits: CommitTable) -> None:
        """Fix the outcomes that the final pages name that were counted before a restart."""
        node = self.tree.page(self.tree.root.digest)
        while node is not None and node.page is not None:
            _fix_outcomes(node.page.message, commits)
            node = self.tree.page(node.page.message.parent)

    def chains(self, named: Iterable[bytes] = ()) -> Iterator[bytes]:
        """Yield encoded notarised pages that a restart needs, in the order to restore them.

        Certificates name the pages ``named``, which may be old.
        """
        yield from map(encode_chain, self.tree.chains(named))

    def undecided(self) -> Iterator[bytes]:
        """Yield the other envelopes that a restart needs."""
        yield from (one.envelope for one in self.tree.undecided())
        yield from (one.envelope for one in self.evidence.evidence.values())

    # Synchronisation

    def chains_after(self, seat: bytes, epoch: int) -> list[tuple[NotarisedPage, ...]]:
        """Return what brings another node to the newest final page, in the order to offer it.

        ``seat`` is its council, ``epoch`` that of its newest final page. Nothing, if the ``recent``
        pages do so: then it counts the work in the pages before the newest final one. A node of an
        unknown council receives what proves a conflict, unless this node may be behind.
        """
        tree = self.tree
        known = tree.councils.get(seat)
        if known is None:
            seated = list(tree.councils.values())[1:]
            recent = [one.since > tree.root.epoch - self._kept_epochs for one in seated]
            recents = [*compress(tree.handovers, recent), *filter(None, [tree.newest])]
            return recents if tree.root.epoch >= epoch else []
        handovers = tree.handovers[known.number :]
        is_newer = bool(handovers) or (tree.root.epoch > epoch and not self._goes_back(seat, epoch))
        return [*handovers, tree.newest] if tree.newest and is_newer else handovers

    def _goes_back(self, seat: bytes, epoch: int) -> bool:
        """Return whether the recent pages go back to the newest final page of such a node."""
        recent = self.recent(seat, epoch, ())
        node = recent.get(self.tree.root.digest)
        while node is not None and node.page is not None and node.epoch > epoch:
            parent = node.page.message.parent
            if not parent:
                return True
            node = recent.get(parent)
        return node is not None

    def recent(self, seat: bytes, epoch: int, named: Iterable[bytes]) -> dict[bytes, PageNode]:
        """Return the notarised pages that such a node may need, the old ones first.

        Old ones are needed while certificates name them.
        """
        tree = self.tree
        if seat not in tree.councils:
            return {}
        after = epoch if seat == tree.council.seat else -1
        return {
            node.digest: node
            for node in tree.notarised(named)
            if node.epoch > after or tree.page(node.digest)
        }

    def needs(self, page: bytes) -> bool:
        """Return whether a notarised page with this digest would be news."""
        node = self.tree.get(page)
        if node is not None:
            return not node.is_notarised
        drawing, root = self.tree.page(page), self.tree.root
        if drawing is None:
            return True
        return drawing.epoch > root.epoch and drawing.council.seat == root.council.seat

    def undecided_at(self, now: float) -> Iterator[Signed[Page] | Signed[PageVote]]:
        """Yield the recent pages that are not notarised, and the votes for them."""
        for one in self.tree.undecided():
            message = one.message
            node = self.tree.get(message.page) if isinstance(message, PageVote) else None
            decided = node is not None and node.is_notarised
            if not decided and self._is_recent(message.epoch, now):
                yield one


def _fix_outcomes(page: Page, commits: CommitTable) -> None:
    for place, commit in enumerate(page.decided):
        entry = commits.known(Digest(commit))
        if entry is not None:  # its certificate may still be on its way
            entry.final = place < len(page.certified)


def credit_rules(manifest: RunManifest) -> CreditRules:
    """Return the rules of a run for accounts."""
    credit = manifest.credit
    return CreditRules(
        per_token=credit.per_token,
        per_checked_token=credit.per_checked_token,
        per_learned_token=credit.per_learned_token,
        lock_epochs=credit.lock_epochs,
        slash=credit.slash,
        gap_max=credit.gap_max,
        era_epochs=manifest.council.era_epochs,
        reward_disagreement_rate=credit.reward_disagreement_rate,
    )


def _cached(output: Output) -> Output:
    cache = LruCache[tuple[PeerId, bytes, bytes], bytes](OUTPUTS_MAX)

    def checked(key: tuple[PeerId, bytes, bytes]) -> bytes | Fault:
        found = output(*key)
        return Fault(FaultCode.BAD_REVEAL) if found is None else found

    def cached(peer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
        found = cache.get_or_compute((peer, alpha, proof), checked)
        return None if isinstance(found, Fault) else found

    return cached
