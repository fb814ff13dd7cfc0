"""Table of commits: outcomes, slots and pending commits of each worker.

Worker statistics and backpressure follow from the changes of this table.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.chain import Chain
from protocol.ledger.slot_table import SlotTable
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import (
    LISTED_MAX,
    Certificate,
    CheckpointManifest,
    RolloutCommit,
    Signed,
    Verdict,
)
from protocol.rollout.agreement import agreed_reason
from protocol.rollout.assignment import is_evaluation
from protocol.rollout.body import body_bytes_max
from protocol.rollout.statistics import Sums, agreed
from protocol.run.manifest import RunManifest

EPOCHS_AHEAD_MAX = 2
"""A commit's epoch may exceed ours by this much, for clock skew."""

COMMITS_IN_FLIGHT_MAX = 16
"""Maximum pending commits of one worker; it bounds the work that a cheating worker causes. Honest
workers stay far below (``roles.inference``): a certificate takes time to reach all nodes."""

SHARE_VERSIONS = 4
"""Number of newest versions with the batches that measure a worker's share; a guess."""


class CommitState(StrEnum):
    """Outcome of a commit."""

    COMMITTED = "committed"
    CERTIFIED = "certified"
    REJECTED = "rejected"
    EXPIRED = "expired"


class CommitStatus(NamedTuple):
    """Part of an entry that changes: outcome, and the version that learned from the commit."""

    state: CommitState
    reason: str
    trained_in: int | None


@dataclass(slots=True)
class Entry:
    """A commit and its outcome."""

    commit: Signed[RolloutCommit]
    state: CommitState = CommitState.COMMITTED
    certificate: Signed[Certificate] | None = None
    rank: bytes = b""
    """Rank of the certificate, if any."""
    decided_epoch: int = -1
    """Our epoch when the certificate was accepted."""
    checkers: tuple[PeerId, ...] = ()
    """Members whose verdicts are in the certificate."""
    final: bool | None = None
    """True if a final page accepts it, False if one rejects it, None before. No certificate changes
    that."""
    overturned: str = ""
    """Reason for which a final page overturned the outcome; empty if none has."""
    reason: str = ""
    trained_in: int | None = None
    measured: Sums | None = None
    """Statistics that the verdicts of its certificate agree on, if anything was measured."""
    timely: bool = True
    """False for a commit that arrived late or has a too recent key. Its author could have known its
    committee or its problems in advance."""
    is_evaluation: bool = False
    """True for a rollout on held-out problems: no version learns from it."""
    epoch: int = field(init=False)
    version: int = field(init=False)
    checkpoint: bytes = field(init=False)
    """Copies of the commit's fields: reading a field of a message costs ten times as much."""

    def __post_init__(self) -> None:
        """Copy the fields that are read most."""
        message = self.commit.message
        self.epoch, self.version = message.epoch, message.version
        self.checkpoint = message.checkpoint

    @property
    def status(self) -> CommitStatus:
        """The values that a ``CommitChange`` holds from before and after."""
        return CommitStatus(self.state, self.reason, self.trained_in)

    @property
    def was_certified(self) -> bool:
        """True if a certificate accepts it, even if a final page has overturned that."""
        return self.certificate is not None and self.certificate.message.accepted

    def is_repeated_by(self, certificate: Certificate) -> bool:
        """Return whether a certificate is the one held here, of another assembler.

        Equal verdicts are not enough: of another page or committee they have another rank.
        """
        return self.certificate is not None and self.certificate.message == certificate

    def is_outranked_by(self, rank: bytes, *, accepted: bool) -> bool:
        """Return whether a valid certificate of this rank replaces the outcome held here.

        Colluding validators can produce two that contradict each other; the one of lower rank
        (``protocol.consensus.committee.outcome_rank``) wins on every node, in any order.
        """
        if self.final is not None:
            held = None if self.certificate is None else self.certificate.message.accepted
            return accepted is self.final and held is not self.final
        return self.certificate is None or rank < self.rank


@dataclass(frozen=True, slots=True)
class CommitChange:
    """Change of one commit, for worker statistics and backpressure."""

    entry: Entry
    before: CommitStatus | None
    """None for a new commit."""
    after: CommitStatus
    is_outcome: bool = False
    """True for a new outcome, False for another version that learned from the commit."""
    first: Digest | None = None
    """The other commit for the slot of a new one, if any."""
    is_held: bool = True
    """False for an old commit that is only kept."""


