"""Replicated state of a run: everything that a node concludes from signed messages.

``receive`` is the single entry point for every message, our own included. It opens the envelope,
checks signature, limits and preconditions, and only then changes the roster, the ledger or a
verdict pool. A message that cannot be decided yet waits in a bounded table: a certificate before
its commit, a version before its parent or the outcomes of its batch. ``advance`` tries it again;
versions are also tried when a certificate or another version is accepted.
Final pages say which trainer leads and which version stands (``protocol.ledger.chain``).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from protocol.consensus.committee import open_verdicts, split
from protocol.consensus.dissents import DissentTable
from protocol.consensus.page_node import PageNode
from protocol.consensus.verdict_pool import VerdictTable
from protocol.core.containers import Table
from protocol.core.crypto import Output, Verifier, reveal_output
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, Topic, ValidationResult
from protocol.ledger.chain import Lead
from protocol.ledger.ledger import Ledger
from protocol.ledger.reputation import UntrustedCommits
from protocol.ledger.slot_window import WINDOW_SLOTS
from protocol.membership.roster import Roster
from protocol.messages import (
    OPENED_MAX,
    Certificate,
    CheckpointManifest,
    Evidence,
    Message,
    NodeRecord,
    Objection,
    Opened,
    Overturn,
    Page,
    PageVote,
    Reveal,
    RolloutCommit,
    RoundPlan,
    RoundResult,
    Signed,
    StepReport,
    Verdict,
    VerdictSeal,
    open_any,
)
from protocol.messages.pending import PendingPool
from protocol.replica.batch_rule import BatchRule
from protocol.replica.late_evidence import LateEvidence
from protocol.replica.page_intake import PageIntake
from protocol.replica.received import TOPIC_KINDS, Received, received_as
from protocol.replica.reviews import Reviews
from protocol.replica.rounds import Rounds
from protocol.replica.settlement import Settlement
from protocol.replica.shadows import StepReports
from protocol.run.manifest import RunManifest

WAITING_MAX = 1024
"""Messages of one kind that may wait for another message."""

UNKNOWN_KEYS_MAX = 256
"""Workers without a known admission that may have pending commits. These are not checked here;
certificates prove the admission of workers that have left. A guess."""

_KINDS_BY_TOPIC = {
    topic: {kind.kind: kind for kind in kinds} for topic, kinds in TOPIC_KINDS.items()
}

_Take = Callable[[Any, float], Received]
_Retry = Callable[[Any, float, float], Received]


class Replica:
    """Roster, ledger and verdicts of one run."""

    def __init__(
        self,
        manifest: RunManifest,
        verify: Verifier,
        output: Output = reveal_output,
        opened: Opened | None = None,
    ) -> None:
        self.manifest, self.run_id = manifest, manifest.run_id
        self._opened = opened if opened is not None else Opened(OPENED_MAX)
        self.roster = Roster(manifest, verify)
        self.intake = PageIntake(manifest, verify, output, self._opened)
        self.pages = self.intake.tree
        self.verdicts = VerdictTable(manifest, self.pages)
        self.dissents = DissentTable()
        self.ledger = Ledger(manifest, self.intake.is_slashed)
        self.settlement = Settlement(manifest, self.ledger, self.verdicts, self.pages)
        self.reviews = Reviews(manifest, self.ledger, self.settlement, self.pages, verify)
        self.batches = BatchRule(manifest, self.ledger, self.pages)
        self.shadows = StepReports(manifest, self.ledger, self.roster)
        self.rounds = Rounds(manifest, self.ledger, self.pages, verify, self._opened)
        self.untrusted_commits = UntrustedCommits(manifest, self.ledger)
        # By then the awaited rollouts have arrived or expired.
        self._waits_seconds = manifest.committee.expire_after_epochs * manifest.epochs.seconds
        self._verify = verify
        early = [PendingPool(WAITING_MAX, "waiting") for _ in range(3)]
        self._early_certificates, self._early_verdicts, self._early_overturns = early
        self._late = LateEvidence(manifest, self.ledger, self.roster, self.intake, self.verdicts)
        self.tables: tuple[Table, ...] = (
            *self.ledger.tables,
            *self.roster.tables,
            *self.untrusted_commits.tables,
            *early,
            *self.reviews.tables,
            *self._late.tables,
            *self.dissents.tables,
            *self.shadows.tables,
            *self.rounds.tables,
            *self.pages.tables,
            *self.intake.ledger.tables,
            self.intake.evidence.evidence,
        )
        self._take: dict[type[Message], _Take] = {
            NodeRecord: self._record,
            RolloutCommit: self._commit,
            Verdict: self._verdict,
            VerdictSeal: self._verdict,
            Certificate: self._certificate,
            Objection: self._objection,
            Overturn: self._overturn,
            CheckpointManifest: self._checkpoint,
            StepReport: self._step_report,
            RoundPlan: self._round_plan,
            RoundResult: self._round_result,
            Evidence: self._take_evidence,
            Page: self._page,
            PageVote: self._page_vote,
            Reveal: self._reveal,
        }
        self._kinds = {kind.kind: kind for kind in self._take}
        self._restore: dict[type[Message], Callable[[Any], object]] = {
            RolloutCommit: self.ledger.restore_commit,
            Verdict: self.verdicts.restore,
            Certificate: self._restore_certificate,
            Overturn: self.reviews.restore,
            CheckpointManifest: self.ledger.restore_checkpoint,
            StepReport: self.shadows.offer,
            Evidence: self.intake.evidence.offer,
            Page: self.intake.restore,
            PageVote: self.intake.restore,
        }

    def receive(
        self,
        envelope: bytes,
        now: float,
        *,
        topic: Topic | None = None,
        anti_entropy: bool = False,
    ) -> Received:
        """Process a message from any source; a rejected one leaves the state unchanged.

        ``topic``: the message was gossiped, and must be of this topic's kind. ``anti_entropy``: it
        was requested in a synchronisation, so a commit may be older.
        """
        kinds = self._kinds if topic is None else _KINDS_BY_TOPIC[topic]
        signed = open_any(envelope, kinds, self.run_id, self._verify, self._opened)
        if isinstance(signed, Fault):
            misplaced = topic is not None and signed.code is FaultCode.WRONG_KIND
            fault = Fault(FaultCode.WRONG_TOPIC) if misplaced else signed
            return Received(ValidationResult.REJECT, fault=fault)
        message = signed.message
        if isinstance(message, Verdict | VerdictSeal) and not self.pages.is_member(signed.signer):
            return received_as(signed, False)  # or we do not know its council yet
        take = self._take[type(message)]
        if anti_entropy and isinstance(message, RolloutCommit):
            take = partial(self._commit, anti_entropy=True)
        received = take(signed, now)
        accepted = received.result is ValidationResult.ACCEPT
        if accepted and isinstance(message, Certificate | CheckpointManifest):
            return replace(received, settled=tuple(self._settle_versions(now)))
        return received

    def restore(self, envelope: bytes) -> None:
        """Restore a stored message; the caller keeps the original order, and pages come first."""
        signed = open_any(envelope, self._kinds, self.run_id, self._verify, self._opened)
        if isinstance(signed, Signed) and type(signed.message) in self._restore:
            self._restore[type(signed.message)](signed)

    def _restore_certificate(self, certificate: Signed[Certificate]) -> None:
        entry = self.ledger.commits.entries.get(Digest(certificate.message.commit))
        page = self.pages.page(certificate.message.page)
        verdicts = self._open_verdicts(certificate.message)
        if entry is None or page is None or verdicts is None:
            return
        for verdict in verdicts:
            self.verdicts.restore(verdict)
        rank = self.verdicts.rank(certificate.message, verdicts, entry.commit, page)
        if not isinstance(rank, Fault):
            self._decide(certificate, verdicts, rank, page)

    def advance(self, now: float) -> list[Signed[Any]]:
        """Advance to ``now``: expire, forget, retry pending messages; return those accepted now."""
        settled: list[Signed[Any]] = [*self.roster.advance(now)]
        self.ledger.advance(self.manifest.epoch_at(now), self._needed)
        self.verdicts.retain(self.ledger.commits.entries)
        self.reviews.retain()
        oldest = now - self._waits_seconds
        early: tuple[tuple[PendingPool, _Retry], ...] = (
            (self._early_verdicts, self._verdict),
            (self._early_certificates, self._certificate),
            (self._early_overturns, self._overturn),
        )
        for waiting, retry in early:
            waiting.expire(oldest)
            for signed, arrived_at in waiting.take():
                received = retry(signed, now, arrived_at)
                if received.result is ValidationResult.ACCEPT:
                    settled.append(signed)
                settled += received.settled
        self.ledger.branches.expire(oldest)
        self._late.expire(oldest)
        followed = self.ledger.follow(self.lead, now)
        self.shadows.advance()
        self.rounds.advance()
        self.count_final()
        return [*settled, *followed, *self._settle_versions(now)]

    def _needed(self) -> set[Digest]:
        """Return the commits that pages may still decide or overturn."""
        return self.settlement.unsettled() | self.reviews.needed()

    def _settle_versions(self, now: float) -> list[Signed[CheckpointManifest]]:
        """Accept the pending versions that no longer have to wait."""
        settled: list[Signed[CheckpointManifest]] = []
        waiting = self.ledger.branches.candidates()
        while waiting:
            manifest = waiting.pop(0)
            if self._checkpoint(manifest, now).result is ValidationResult.ACCEPT:
                settled.append(manifest)
                waiting = self.ledger.branches.candidates()
        return settled

    @property
    def behind(self) -> bool:
        """True if a predecessor is missing, so that the node should synchronise with a peer."""
        pages = self.pages.is_behind() or not self.ledger.chain.is_taken(self.lead.head)
        pages = pages or self.intake.ledger.is_behind
        return pages or self.ledger.branches.behind or bool(self._early_certificates)

    def is_waiting(self, digest: Digest) -> bool:
        """Return whether a message is held undecided, so that it need not be sent again."""
        early = digest in self._early_certificates or digest in self._early_overturns
        early = early or self.roster.is_unchecked(digest)
        return early or digest in self.ledger.branches or digest in self._late

    @property
    def forked(self) -> bool:
        """True if a version without its parent is pending: it may supersede ours."""
        return self.ledger.branches.forked

    def envelopes(self) -> list[bytes]:
        """Return the envelopes that a restart needs, in the order in which to restore them."""
        entries = self.ledger.commits.all_entries()
        commits = [entry for entry in entries if entry.timely or entry.certificate is not None]
        return [
            *self.intake.undecided(),
            *(entry.commit.envelope for entry in commits),
            *(entry.manifest.envelope for entry in self.ledger.chain.checkpoints),
            *self.shadows.envelopes(),
            *self.verdicts.envelopes(),
            *(entry.certificate.envelope for entry in commits if entry.certificate is not None),
            *(overturn.envelope for overturn in self.reviews.overturns()),
        ]

    def named_pages(self) -> list[bytes]:
        """Return the pages that drew the committees of the certificates that are held."""
        certificates = (entry.certificate for entry in self.ledger.commits.all_entries())
        return list(dict.fromkeys(one.message.page for one in certificates if one is not None))

    def chains(self) -> Iterator[bytes]:
        """Yield the encoded notarised pages that a restart needs, in the order to restore them."""
        yield from self.intake.chains(self.named_pages())

    # Queries

    def counts(self, worker: PeerId, version: int, epoch: int) -> bool:
        """Return whether commits of ``worker`` in ``epoch`` to a version are checked here.

        An unknown version may be of any age. A worker that a committee has judged for an older
        version was admitted before this one.
        """
        checkpoint = self.ledger.chain.get(version)
        made_at = 0.0 if checkpoint is None else checkpoint.message.created_at / 1000
        made = self.manifest.epoch_at(made_at)
        judged = self.ledger.workers.was_judged(worker, version)
        return self.roster.admitted.counts(worker, made, epoch, judged=judged)

    def next_slot(self, worker: PeerId) -> int:
        """Return the training slot after the last one of a worker that this node knows of."""
        counted = self.intake.accounts.next_slot(worker)
        return max(counted, self.ledger.commits.next_slot(worker))

    @property
    def lead(self) -> Lead:
        """Leader and final version, by the newest final page."""
        return Lead(self.pages.root.term, self.pages.root.head)

    @property
    def leader(self) -> PeerId:
        """The trainer that leads, by the newest final page."""
        return self.manifest.leader(self.lead.term)

    # Messages

    def _record(self, record: Signed[NodeRecord], now: float) -> Received:
        return received_as(record, self.roster.offer(record, now))

    def _commit(
        self, commit: Signed[RolloutCommit], now: float, *, anti_entropy: bool = False
    ) -> Received:
        worker, admitted, epoch = commit.signer, self.roster.admitted, self.manifest.epoch_at(now)
        if anti_entropy and self._late.is_old(commit, epoch):
            others = self._late.offer_commit(commit, now)
            return replace(received_as(commit, bool(others)), settled=others)
        if not admitted.knows(worker) and not (anti_entropy and self._has_room_for_unknown(worker)):
            return received_as(commit, Fault(FaultCode.UNKNOWN_KEY))
        # Members vote for a page only with all commits that it lists.
        is_listed = self.pages.lists(commit.digest)
        has_room = is_listed or (
            self._is_near(commit) and self.untrusted_commits.has_room_for(worker)
        )
        if not (has_room or self._is_certified(commit)):
            return received_as(commit, False)
        counts = self.counts(worker, commit.message.version, commit.message.epoch)
        result = self.ledger.offer_commit(
            commit, epoch, anti_entropy=anti_entropy, counts=counts, is_listed=is_listed
        )
        entry = self.ledger.commits.entries.get(commit.digest)
        if entry is not None:
            entry.final = self.pages.outcome(commit.digest, self.pages.root)
        return replace(received_as(commit, result), lasting=entry is None or entry.timely)

    def _is_near(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether a worker may use a slot now: no worker leaves out so many at once."""
        message = commit.message
        return message.evaluation or message.slot < self.next_slot(commit.signer) + WINDOW_SLOTS

    def _is_certified(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether a certificate waits for a commit."""
        waiting = self._early_certificates.entries.values()
        return any(certificate.message.commit == commit.digest for certificate, _ in waiting)

    def _has_room_for_unknown(self, worker: PeerId) -> bool:
        """Return whether commits of a key may wait for the outcome that proves its admission."""
        knows = self.roster.admitted.knows
        unknown = [one for one in self.ledger.commits.unsettled if not knows(one)]
        return worker in unknown or len(unknown) < UNKNOWN_KEYS_MAX

    def _verdict(
        self,
        statement: Signed[Verdict] | Signed[VerdictSeal],
        now: float,
        arrived_at: float | None = None,
    ) -> Received:
        """Accept a verdict or a seal. Seals are not stored: their authors send them again."""
        message = statement.message
        entry = self.ledger.commits.entries.get(Digest(message.commit))
        page = self.pages.page(message.page)
        is_drawn = page is not None and message.commit in page.drawn
        if entry is None or page is None or not (is_drawn or page.drawn_known):
            self._early_verdicts.add(statement, now if arrived_at is None else arrived_at)
            return received_as(statement, False)
        if not is_drawn:
            return received_as(statement, False)
        return replace(
            received_as(statement, self.verdicts.add(statement, entry.commit)),
            lasting=isinstance(message, Verdict),
        )

    def _take_evidence(self, evidence: Signed[Evidence], _now: float) -> Received:
        return received_as(evidence, self.intake.evidence.offer(evidence))

    def _page(self, page: Signed[Page], now: float) -> Received:
        received = received_as(page, self.intake.offer_page(page, now))
        self.count_final()
        return replace(received, settled=tuple(self.pages.take_adopted()))

    def count_final(self) -> None:
        """Count the pages that have become final, as far as their work is known."""
        self.intake.count_final(self.ledger.commits, self.settlement.work_of)
        self.reviews.count(self.intake.ledger.take_reversals())

    def fix_counted(self) -> None:
        """Fix the outcomes that final pages name that were counted before a restart."""
        self.intake.fix_counted(self.ledger.commits)
        self.reviews.fix_all()

    def _page_vote(self, vote: Signed[PageVote], now: float) -> Received:
        received = received_as(vote, self.intake.offer_vote(vote, now))
        self.count_final()
        return replace(received, settled=tuple(self.pages.take_adopted()))

    def _reveal(self, reveal: Signed[Reveal], now: float) -> Received:
        return replace(received_as(reveal, self.intake.offer_reveal(reveal, now)), lasting=False)

    def _certificate(
        self, certificate: Signed[Certificate], now: float, arrived_at: float | None = None
    ) -> Received:
        commit = Digest(certificate.message.commit)
        since = now if arrived_at is None else arrived_at
        entry = self.ledger.commits.entries.get(commit)
        page = self.pages.page(certificate.message.page)
        if page is not None and not (commit in page.drawn or page.drawn_known):
            page = None
        if page is None and not self.pages.is_member(certificate.signer):
            return received_as(certificate, False)  # or we do not know its council yet
        if page is not None and certificate.signer not in page.council.places:
            return received_as(certificate, Fault(FaultCode.NOT_A_VALIDATOR))
        if page is None or (entry is None and commit not in self._late):
            # Before its commit, or before the page that draws the committee.
            self._early_certificates.add(certificate, since)
            return received_as(certificate, False)
        accepted = certificate.message.accepted
        is_overruled = self.pages.outcome(commit, self.pages.root) is (not accepted)
        is_news = entry is not None and not entry.is_repeated_by(certificate.message)
        may_decide = is_news and not is_overruled
        if not (may_decide or self._late.wants(certificate)):
            return received_as(certificate, False)
        verdicts = self._open_verdicts(certificate.message)
        if verdicts is None:
            return received_as(certificate, Fault(FaultCode.BAD_CERTIFICATE, "a bad verdict"))
        if entry is None:
            return received_as(certificate, self._late.offer_certificate(certificate, verdicts))
        rank = self.verdicts.rank(certificate.message, verdicts, entry.commit, page)
        if isinstance(rank, Fault):
            return received_as(certificate, rank)
        added = [one for one in verdicts if self.verdicts.add(one, entry.commit) is True]
        decided = self._decide(certificate, verdicts, rank, page)
        return replace(received_as(certificate, decided), settled=() if decided else tuple(added))

    def _decide(
        self,
        certificate: Signed[Certificate],
        verdicts: list[Signed[Verdict]],
        rank: bytes,
        page: PageNode,
    ) -> bool:
        """Offer a checked certificate to the ledger, and count its verdicts if it decides."""
        deciding, dissents = split(certificate.message, verdicts)
        decided = self.ledger.offer_certificate(certificate, deciding, rank)
        if decided:
            commit = Digest(certificate.message.commit)
            agreeing = [verdict.signer for verdict in deciding]
            dissenting = [verdict.signer for verdict in dissents]
            self.dissents.count(page.epoch, commit, agreeing, dissenting)
            self.reviews.fix(commit)
        return decided

    def _objection(self, objection: Signed[Objection], _now: float) -> Received:
        taken = self.reviews.offer_objection(objection)
        return replace(received_as(objection, taken), lasting=False)

    def _overturn(
        self, overturn: Signed[Overturn], now: float, arrived_at: float | None = None
    ) -> Received:
        if not self.pages.is_member(overturn.signer):
            return received_as(overturn, False)  # or we do not know its council yet
        taken = self.reviews.offer_overturn(overturn)
        if taken is None:
            self._early_overturns.add(overturn, now if arrived_at is None else arrived_at)
        if taken is True:
            self.reviews.fix(Digest(overturn.message.commit))
        return received_as(overturn, False if taken is None else taken)

    def _checkpoint(self, manifest: Signed[CheckpointManifest], now: float) -> Received:
        taken = self.rounds.fault(manifest) or self.ledger.offer_checkpoint(
            manifest, now, self.lead, self.pages.root.epoch
        )
        received = received_as(manifest, taken)
        waits = received.result is ValidationResult.IGNORE
        if waits and not self.ledger.chain.is_taken(manifest.digest):
            self.ledger.branches.add(manifest, now)
        else:
            self.ledger.branches.remove(manifest.digest)
        return received

    def _step_report(self, report: Signed[StepReport], now: float) -> Received:
        return received_as(report, self.shadows.offer(report, now))

    def _round_plan(self, plan: Signed[RoundPlan], now: float) -> Received:
        return replace(received_as(plan, self.rounds.offer_plan(plan, now)), lasting=False)

    def _round_result(self, result: Signed[RoundResult], _now: float) -> Received:
        return replace(received_as(result, self.rounds.offer_result(result)), lasting=False)

    def _open_verdicts(self, certificate: Certificate) -> list[Signed[Verdict]] | None:
        return open_verdicts(certificate, self.run_id, self._verify, self._opened)
