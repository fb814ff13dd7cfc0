"""What became of every rollout: commits, certificates and the versions that learned from them.

A grow-only set of signed messages and its pure consequences, the same on every node that holds the
same messages, in whatever order they came. Nothing here draws committees: a certificate that comes
in has been checked (``replica``). Of two certificates that contradict each other one always wins
(``Entry.is_outranked_by``); a version that learned from what is rejected later stays a version.
"""

from collections.abc import Sequence

from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.backpressure import Backpressure
from protocol.ledger.chain import Chain, CheckpointEntry, IsLive
from protocol.ledger.commits import CommitRules, CommitState, Entry, SlotTable, agreed_reason
from protocol.ledger.fork_choice import ForkChoice
from protocol.ledger.worker_stats import UNCERTIFIED_MAX, Decisions, WorkerStats, WorkerTable
from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed, Verdict
from protocol.rollout.assignment import is_evaluation
from protocol.rollout.statistics import agreed
from protocol.run.manifest import RunManifest

COMMITS_IN_FLIGHT_MAX = 16
"""Commits of one worker that may wait for an outcome; it bounds what a liar can make us do. Workers
hold themselves to far fewer (``roles.inference``): a certificate takes a while to reach all."""

SHARE_VERSIONS = 4
"""Whose batches tell what each worker delivers; a guess."""


