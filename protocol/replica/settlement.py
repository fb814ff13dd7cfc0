"""Work that pages make final: what this node would name, and what it can confirm.

A certified rollout earns its worker tokens and its checkers a check; a rejected one earns its
checkers a check. A version earns its trainer a step, and all trainers of its round credit. Two
nodes may hold other verdicts of a larger committee, so a page names the checkers of each commit. A
member votes for a page only if it holds their verdicts, and derives the same work.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocol.consensus.committee import Committee, draw
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.reexamination import decision_on
from protocol.consensus.verdict_pool import VerdictTable
from protocol.core.types import Digest, PeerId
from protocol.ledger.commits import Entry
from protocol.ledger.ledger import Ledger
from protocol.ledger.receipts import STEPS_MAX, PageWork, Receipt, Reversal, Step
from protocol.messages import ACCEPTED, CheckpointManifest, Page, Signed, Verdict
from protocol.replica.rounds import contributors_of
from protocol.rollout.agreement import agreed_reason
from protocol.run.manifest import RunManifest


class DecidedCommits(NamedTuple):
    """Commits whose outcomes a page makes final, and the bits of their checkers."""

    certified: tuple[bytes, ...]
    rejected: tuple[bytes, ...]
    checkers: tuple[int, ...]
    overturned: tuple[bytes, ...] = ()
    """Commits whose final outcomes it overturns."""


class _Drawn(NamedTuple):
    """A commit with a certificate, and its committee."""

    entry: Entry
    committee: Committee


class Settlement:
    """Work of pages, from the commits, verdicts and versions that one node holds."""

    def __init__(
        self, manifest: RunManifest, ledger: Ledger, verdicts: VerdictTable, pages: PageTree
    ) -> None:
        self._manifest, self._ledger = manifest, ledger
        self._verdicts, self._pages = verdicts, pages
        self.overturns: Callable[[Digest], str | None] = lambda _commit: None
        """Returns the reason of the overturn of a commit that this node holds."""

    def decided(
        self,
        certified: Sequence[Digest],
        rejected: Sequence[Digest],
        overturned: Sequence[Digest] = (),
    ) -> DecidedCommits:
        """Return commits with their checkers, without those that this node cannot account for.

        One of those would take the others with it. ``overturned`` ones are given back.
        """
        accepted = self._checkers(certified, accepted=True)
        refused = self._checkers(rejected, accepted=False)
        checkers = *accepted.values(), *refused.values()
        return DecidedCommits(tuple(accepted), tuple(refused), checkers, tuple(overturned))

    def _checkers(self, commits: Sequence[Digest], *, accepted: bool) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for commit in commits:
            if (drawn := self._drawn(commit)) is not None:
                members = drawn.committee.escalated
                bits = sum(1 << members.index(one) for one in drawn.entry.checkers)
                if self._receipt(drawn, bits, accepted=accepted) is not None:
                    found[commit] = bits
        return found

    def unsettled(self) -> set[Digest]:
        """Return the commits that pages decide which are not final yet.

        If all nodes forgot them while the council stands still, no node could count these pages
        when they become final, and no member could propose another page.
        """
        pages = (page for tip in self._pages.tips() for page in tip.pages())
        return {Digest(one) for page in pages for one in (*page.decided, *page.overturned)}

    def work_of(self, page: Page, before: bytes) -> PageWork | None:
        """Return the work of a page after one with the final version ``before``."""
        decided = DecidedCommits(page.certified, page.rejected, page.checkers, page.overturned)
        return self.work(decided, before, page.head, page.parent)

    def work(
        self, decided: DecidedCommits, before: bytes, after: bytes, parent: bytes = b""
    ) -> PageWork | None:
        """Return the work of some commits, and of the versions from ``before`` to ``after``.

        None if this node lacks a part of it, if its messages show another outcome, or if a commit
        stands there twice. ``parent``: the page before, up to which overturned ones were decided.
        """
        if len({*decided.certified, *decided.rejected}) < len(decided.checkers):
            return None
        receipts: list[Receipt] = []
        outcomes = [*((one, True) for one in decided.certified)]
        outcomes += [(one, False) for one in decided.rejected]
        for (commit, accepted), bits in zip(outcomes, decided.checkers, strict=True):
            drawn = self._drawn(commit)
            receipt = None if drawn is None else self._receipt(drawn, bits, accepted=accepted)
            if receipt is None:
                return None
            receipts.append(receipt)
        steps, reversals = self._steps(before, after), self._reversals(decided.overturned, parent)
        if steps is None or reversals is None:
            return None
        return PageWork(tuple(receipts), steps, reversals)

    def _reversals(self, overturned: Sequence[bytes], parent: bytes) -> tuple[Reversal, ...] | None:
        """Return what some overturned commits undo; None if this node cannot confirm one."""
        if not overturned:
            return ()
        page, found = self._pages.page(parent), list[Reversal]()
        if page is None or len(set(overturned)) < len(overturned):
            return None
        epochs = 3 * self._manifest.committee.expire_after_epochs
        for commit in map(Digest, overturned):
            reason, receipt = self.overturns(commit), self.receipt_before(commit, page, epochs)
            if reason is None or receipt is None:
                return None
            found.append(Reversal(receipt, reason))
        return tuple(found)

    def receipt_before(self, commit: Digest, page: PageNode, epochs: int) -> Receipt | None:
        """Return the receipt of a commit that a page, or one of some epochs before it, decides.

        None if no such page does, or if this node cannot confirm it.
        """
        found = decision_on(commit, page, self._pages.page, epochs)
        drawn = None if found is None else self._drawn(commit)
        if found is None or drawn is None:
            return None
        message, place = found
        accepted = place < len(message.certified)
        return self._receipt(drawn, message.checkers[place], accepted=accepted)

    def _drawn(self, commit: bytes) -> _Drawn | None:
        """Return a commit with the committee that the page of its certificate draws."""
        entry = self._ledger.commits.known(Digest(commit))
        if entry is None or entry.certificate is None:
            return None
        page = self._pages.page(entry.certificate.message.page)
        committee = None if page is None else draw(self._manifest, page, entry.commit)
        return None if committee is None else _Drawn(entry, committee)

    def _receipt(self, drawn: _Drawn, bits: int, *, accepted: bool) -> Receipt | None:
        entry, committee = drawn
        certificate = entry.certificate  # overturned ones have another state
        is_same = certificate is not None and certificate.message.accepted is accepted
        if not is_same or bits >> len(committee.escalated):
            return None
        checkers = [one for n, one in enumerate(committee.escalated) if bits >> n & 1]
        is_first = accepted and set(checkers) == set(committee.first)
        verdicts = [self._verdict(drawn, one, accepted=accepted) for one in checkers]
        held = [one for one in verdicts if one is not None]
        if len(held) < len(checkers) or not (is_first or committee.is_quorum(checkers)):
            return None
        message = entry.commit.message
        return Receipt(
            commit=entry.commit.digest,
            worker=entry.commit.signer,
            version=message.version,
            slot=message.slot,
            evaluation=message.evaluation,
            tokens=message.tokens,
            reason=ACCEPTED if accepted else agreed_reason(held),
            checkers=tuple(sorted(checkers)),
        )

    def _verdict(self, drawn: _Drawn, checker: PeerId, *, accepted: bool) -> Verdict | None:
        """Return the verdict of a member that agrees with an outcome.

        A dishonest one may have signed another verdict before, and both decide: else it could stop
        the settlement of all commits at the nodes that received the other one first.
        """
        pool = self._verdicts.pool(drawn.entry.commit.digest, drawn.committee.page.digest)
        held = pool.verdicts.get(checker), *pool.equivocations.get(checker, ())
        verdicts = (one.message for one in held if one is not None)
        agreeing = (one for one in verdicts if isinstance(one, Verdict) and one.accept is accepted)
        return next(agreeing, None)

    # Versions

    def _steps(self, before: bytes, after: bytes) -> tuple[Step, ...] | None:
        chain = self._ledger.chain
        first, last = chain.place(before), chain.place(after)
        if first is None or last is None:
            return None
        if last - first > STEPS_MAX:
            return None
        # Version 0 learns from nothing: the genesis names its policy.
        steps = [self._step(chain.get(n)) for n in range(max(first + 1, 1), last + 1)]
        return None if None in steps else tuple(one for one in steps if one is not None)

    def _step(self, manifest: Signed[CheckpointManifest] | None) -> Step | None:
        if manifest is None:
            return None
        learned: dict[PeerId, tuple[int, int]] = {}
        for commit in map(Digest, manifest.message.batch):
            entry = self._ledger.commits.known(commit)
            if entry is None:
                return None
            rollouts, tokens = learned.get(entry.commit.signer, (0, 0))
            learned[entry.commit.signer] = rollouts + 1, tokens + entry.commit.message.tokens
        partners = {*contributors_of(self._manifest, manifest.message)} - {manifest.signer}
        return Step(
            version=manifest.message.version,
            manifest=manifest.digest,
            trainer=manifest.signer,
            learned=tuple((one, *learned[one]) for one in sorted(learned)),
            omitted=len(manifest.message.omitted),
            partners=tuple(sorted(partners)),
        )
