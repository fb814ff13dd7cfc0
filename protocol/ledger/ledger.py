"""Ledger of all rollouts: commits, certificates and the versions that learned from them.

A grow-only set of signed messages and its pure consequences: the same on every node that holds the
same messages, in any order. The ledger draws no committees: ``replica`` has checked each
certificate before. Between two contradicting certificates the same one always wins
(``Entry.is_outranked_by``). A version that learned from a commit rejected later remains valid.
"""

from collections.abc import Sequence

from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.backpressure import Backpressure
from protocol.ledger.chain import Chain, IsLive
from protocol.ledger.commits import CommitRules, CommitState, Entry, SlotTable, agreed_reason
from protocol.ledger.fork_choice import ForkChoice
from protocol.ledger.worker_stats import UNCERTIFIED_MAX, Decisions, WorkerStats, WorkerTable
from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed, Verdict
from protocol.rollout.assignment import is_evaluation
from protocol.rollout.statistics import agreed
from protocol.run.manifest import RunManifest

COMMITS_IN_FLIGHT_MAX = 16
"""Maximum pending commits of one worker; it bounds the work that a cheating worker causes. Honest
workers stay far below (``roles.inference``): a certificate takes time to reach all nodes."""

SHARE_VERSIONS = 4
"""Number of newest versions with the batches that measure a worker's share; a guess."""