class Ledger:
    """The state machine; every ``offer_*`` either changes it or says why not."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._rules = CommitRules(manifest)
        self._chain = Chain(manifest)
        self.branches = ForkChoice(self._chain)
        self._demand = Backpressure(manifest, self._chain)
        self.entries: dict[Digest, Entry] = {}
        self.totals = WorkerStats()
        self._workers = WorkerTable()
        self.kept: dict[Digest, Entry] = {}
        """Commits that ``entries`` has forgotten and a restart could not do without."""
        self._slots = SlotTable()
        self._in_flight: dict[PeerId, dict[Digest, None]] = {}
        self.epoch = 0
        self._decisions, self._decided_in = Decisions(), (-1, 0, 0, 0)
        self._tidied: tuple[int, int] | None = None
        """Epoch and number of versions when old commits and slots were last forgotten."""
        self.policy_lag_max = 0
        """Largest age, in versions, of a policy whose rollout a version has learned from."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("in_flight", COMMITS_IN_FLIGHT_MAX, self._most_in_flight),
            SizeGauge("uncertified_workers", UNCERTIFIED_MAX, lambda: self._workers.uncertified),
            self.branches,
        )

    @property
    def workers(self) -> dict[PeerId, WorkerStats]:
        """What became of the commits of each worker that is remembered."""
        return self._workers.counts

    @property
    def forks(self) -> dict[PeerId, tuple[Digest, Digest]]:
        """Workers that signed two commits for one slot, with the evidence."""
        return self._workers.forks

    @property
    def checkpoints(self) -> list[CheckpointEntry]:
        """The versions that were taken, by number."""
        return self._chain.checkpoints

    @property
    def head(self) -> Signed[CheckpointManifest] | None:
        """The newest version, or None before the genesis policy is known."""
        return self._chain.head

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return self._chain.version

    def is_taken(self, checkpoint: bytes) -> bool:
        """Return whether the version with this manifest is one of ours."""
        return self._chain.place(checkpoint) is not None

    def checkpoint(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the signed manifest of ``version`` if it is known."""
        return self._chain.get(version)

    def offer_commit(
        self,
        commit: Signed[RolloutCommit],
        epoch: int,
        *,
        anti_entropy: bool = False,
        counts: bool = True,
    ) -> Fault | bool:
        """Take a commit in our ``epoch``; False when it is known or no longer news.

        A late one is taken by ``anti_entropy`` only, and not judged, but may get an outcome; so is
        one whose worker does not count yet.
        """
        if commit.digest in self.entries:
            return False
        fault = self._rules.fault(commit, epoch, self.checkpoint(commit.message.version))
        if fault is not None:
            return fault
        timely = self._rules.is_timely(commit, epoch)
        if not timely and not anti_entropy:
            return Fault(FaultCode.OLD_DATE, f"of epoch {commit.message.epoch}, now it is {epoch}")
        expired = commit.message.epoch + self._manifest.committee.expire_after_epochs < epoch
        if expired or self.in_flight(commit.signer) >= COMMITS_IN_FLIGHT_MAX:
            return False
        self._take_commit(commit, timely=timely and counts)
        return True

    def restore_commit(self, commit: Signed[RolloutCommit]) -> None:
        """Take back a commit that was accepted before a restart, whatever else waited then."""
        message = commit.message
        fault = self._rules.fault(commit, message.epoch, self.checkpoint(message.version))
        if fault is None and commit.digest not in self.entries:
            self._take_commit(commit)

    def _take_commit(self, commit: Signed[RolloutCommit], *, timely: bool = True) -> None:
        worker = commit.signer
        learned = self._chain.learned.get(commit.digest)
        entry = Entry(commit, trained_in=learned, timely=timely)
        self.entries[commit.digest] = entry
        if (first := self._slots.take(commit)) is not None:
            # Both are kept, and both travel: every node must come to the same outcomes.
            self.forks[worker] = (first, commit.digest)
        self._in_flight.setdefault(worker, {})[commit.digest] = None
        self._demand.file(entry)
        if commit.message.epoch < self.epoch or not self._demand.is_current(entry):
            self._tidied = None  # else tidying now would leave it alone
        for counts in self._counts(worker):
            counts.committed += 1
            counts.trained += entry.trained_in is not None

    def predecessor_known(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether the commit of the slot before is here, so that order is proven.

        Not asked when a commit is taken: what a node holds must not depend on which came first.
        """
        return self._slots.follows(commit)

    def next_slot(self, worker: PeerId, version: int) -> tuple[int, bytes]:
        """Return the slot that ``worker`` must use next, and the digest of the one before it."""
        checkpoint = self.checkpoint(version)
        current = b"" if checkpoint is None else checkpoint.digest
        return self._slots.after_last(worker, version, current)

    def open_entries(self, worker: PeerId | None = None) -> list[Entry]:
        """Return the commits without an outcome, of ``worker`` or of all."""
        workers = self._in_flight if worker is None else (worker,)
        return [self.entries[key] for one in workers for key in self._in_flight.get(one, {})]

    def in_flight(self, worker: PeerId) -> int:
        """Return how many commits of ``worker`` wait for an outcome."""
        return len(self._in_flight.get(worker, {}))

    @property
    def unsettled(self) -> dict[PeerId, int]:
        """How many commits of each worker wait for an outcome."""
        return {worker: len(waiting) for worker, waiting in self._in_flight.items()}

    def _most_in_flight(self) -> int:
        return max(map(len, self._in_flight.values()), default=0)

    def slashed(self, worker: PeerId) -> bool:
        """Return whether a proven lie, or two commits for one slot, ended a worker's standing.

        Nobody checks what it commits to then, but all take it: some may have heard it before.
        """
        return self._manifest.credit.slash and self._workers.is_guilty(worker)

    def proofs(self) -> list[Entry]:
        """Return the old commits that prove a fault of their worker."""
        is_proof = self._workers.is_proof
        return [one for key, one in self.kept.items() if is_proof(one.commit.signer, key)]

    def was_judged(self, worker: PeerId, version: int) -> bool:
        """Return whether a committee has judged ``worker`` for a version, or an older one."""
        return self._workers.was_judged(worker, version)

    def decisions(self) -> Decisions:
        """Return the rollouts with a certificate, sorted once for each change of outcomes."""
        totals = self.totals
        state = self.epoch, totals.certified, totals.rejected, len(self.entries)
        if state != self._decided_in:
            self._decided_in = state
            self._decisions = Decisions.of(self._manifest.toploc, self.entries)
        return self._decisions

    # Outcomes

    def offer_certificate(
        self, certificate: Signed[Certificate], verdicts: Sequence[Verdict]
    ) -> bool:
        """Take a checked certificate of a commit that is here; False when another outranks it."""
        entry = self.entries[Digest(certificate.message.commit)]
        if not entry.is_outranked_by(certificate.message):
            return False
        accepted, reason = certificate.message.accepted, agreed_reason(verdicts)
        entry.certificate = certificate
        worker, version = entry.commit.signer, entry.version
        self._workers.judged(worker, version)
        entry.measured = agreed(verdicts, entry.commit.message.tokens)
        self._change(entry, CommitState.CERTIFIED if accepted else CommitState.REJECTED, reason)
        if not accepted:
            self._workers.rejected(worker, entry.commit.digest, reason)
        return True

    def offer_checkpoint(
        self, manifest: Signed[CheckpointManifest], now: float, is_live: IsLive
    ) -> Fault | bool:
        """Take a version on its trainer's word; False when it is known or has to wait.

        It has to wait for its parent and for the outcomes of all commits that it learned from;
        ``is_live`` tells whether the leader that it would replace is here. Who takes it knows those
        commits, so nobody honest takes one that learned from a policy that was too old.
        """
        taken = self._fits(manifest)
        if taken is True:
            taken = self._batch_fault(manifest) or self._chain.takes_word_for(manifest, is_live)
        if taken is not True:
            return taken
        if not all(self._has_outcome(Digest(commit)) for commit in manifest.message.batch):
            return False
        self._take_versions([manifest], now)
        return True

    def adopt(self, branch: Sequence[Signed[CheckpointManifest]], now: float) -> Fault | None:
        """Take a branch that the validators vouch for, and leave our own one if there is one."""
        fault = self._chain.branch_fault(branch)
        if fault is None:
            self._take_versions(branch, now)
        return fault

    def restore_checkpoint(self, manifest: Signed[CheckpointManifest]) -> None:
        """Take back a version that was taken before a restart: by then nobody doubted it."""
        if self._fits(manifest) is True:
            self._take_versions([manifest], float("-inf"))

    def _fits(self, manifest: Signed[CheckpointManifest]) -> Fault | bool:
        """Check a version and its place; False when it is known or its parent is not."""
        fault = self._chain.form_fault(manifest)
        if fault is not None:
            return fault
        if self.is_taken(manifest.digest) or not self.is_taken(manifest.message.parent):
            return False
        return self._chain.branch_fault([manifest]) or True

    def _batch_fault(self, manifest: Signed[CheckpointManifest]) -> Fault | None:
        """Check the commits of a batch that are here: of young policies, and none evaluates one."""
        oldest = manifest.message.version - 1 - self._manifest.grpo.async_level
        for commit in manifest.message.batch:
            entry = self._known(Digest(commit))
            if entry is None:
                continue
            used, slot = entry.version, entry.commit.message.slot
            if used < oldest:
                return Fault(FaultCode.STALE_BATCH, f"of version {used}, the oldest is {oldest}")
            if is_evaluation(self._manifest, used, slot):
                return Fault(FaultCode.EVALUATION_BATCH, f"slot {slot} evaluates version {used}")
        return None

    def _has_outcome(self, commit: Digest) -> bool:
        entry = self._known(commit)
        return entry is not None and entry.certificate is not None

    def _known(self, commit: Digest) -> Entry | None:
        return self.entries.get(commit) or self.kept.get(commit)

    def _take_versions(self, branch: Sequence[Signed[CheckpointManifest]], now: float) -> None:
        superseded = self._chain.cut(branch[0].message.version)
        for manifest in superseded:
            self._note_training(manifest, None)
        gone = {manifest.digest for manifest in superseded}
        taken = {manifest.message.version: manifest.digest for manifest in branch}
        for entry in self.open_entries():
            checkpoint = entry.commit.message.checkpoint
            if checkpoint in gone or checkpoint != taken.get(entry.version, checkpoint):
                self._expire(entry)  # nobody on this chain can check it
        for manifest in branch:
            self._chain.append(CheckpointEntry(manifest, now))
            self._note_training(manifest, manifest.message.version)

    @property
    def trained_on_rejected(self) -> list[Entry]:
        """The commits that a version has learned from and that are rejected, perhaps afterwards."""
        return [
            entry
            for entry in (*self.kept.values(), *self.entries.values())
            if entry.state is CommitState.REJECTED and entry.trained_in is not None
        ]

    def _note_training(self, manifest: Signed[CheckpointManifest], version: int | None) -> None:
        """Note which version has learned from a batch, None when it is taken back."""
        for commit in map(Digest, manifest.message.batch):
            if (entry := self._known(commit)) is None:
                continue
            entry.trained_in = version
            if commit in self.entries:
                self._demand.file(entry)
            if version is not None:
                lag = version - 1 - entry.version
                self.policy_lag_max = max(self.policy_lag_max, lag)
            for counts in self._counts(entry.commit.signer):
                counts.trained += -1 if version is None else 1

    # Time and demand

    def advance(self, epoch: int) -> None:
        """Expire commits that waited too long and forget old ones."""
        rules = self._manifest.committee
        self.epoch = epoch
        oldest = epoch - rules.expire_after_epochs
        for entry in self.open_entries():
            if entry.epoch < oldest:
                self._expire(entry)
        if self._tidied != (epoch, len(self.checkpoints)):
            self._forget_entries(epoch - 4 * rules.expire_after_epochs)
            self._forget_slots()
            self._workers.forget({entry.commit.signer for entry in self.entries.values()})
            awaited, kept = self._demand.awaited(self.kept.values()), self.kept.items()
            self.kept = {key: one for key, one in kept if key in awaited or self._is_needed(one)}
            self._tidied = (epoch, len(self.checkpoints))

    def _forget_entries(self, oldest_epoch: int) -> None:
        entries = self.entries.items()
        old = [digest for digest, entry in entries if entry.epoch < oldest_epoch]
        for digest in old:
            self.kept[digest] = self.entries.pop(digest)
            self._demand.forget(digest)

    def _expire(self, entry: Entry) -> None:
        if entry.state is CommitState.COMMITTED:
            self._change(entry, CommitState.EXPIRED)

    def _change(self, entry: Entry, state: CommitState, reason: str = "") -> None:
        """Give a commit an outcome, and change everything that counts them with it."""
        waiting = self._in_flight.get(entry.commit.signer, {})
        waiting.pop(entry.commit.digest, None)
        if not waiting:
            self._in_flight.pop(entry.commit.signer, None)
        for counts in self._counts(entry.commit.signer):
            counts.add_state(entry, -1)
        entry.state, entry.reason = state, reason
        for counts in self._counts(entry.commit.signer):
            counts.add_state(entry)
        self._demand.file(entry)

    def _is_needed(self, entry: Entry) -> bool:
        """Tell whether an old commit proves a fault, or is the last link of slots still in use."""
        worker, digest = entry.commit.signer, entry.commit.digest
        proof = self._workers.is_proof(worker, digest)
        return proof or (self._demand.is_current(entry) and self._slots.is_last(entry.commit))

    def _forget_slots(self) -> None:
        """Forget the slots of old versions, and of those that were superseded or never came."""
        oldest = max(0, (newest := self.version) - 4 * self._manifest.shardcast.versions_kept)
        known = {(n, self.checkpoints[n].manifest.digest) for n in range(oldest, newest + 1)}
        awaited = {
            (entry.commit.signer, entry.version, entry.commit.message.checkpoint)
            for entry in self.entries.values()
            if entry.version > newest
        }
        self._slots.forget(lambda *key: key[1:] in known or key in awaited)

    def usable(self) -> list[Entry]:
        """Return certified commits that the next version may learn from, oldest first."""
        return self._demand.usable()

    def backlog(self) -> int:
        """Return how many fresh commits are certified or on their way and not learned from."""
        return self._demand.backlog(self.epoch, self.workers, self.slashed)

    def wanted(self) -> int:
        """Return how many rollouts all workers should make now: back-pressure without a queue."""
        grpo = self._manifest.grpo
        backlog_max = grpo.rollouts_per_step * grpo.rollouts_ahead
        return max(0, backlog_max - self.backlog()) if self.version < grpo.steps else 0

    def share(self, worker: PeerId) -> float:
        """Return which part of what the last versions learned from is of ``worker``."""
        versions = self.checkpoints[-SHARE_VERSIONS:]
        commits = [commit for entry in versions for commit in entry.manifest.message.batch]
        known = map(self._known, map(Digest, commits))
        signers = [entry.commit.signer for entry in known if entry is not None]
        return signers.count(worker) / max(1, len(signers))

    def _counts(self, worker: PeerId) -> tuple[WorkerStats, WorkerStats]:
        return self.totals, self._workers.of(worker)
