"""Replicated state of a run: everything that a node concludes from signed messages.

``receive`` is the single entry point for every message, our own included. It opens the envelope,
checks signature, limits and preconditions, and only then changes the roster, the ledger or a
verdict pool. A message that cannot be decided yet waits in a bounded table: a certificate before
its commit, a version before its parent or the outcomes of its batch. ``advance`` tries it again;
versions are also tried when a certificate or another version is accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from protocol.consensus.committee import VerdictTable, check_certificate
from protocol.core.containers import Table
from protocol.core.crypto import Verifier
from protocol.core.faults import Blame, Fault, FaultCode
from protocol.core.types import Digest, PeerId, Role, Topic, ValidationResult
from protocol.ledger.ledger import Ledger
from protocol.ledger.reputation import UntrustedCommits
from protocol.membership.roster import Roster
from protocol.messages import (
    OPENED_MAX,
    Certificate,
    CheckpointManifest,
    Evidence,
    Message,
    NodeRecord,
    Opened,
    RolloutCommit,
    Signed,
    Verdict,
    open_any,
    open_envelope,
)
from protocol.messages.pending import PendingPool
from protocol.replica.late_evidence import LateEvidence
from protocol.run.manifest import RunManifest

WAITING_MAX = 1024
"""Messages of one kind that may wait for another message."""

UNKNOWN_KEYS_MAX = 256
"""Workers without a known admission that may have pending commits. These are not checked here;
certificates prove the admission of workers that have left. A guess."""

TOPIC_KINDS: dict[Topic, type[Message]] = {
    Topic.COMMITS: RolloutCommit,
    Topic.CERTIFICATES: Certificate,
    Topic.CHECKPOINTS: CheckpointManifest,
    Topic.ROSTER: NodeRecord,
    Topic.EVIDENCE: Evidence,
}

_KINDS_BY_TOPIC = {topic: {kind.kind: kind} for topic, kind in TOPIC_KINDS.items()}

_Take = Callable[[Any, float], "Received"]


@dataclass(frozen=True, slots=True)
class Received:
    """Result of a message: forwarding decision, fault if any, and the opened message.

    ``settled`` holds the messages accepted with it: versions that waited for it, and the verdicts
    of a certificate that is not accepted itself. A message that is not ``lasting`` must not be
    stored: after a restart its lateness would be unknown.
    """

    result: ValidationResult
    signed: Signed[Any] | None = None
    fault: Fault | None = None
    settled: tuple[Signed[Any], ...] = ()
    lasting: bool = True


class Replica:
    """Roster, ledger and verdicts of one run."""

    def __init__(
        self, manifest: RunManifest, verify: Verifier, opened: Opened | None = None
    ) -> None:
        self.manifest, self.run_id = manifest, manifest.run_id
        self.roster = Roster(manifest, verify)
        self.verdicts = VerdictTable(manifest, verify, self.roster)
        self.ledger = Ledger(manifest)
        self.untrusted_commits = UntrustedCommits(manifest, self.ledger)
        # By then the awaited rollouts have arrived or expired.
        self._waits_seconds = manifest.committee.expire_after_epochs * manifest.epochs.seconds
        self._validators = frozenset(manifest.genesis.validators)
        """For ``manifest.is_validator`` in constant time: every verdict is asked about."""
        self._verify = verify
        self._opened = opened if opened is not None else Opened(OPENED_MAX)
        self._early_certificates = PendingPool(WAITING_MAX, "waiting")
        self._early_verdicts = PendingPool(WAITING_MAX, "waiting")
        self._late = LateEvidence(manifest, self.ledger, self.roster, self.verdicts.electorate)
        self.tables: tuple[Table, ...] = (
            *self.ledger.tables,
            *self.roster.tables,
            *self.untrusted_commits.tables,
            self._early_certificates,
            self._early_verdicts,
            *self._late.tables,
        )
        self._take: dict[type[Message], _Take] = {
            NodeRecord: self._record,
            RolloutCommit: self._commit,
            Verdict: self._verdict,
            Certificate: self._certificate,
            CheckpointManifest: self._checkpoint,
            Evidence: self._take_evidence,
        }
        self._kinds = {kind.kind: kind for kind in self._take}
        self._restore: dict[type[Message], Callable[[Any], object]] = {
            RolloutCommit: self.ledger.restore_commit,
            Verdict: self.verdicts.restore,
            Certificate: self._restore_certificate,
            CheckpointManifest: self.ledger.restore_checkpoint,
            Evidence: self.verdicts.equivocators.offer,
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
        if isinstance(message, Verdict | Certificate) and signed.signer not in self._validators:
            return _received(signed, Fault(FaultCode.NOT_A_VALIDATOR))
        take = self._take[type(message)]
        if anti_entropy and isinstance(message, RolloutCommit):
            take = partial(self._commit, anti_entropy=True)
        received = take(signed, now)
        accepted = received.result is ValidationResult.ACCEPT
        if accepted and isinstance(message, Certificate | CheckpointManifest):
            return replace(received, settled=tuple(self._settle_versions(now)))
        return received

    def restore(self, envelope: bytes) -> None:
        """Restore a stored message; the caller keeps the original order."""
        signed = open_any(envelope, self._kinds, self.run_id, self._verify, self._opened)
        if isinstance(signed, Signed) and type(signed.message) in self._restore:
            self._restore[type(signed.message)](signed)

    def _restore_certificate(self, certificate: Signed[Certificate]) -> None:
        if certificate.message.commit in self.ledger.commits.entries:
            verdicts = self._open_verdicts(certificate) or []
            for verdict in verdicts:
                self.verdicts.restore(verdict)
            self.ledger.offer_certificate(certificate, [one.message for one in verdicts])

    def advance(self, now: float) -> list[Signed[Any]]:
        """Advance to ``now``: expire, forget, retry pending messages; return those accepted now."""
        settled: list[Signed[Any]] = [*self.roster.advance(now)]
        self.ledger.advance(self.manifest.epoch_at(now))
        self.verdicts.retain(self.ledger.commits.entries)
        oldest = now - self._waits_seconds
        early: tuple[tuple[PendingPool, _Take], ...] = (
            (self._early_verdicts, self._verdict),
            (self._early_certificates, self._certificate),
        )
        for waiting, take in early:
            waiting.expire(oldest)
            for signed, arrived_at in waiting.take():
                received = take(signed, arrived_at)
                if received.result is ValidationResult.ACCEPT:
                    settled.append(signed)
                settled += received.settled
        self.ledger.branches.expire(oldest)
        self._late.expire(oldest)
        return [*settled, *self._settle_versions(now), *self._follow_validators(now)]

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

    def _follow_validators(self, now: float) -> list[Signed[CheckpointManifest]]:
        """Adopt the branch that the validators support, if it is not ours."""
        ledger, branches = self.ledger, self.ledger.branches
        if not len(branches):
            return []
        excluded = self.verdicts.equivocators.excluded(self.manifest.epoch_at(now))
        live = self.roster.live(now, Role.VALIDATOR)
        records = [member.record for member in live if member.peer not in excluded]
        roster_min = self.manifest.committee.roster_min
        branch = branches.vouched(records, roster_min, now - self._waits_seconds / 2)
        for manifest in branch:
            branches.remove(manifest.digest)
        if not branch or ledger.adopt(branch, now) is not None:
            return []
        return [*branch, *self._settle_versions(now)]

    @property
    def behind(self) -> bool:
        """True if a predecessor is missing, so that the node should synchronise with a peer."""
        return self.ledger.branches.behind or bool(self._early_certificates)

    def is_waiting(self, digest: Digest) -> bool:
        """Return whether a message is held undecided, so that it need not be sent again."""
        early = digest in self._early_certificates or self.roster.is_unchecked(digest)
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
            *(evidence.envelope for evidence in self.verdicts.equivocators.evidence),
            *(entry.commit.envelope for entry in commits),
            *(entry.manifest.envelope for entry in self.ledger.chain.checkpoints),
            *self.verdicts.envelopes(),
            *(entry.certificate.envelope for entry in commits if entry.certificate is not None),
        ]

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

    def leader(self, now: float) -> PeerId | None:
        """Return the leading trainer: the first live one in the manifest's order.

        The publisher of the newest version leads while it is live, so an earlier trainer that
        returns causes no contested hand-over.
        """
        live = {member.peer for member in self.roster.live(now, Role.TRAINER)}
        head = self.ledger.chain.head
        if head is not None and head.signer in live:
            return head.signer
        return next((PeerId(key) for key in self.manifest.genesis.trainers if key in live), None)

    # Messages

    def _record(self, record: Signed[NodeRecord], now: float) -> Received:
        return _received(record, self.roster.offer(record, now))

    def _commit(
        self, commit: Signed[RolloutCommit], now: float, *, anti_entropy: bool = False
    ) -> Received:
        worker, admitted, epoch = commit.signer, self.roster.admitted, self.manifest.epoch_at(now)
        if anti_entropy and self._late.is_old(commit, epoch):
            others = self._late.offer_commit(commit, now)
            return replace(_received(commit, bool(others)), settled=others)
        if not admitted.knows(worker) and not (anti_entropy and self._has_room_for_unknown(worker)):
            return _received(commit, Fault(FaultCode.UNKNOWN_KEY))
        if not (self.untrusted_commits.has_room_for(worker) or self._is_certified(commit)):
            return _received(commit, False)
        counts = self.counts(worker, commit.message.version, commit.message.epoch)
        result = self.ledger.offer_commit(commit, epoch, anti_entropy=anti_entropy, counts=counts)
        entry = self.ledger.commits.entries.get(commit.digest)
        return replace(_received(commit, result), lasting=entry is None or entry.timely)

    def _is_certified(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether a certificate waits for a commit."""
        waiting = self._early_certificates.entries.values()
        return any(certificate.message.commit == commit.digest for certificate, _ in waiting)

    def _has_room_for_unknown(self, worker: PeerId) -> bool:
        """Return whether commits of a key may wait for the outcome that proves its admission."""
        knows = self.roster.admitted.knows
        unknown = [one for one in self.ledger.commits.unsettled if not knows(one)]
        return worker in unknown or len(unknown) < UNKNOWN_KEYS_MAX

    def _verdict(self, verdict: Signed[Verdict], now: float) -> Received:
        entry = self.ledger.commits.entries.get(Digest(verdict.message.commit))
        if entry is None:
            self._early_verdicts.add(verdict, now)
            return _received(verdict, False)
        return _received(verdict, self.verdicts.add(verdict, entry.commit))

    def _take_evidence(self, evidence: Signed[Evidence], _now: float) -> Received:
        return _received(evidence, self.verdicts.equivocators.offer(evidence))

    def _certificate(self, certificate: Signed[Certificate], now: float) -> Received:
        commit = Digest(certificate.message.commit)
        entry = self.ledger.commits.entries.get(commit)
        if entry is None and commit not in self._late:
            self._early_certificates.add(certificate, now)
            return _received(certificate, False)
        outranks = entry is not None and entry.is_outranked_by(certificate.message)
        if not (outranks or self._late.wants(certificate)):
            return _received(certificate, False)
        verdicts = self._open_verdicts(certificate)
        if verdicts is None:
            return _received(certificate, Fault(FaultCode.BAD_CERTIFICATE, "a bad verdict"))
        if entry is None:
            return _received(certificate, self._late.offer_certificate(certificate, verdicts))
        committee = self.verdicts.committee(entry.commit)
        fault = check_certificate(certificate.message, verdicts, committee)
        if fault is not None and fault.code is not FaultCode.OTHER_COMMITTEE:
            return _received(certificate, fault)
        news = tuple(one for one in verdicts if self.verdicts.add(one, entry.commit) is True)
        if fault is not None:
            # Our roster may lag behind the author's: no peer is at fault, and we try again. If ours
            # is the complete one, its verdicts and those of others still decide here.
            self._early_certificates.add(certificate, now)
            return replace(_received(certificate, fault), settled=news)
        messages = [verdict.message for verdict in verdicts]
        return _received(certificate, self.ledger.offer_certificate(certificate, messages))

    def _checkpoint(self, manifest: Signed[CheckpointManifest], now: float) -> Received:
        is_live = partial(self.roster.is_live, now=now)
        received = _received(manifest, self.ledger.offer_checkpoint(manifest, now, is_live))
        waits = received.result is ValidationResult.IGNORE
        if waits and not self.ledger.chain.is_taken(manifest.digest):
            self.ledger.branches.add(manifest, now)
        else:
            self.ledger.branches.remove(manifest.digest)
        return received

    def _open_verdicts(self, certificate: Signed[Certificate]) -> list[Signed[Verdict]] | None:
        verdicts: list[Signed[Verdict]] = []
        for envelope in certificate.message.verdicts:
            verdict = open_envelope(envelope, Verdict, self.run_id, self._verify, self._opened)
            if isinstance(verdict, Fault) or verdict.signer not in self._validators:
                return None
            verdicts.append(verdict)
        return verdicts


def _received(signed: Signed[Any], result: Fault | bool) -> Received:
    if not isinstance(result, Fault):
        return Received(ValidationResult.ACCEPT if result else ValidationResult.IGNORE, signed)
    blamed = result.code.blame is Blame.SENDER
    return Received(ValidationResult.REJECT if blamed else ValidationResult.IGNORE, signed, result)