class Ledger:
    """The state machine; every ``offer_*`` either changes it or returns a reason."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._rules = CommitRules(manifest)
        self.chain = Chain(manifest)
        self.branches = ForkChoice(self.chain)
        self._demand = Backpressure(manifest, self.chain)
        self.entries: dict[Digest, Entry] = {}
        self.totals = WorkerStats()
        self._workers = WorkerTable()
        self.kept: dict[Digest, Entry] = {}
        """Commits dropped from ``entries`` that a restart still needs."""
        self._slots = SlotTable()
        self._in_flight: dict[PeerId, dict[Digest, None]] = {}
        self.epoch = 0
        self._decisions, self._decided_in = Decisions(), (-1, 0, 0, 0)
        self._tidied: tuple[int, int] | None = None
        """Epoch and version count at the last cleanup of old commits and slots."""
        self.policy_lag_max = 0
        """Largest age of a policy, in versions, when a version learned from its rollouts."""
        self.tables: tuple[Table, ...] = (
            SizeGauge("in_flight", COMMITS_IN_FLIGHT_MAX, self._most_in_flight),
            SizeGauge("uncertified_workers", UNCERTIFIED_MAX, lambda: self._workers.uncertified),
            self.branches,
        )

    @property
    def workers(self) -> dict[PeerId, WorkerStats]:
        """Statistics of each remembered worker."""
        return self._workers.counts

    @property
    def forks(self) -> dict[PeerId, tuple[Digest, Digest]]:
        """Workers that signed two commits for one slot, with the evidence."""
        return self._workers.forks

    def offer_commit(
        self,
        commit: Signed[RolloutCommit],
        epoch: int,
        *,
        anti_entropy: bool = False,
        counts: bool = True,
    ) -> Fault | bool:
        """Accept a commit in our ``epoch``; False if it is known or expired.

        A late commit, or one of a worker that does not count yet, is accepted only through
        ``anti_entropy``: it is not checked here, but may get an outcome.
        """
        if commit.digest in self.entries:
            return False
        fault = self._rules.fault(commit, epoch, self.chain.get(commit.message.version))
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
        """Restore a commit accepted before a restart, regardless of the pending limit."""
        message = commit.message
        fault = self._rules.fault(commit, message.epoch, self.chain.get(message.version))
        if fault is None and commit.digest not in self.entries:
            self._take_commit(commit)

    def _take_commit(self, commit: Signed[RolloutCommit], *, timely: bool = True) -> None:
        worker = commit.signer
        learned = self.chain.learned.get(commit.digest)
        entry = Entry(commit, trained_in=learned, timely=timely)
        self.entries[commit.digest] = entry
        if (first := self._slots.take(commit)) is not None:
            # Both are kept and forwarded: every node must reach the same outcomes.
            self.forks[worker] = (first, commit.digest)
        self._in_flight.setdefault(worker, {})[commit.digest] = None
        self._demand.file(entry)
        if commit.message.epoch < self.epoch or not self._demand.is_current(entry):
            self._tidied = None  # otherwise the next cleanup would skip it
        for counts in self._counts(worker):
            counts.committed += 1
            counts.trained += entry.trained_in is not None

    def predecessor_known(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether the commit of the previous slot is known, which proves the order.

        Not a condition of acceptance: the state must not depend on the order of arrival.
        """
        return self._slots.follows(commit)

    def next_slot(self, worker: PeerId, version: int) -> tuple[int, bytes]:
        """Return the worker's next slot and the digest of the commit before it."""
        checkpoint = self.chain.get(version)
        current = b"" if checkpoint is None else checkpoint.digest
        return self._slots.after_last(worker, version, current)

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

    def slashed(self, worker: PeerId) -> bool:
        """Return whether a worker is slashed: a slashable offence, or two commits for one slot.

        Its commits are no longer checked, but still accepted: some nodes may have received them
        before.
        """
        return self._manifest.credit.slash and self._workers.is_guilty(worker)

    def proofs(self) -> list[Entry]:
        """Return the old commits that prove a fault of their worker."""
        is_proof = self._workers.is_proof
        return [one for key, one in self.kept.items() if is_proof(one.commit.signer, key)]

    def was_judged(self, worker: PeerId, version: int) -> bool:
        """Return whether a committee has judged ``worker`` for ``version`` or an older one."""
        return self._workers.was_judged(worker, version)

    def decisions(self) -> Decisions:
        """Return the certified and rejected rollouts, sorted once per change of outcomes."""
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
        """Accept a checked certificate of a known commit; False if a known one outranks it."""
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
        """Accept a version on its trainer's signature; False if it is known or must wait.

        It waits for its parent and for the outcomes of all commits in its batch. ``is_live`` tells
        whether the leader that it would replace is live. A node that accepts it knows those
        commits, so no honest node accepts a version that learned from a policy that was too old.
        """
        taken = self.chain.fits(manifest)
        if taken is True:
            taken = self._batch_fault(manifest) or self.chain.takes_word_for(manifest, is_live)
        if taken is not True:
            return taken
        if not all(self._has_outcome(Digest(commit)) for commit in manifest.message.batch):
            return False
        self._take_versions([manifest], now)
        return True

    def adopt(self, branch: Sequence[Signed[CheckpointManifest]], now: float) -> Fault | None:
        """Adopt a branch that the validators support, and drop our own one if it differs."""
        fault = self.chain.branch_fault(branch)
        if fault is None:
            self._take_versions(branch, now)
        return fault

    def restore_checkpoint(self, manifest: Signed[CheckpointManifest]) -> None:
        """Restore a version accepted before a restart; its batch is not checked again."""
        if self.chain.fits(manifest) is True:
            self._take_versions([manifest], float("-inf"))

    def _batch_fault(self, manifest: Signed[CheckpointManifest]) -> Fault | None:
        """Check the known commits of a batch: policies recent enough, and no evaluation."""
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
        superseded = self.chain.replace(branch, now)
        for manifest in superseded:
            self._note_training(manifest, None)
        gone = {manifest.digest for manifest in superseded}
        taken = {manifest.message.version: manifest.digest for manifest in branch}
        for entry in self.open_entries():
            checkpoint = entry.commit.message.checkpoint
            if checkpoint in gone or checkpoint != taken.get(entry.version, checkpoint):
                self._expire(entry)  # no node on this chain can check it
        for manifest in branch:
            self._note_training(manifest, manifest.message.version)

    @property
    def trained_on_rejected(self) -> list[Entry]:
        """Commits that a version has learned from and that are rejected, perhaps later."""
        return [
            entry
            for entry in (*self.kept.values(), *self.entries.values())
            if entry.state is CommitState.REJECTED and entry.trained_in is not None
        ]

    def _note_training(self, manifest: Signed[CheckpointManifest], version: int | None) -> None:
        """Record which version learned from a batch; None: it was removed."""
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

    # Time and backpressure

    def advance(self, epoch: int) -> None:
        """Expire commits that waited too long, and forget old ones."""
        rules = self._manifest.committee
        self.epoch = epoch
        oldest = epoch - rules.expire_after_epochs
        for entry in self.open_entries():
            if entry.epoch < oldest:
                self._expire(entry)
        if self._tidied != (epoch, len(self.chain.checkpoints)):
            self._forget_entries(epoch - 4 * rules.expire_after_epochs)
            self._forget_slots()
            self._workers.forget({entry.commit.signer for entry in self.entries.values()})
            awaited, kept = self._demand.awaited(self.kept.values()), self.kept.items()
            self.kept = {key: one for key, one in kept if key in awaited or self._is_needed(one)}
            self._tidied = (epoch, len(self.chain.checkpoints))

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
        """Set the outcome of a commit and update all statistics."""
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
        """Forget the slots of old versions, and of superseded or missing ones."""
        oldest = max(0, (newest := self.chain.version) - 4 * self._manifest.shardcast.versions_kept)
        known = {(n, self.chain.checkpoints[n].manifest.digest) for n in range(oldest, newest + 1)}
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
        """Return the number of fresh commits that are certified or pending and not learned from."""
        return self._demand.backlog(self.epoch, self.workers, self.slashed)

    def wanted(self) -> int:
        """Return the number of rollouts that all workers should make now, from the backlog."""
        grpo = self._manifest.grpo
        backlog_max = grpo.rollouts_per_step * grpo.rollouts_ahead
        return max(0, backlog_max - self.backlog()) if self.chain.version < grpo.steps else 0

    def share(self, worker: PeerId) -> float:
        """Return a worker's share of the commits in the newest versions' batches."""
        versions = self.chain.checkpoints[-SHARE_VERSIONS:]
        commits = [commit for entry in versions for commit in entry.manifest.message.batch]
        known = map(self._known, map(Digest, commits))
        signers = [entry.commit.signer for entry in known if entry is not None]
        return signers.count(worker) / max(1, len(signers))

    def _counts(self, worker: PeerId) -> tuple[WorkerStats, WorkerStats]:
        return self.totals, self._workers.of(worker)