def window_epochs(manifest: RunManifest) -> int:
    """Return for how many epochs after its own a commit may be announced: latency and clock skew.

    A date gains nothing: a page lists a commit before a later one draws its committee. The bound
    keeps commits for old versions out of the tables.
    """
    return 1 + math.ceil(CLOCK_SKEW_SECONDS_MAX / manifest.epochs.seconds)


class CommitRules:
    """Limits that a run's manifest sets for commits."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        sampling = manifest.sampling
        self._sequences = sampling.group_size * sampling.prompts_per_rollout
        self._tokens_max = self._sequences * sampling.tokens_max
        self._body_bytes_max = body_bytes_max(manifest)
        self._window_epochs = window_epochs(manifest)

    def is_timely(self, commit: Signed[RolloutCommit], epoch: int) -> bool:
        """Return whether a commit may still be announced in our ``epoch``."""
        return epoch <= commit.message.epoch + self._window_epochs

    def fault(
        self,
        commit: Signed[RolloutCommit],
        epoch: int,
        checkpoint: Signed[CheckpointManifest] | None,
    ) -> Fault | None:
        """Check a commit in our ``epoch``; ``checkpoint`` is its version's manifest, if known."""
        message = commit.message
        if not self._manifest.admits_worker(commit.signer):
            return Fault(FaultCode.NOT_ADMITTED)
        if message.epoch > epoch + EPOCHS_AHEAD_MAX:
            return Fault(FaultCode.FUTURE_EPOCH)
        if message.sequences != self._sequences or message.tokens > self._tokens_max:
            return Fault(FaultCode.BAD_COUNTS)
        if message.body_bytes > self._body_bytes_max:
            return Fault(FaultCode.OVERSIZE)
        if checkpoint is not None and checkpoint.digest != message.checkpoint:
            return Fault(FaultCode.WRONG_CHECKPOINT)
        if message.evaluation and not is_evaluation(self._manifest, message.version, message.slot):
            detail = f"slot {message.slot} of version {message.version} evaluates nothing"
            return Fault(FaultCode.EVALUATION_SLOT, detail)
        return None


class CommitTable:
    """Commits of the ledger; the methods that change commits return the changes."""

    def __init__(self, manifest: RunManifest, chain: Chain) -> None:
        self._manifest = manifest
        self._chain = chain
        self._rules = CommitRules(manifest)
        self._slots = SlotTable()
        self._in_flight: dict[PeerId, dict[Digest, None]] = {}
        self.entries: dict[Digest, Entry] = {}
        self.kept: dict[Digest, Entry] = {}
        """Commits dropped from ``entries`` that a restart still needs."""
        self.policy_lag_max = 0
        """Largest age of a policy, in versions, when a version learned from its rollouts."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("in_flight", COMMITS_IN_FLIGHT_MAX + LISTED_MAX, self._most_in_flight),
        )

    def offer(
        self,
        commit: Signed[RolloutCommit],
        epoch: int,
        *,
        anti_entropy: bool,
        counts: bool,
        is_listed: bool,
    ) -> CommitChange | Fault | None:
        """Add a commit in our ``epoch``; None if it is known or expired, or there is no room."""
        if commit.digest in self.entries:
            return None
        fault = self._rules.fault(commit, epoch, self._final(commit.message.version))
        if fault is not None:
            return fault
        timely = self._rules.is_timely(commit, epoch)
        if not timely and not anti_entropy:
            return Fault(FaultCode.OLD_DATE, f"of epoch {commit.message.epoch}, now it is {epoch}")
        expired = commit.message.epoch + self._manifest.committee.expire_after_epochs < epoch
        is_full = self.in_flight(commit.signer) >= COMMITS_IN_FLIGHT_MAX
        if expired or (is_full and not is_listed):
            return None
        return self._add(commit, timely=timely and counts)

    def _final(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return a version if it is final.

        Another one of its number may become final otherwise, and members list only commits that
        they hold. So they hold those of both.
        """
        return self._chain.get(version) if version <= self._chain.final else None

    def restore(self, commit: Signed[RolloutCommit]) -> CommitChange | None:
        """Add a commit accepted before a restart; None if it is known or invalid."""
        message = commit.message
        if (old := self.kept.pop(commit.digest, None)) is not None:
            self.entries[commit.digest] = old
        fault = self._rules.fault(commit, message.epoch, self._final(message.version))
        return None if fault or commit.digest in self.entries else self._add(commit, timely=True)

    def _add(self, commit: Signed[RolloutCommit], *, timely: bool) -> CommitChange:
        entry = Entry(
            commit,
            trained_in=self._chain.learned.get(commit.digest),
            timely=timely,
            is_evaluation=commit.message.evaluation,
        )
        self.entries[commit.digest] = entry
        self._in_flight.setdefault(commit.signer, {})[commit.digest] = None
        # Two commits for one slot are kept and forwarded: all nodes must reach the same outcomes.
        return CommitChange(entry, None, entry.status, first=self._slots.take(commit))

    def decide(
        self,
        certificate: Signed[Certificate],
        verdicts: Sequence[Signed[Verdict]],
        rank: bytes,
        epoch: int,
    ) -> CommitChange | None:
        """Set the outcome of a commit in ``entries`` in our ``epoch``.

        None if a known certificate outranks this one.
        """
        entry = self.entries[Digest(certificate.message.commit)]
        if not entry.is_outranked_by(rank, accepted=certificate.message.accepted):
            return None
        entry.certificate, entry.rank, entry.decided_epoch = certificate, rank, epoch
        entry.checkers = tuple(verdict.signer for verdict in verdicts)
        messages = [verdict.message for verdict in verdicts]
        entry.measured = agreed(messages, entry.commit.message.tokens)
        accepted = certificate.message.accepted
        state = CommitState.CERTIFIED if accepted else CommitState.REJECTED
        return self._set_outcome(entry, state, agreed_reason(messages))

    def overturn(self, commit: Digest, reason: str) -> CommitChange | None:
        """Overturn an outcome for a reason, as a final page does; None if that is no news."""
        entry = self.known(commit)
        if entry is None or entry.certificate is None or entry.overturned == reason:
            return None
        entry.overturned = reason
        state = CommitState.REJECTED if entry.was_certified else CommitState.CERTIFIED
        return self._set_outcome(entry, state, reason)

    def expire(self, oldest: int) -> list[CommitChange]:
        """Expire the pending commits of epochs before ``oldest``."""
        return [
            self._set_outcome(entry, CommitState.EXPIRED)
            for entry in self.open_entries()
            if entry.epoch < oldest
        ]

    def _set_outcome(self, entry: Entry, state: CommitState, reason: str = "") -> CommitChange:
        waiting = self._in_flight.get(entry.commit.signer, {})
        waiting.pop(entry.commit.digest, None)
        if not waiting:
            self._in_flight.pop(entry.commit.signer, None)
        before = entry.status
        entry.state, entry.reason = state, reason
        return CommitChange(entry, before, entry.status, is_outcome=True)

    # Versions that learn from commits

    def batch_fault(self, manifest: Signed[CheckpointManifest]) -> Fault | None:
        """Check the known commits of a batch: policies recent enough, and no evaluation."""
        oldest = manifest.message.version - 1 - self._manifest.grpo.async_level
        for commit in manifest.message.batch:
            entry = self.known(Digest(commit))
            if entry is None:
                continue
            used = entry.version
            if used < oldest:
                return Fault(FaultCode.STALE_BATCH, f"of version {used}, the oldest is {oldest}")
            if entry.is_evaluation:
                slot = entry.commit.message.slot
                return Fault(FaultCode.EVALUATION_BATCH, f"slot {slot} evaluates version {used}")
        return None

    def are_certified(self, manifest: Signed[CheckpointManifest]) -> bool:
        """Return whether all commits in a batch are certified here."""
        entries = (self.known(Digest(commit)) for commit in manifest.message.batch)
        return all(entry is not None and entry.was_certified for entry in entries)

    def follow(
        self,
        removed: Sequence[Signed[CheckpointManifest]],
        branch: Sequence[Signed[CheckpointManifest]],
    ) -> list[CommitChange]:
        """Follow the chain after ``branch`` replaced the ``removed`` versions."""
        changes = [one for manifest in removed for one in self._learn(manifest, None)]
        gone = {manifest.digest for manifest in removed}
        taken = {manifest.message.version: manifest.digest for manifest in branch}
        for entry in self.open_entries():
            checkpoint = entry.checkpoint
            if checkpoint in gone or checkpoint != taken.get(entry.version, checkpoint):
                # No node on this chain can check it.
                changes.append(self._set_outcome(entry, CommitState.EXPIRED))
        for manifest in branch:
            changes += self._learn(manifest, manifest.message.version)
        return changes

    def _learn(
        self, manifest: Signed[CheckpointManifest], version: int | None
    ) -> Iterable[CommitChange]:
        """Record which version learned from a batch; None: it was removed."""
        for commit in map(Digest, manifest.message.batch):
            if (entry := self.known(commit)) is None:
                continue
            before = entry.status
            entry.trained_in = version
            if version is not None:
                self.policy_lag_max = max(self.policy_lag_max, version - 1 - entry.version)
            yield CommitChange(entry, before, entry.status, is_held=commit in self.entries)

    @property
    def trained_on_rejected(self) -> list[Entry]:
        """Commits that a version has learned from and that are rejected, perhaps later."""
        return [
            entry
            for entry in self.all_entries()
            if entry.state is CommitState.REJECTED and entry.trained_in is not None
        ]

    def share(self, worker: PeerId) -> float:
        """Return a worker's share of the commits in the newest versions' batches."""
        versions = self._chain.checkpoints[-SHARE_VERSIONS:]
        commits = [commit for entry in versions for commit in entry.manifest.message.batch]
        known = map(self.known, map(Digest, commits))
        signers = [entry.commit.signer for entry in known if entry is not None]
        return signers.count(worker) / max(1, len(signers))

    def known(self, commit: Digest) -> Entry | None:
        """Return a commit that is held, old or not."""
        return self.entries.get(commit) or self.kept.get(commit)

    def all_entries(self) -> list[Entry]:
        """Return the commits that are held, the old ones first."""
        return [*self.kept.values(), *self.entries.values()]

    # Slots and pending commits

    def next_slot(self, worker: PeerId, evaluates: bytes = b"") -> int:
        """Return the slot after the last one of a worker that is known to be used.

        ``evaluates``: the checkpoint of evaluation slots; empty for training slots.
        """
        return self._slots.after_last((worker, evaluates))

    def open_entries(self, worker: PeerId | None = None) -> list[Entry]:
        """Return the commits without an outcome, of ``worker`` or of all."""
        workers = self._in_flight if worker is None else (worker,)
        return [self.entries[key] for one in workers for key in self._in_flight.get(one, {})]

    def in_flight(self, worker: PeerId) -> int:
        """Return the number of pending commits of ``worker``."""
        return len(self._in_flight.get(worker, {}))

    @property
    def unsettled(self) -> dict[PeerId, int]:
        """Number of pending commits of each worker."""
        return {worker: len(waiting) for worker, waiting in self._in_flight.items()}

    def _most_in_flight(self) -> int:
        return max(map(len, self._in_flight.values()), default=0)

    # Memory

    def retire(self, oldest_epoch: int, needed: Collection[Digest]) -> list[Digest]:
        """Move commits of epochs before ``oldest_epoch`` to ``kept``, and return their digests.

        The ``needed`` ones stay.
        """
        entries = self.entries.items()
        old = [one for one, entry in entries if entry.epoch < oldest_epoch and one not in needed]
        for digest in old:
            self.kept[digest] = self.entries.pop(digest)
        return old

    def drop_kept(
        self, awaited: Collection[Digest], is_proof: Callable[[PeerId, Digest], bool]
    ) -> None:
        """Drop old commits, except ``awaited`` ones, proofs, and the last ones of evaluations.

        The last one tells its worker which evaluation slots it has used. A worker stores the number
        of its training slots itself.
        """
        self.kept = {
            digest: entry
            for digest, entry in self.kept.items()
            if digest in awaited
            or is_proof(entry.commit.signer, digest)
            or self._ends_evaluation(entry)
        }
        self._slots.forget(lambda digest: digest in self.entries or digest in self.kept)

    def _ends_evaluation(self, entry: Entry) -> bool:
        current = self._chain.is_current(entry.version, entry.checkpoint)
        return entry.is_evaluation and current and self._slots.is_last(entry.commit)
