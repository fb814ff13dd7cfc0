"""What became of every rollout: commits, certificates and the versions that learned from them.

A grow-only set of signed messages and its pure consequences, the same on every node that holds the
same messages, in whatever order they came. Nothing here draws committees: a certificate that comes
in has been checked (``replica``). Outcomes are final: what is certified stays certified.
"""

from collections import Counter

from protocol.faults import Fault, FaultCode
from protocol.ledger.commits import CheckpointEntry, CommitState, Entry
from protocol.ledger.counts import Counts
from protocol.ledger.slots import Slots
from protocol.manifest import RunManifest
from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed
from protocol.rollout import body_bytes_max
from protocol.types import Digest, PeerId

COMMITS_IN_FLIGHT_MAX = 16
"""Commits of one worker that may wait for an outcome; it bounds what a liar can make us do.

Workers hold themselves to far fewer (``roles.inference``): a node that has not heard of a
certificate yet counts a commit longer than its worker does.
"""

EPOCHS_AHEAD_MAX = 2
"""A commit may claim an epoch this far ahead of ours: clock skew, not a choice."""


class Ledger:
    """The state machine; every ``offer_*`` either changes it or says why not."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._body_bytes_max = body_bytes_max(manifest)
        self.entries: dict[Digest, Entry] = {}
        self.checkpoints: list[CheckpointEntry] = []
        self.totals = Counts()
        self.workers: dict[PeerId, Counts] = {}
        self.kept: dict[Digest, Entry] = {}
        """Commits that ``entries`` has forgotten and a restart could not do without."""
        self._slots = Slots()
        self._in_flight: dict[PeerId, dict[Digest, None]] = {}
        self._unlearned: dict[Digest, Entry] = {}
        """Commits of ``entries`` that are certified or may still be, and not learned from."""
        self._trained: dict[Digest, int] = {}
        self._epoch = 0
        self._tidied: tuple[int, int] | None = None
        """Epoch and number of versions when old commits and slots were last forgotten."""
        self._rejected: dict[PeerId, Digest] = {}
        self.forks: dict[PeerId, tuple[Digest, Digest]] = {}
        """Workers that signed two commits for one slot, with the evidence."""
        self.policy_lag_max = 0
        """Largest age, in versions, of a policy whose rollout a version has learned from."""

    @property
    def head(self) -> Signed[CheckpointManifest] | None:
        """The newest version, or None before the genesis policy is known."""
        return self.checkpoints[-1].manifest if self.checkpoints else None

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return len(self.checkpoints) - 1

    def checkpoint(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the signed manifest of ``version`` if it is known."""
        known = 0 <= version < len(self.checkpoints)
        return self.checkpoints[version].manifest if known else None

    def offer_commit(self, commit: Signed[RolloutCommit], epoch: int) -> Fault | bool:
        """Take a commit in our ``epoch``; False when it is known or no longer news."""
        if commit.digest in self.entries:
            return False
        fault = self._check_commit(commit, epoch)
        if fault is not None:
            return fault
        late = commit.message.epoch + self._manifest.committee.expire_after_epochs < epoch
        if late or self.in_flight(commit.signer) >= COMMITS_IN_FLIGHT_MAX:
            return False
        self._take_commit(commit)
        return True

    def restore_commit(self, commit: Signed[RolloutCommit]) -> None:
        """Take back a commit that was accepted before a restart, whatever else waited then."""
        fault = self._check_commit(commit, commit.message.epoch)
        if fault is None and commit.digest not in self.entries:
            self._take_commit(commit)

    def _take_commit(self, commit: Signed[RolloutCommit]) -> None:
        worker = commit.signer
        entry = Entry(commit, trained_in=self._trained.get(commit.digest))
        self.entries[commit.digest] = entry
        if (first := self._slots.take(commit)) is not None:
            # Both are kept, and both travel: every node must come to the same outcomes.
            self.forks[worker] = (first, commit.digest)
        self._in_flight.setdefault(worker, {})[commit.digest] = None
        self._file(entry)
        if commit.message.epoch < self._epoch or not self._is_current(entry):
            self._tidied = None  # else tidying now would leave it alone
        for counts in self._counts(worker):
            counts.committed += 1
            counts.trained += entry.trained_in is not None

    def _check_commit(self, commit: Signed[RolloutCommit], epoch: int) -> Fault | None:
        message, sampling = commit.message, self._manifest.sampling
        sequences = sampling.group_size * sampling.prompts_per_rollout
        if not self._manifest.admits_worker(commit.signer):
            return Fault(FaultCode.NOT_ADMITTED)
        if message.epoch > epoch + EPOCHS_AHEAD_MAX:
            return Fault(FaultCode.FUTURE_EPOCH)
        if message.sequences != sequences or message.tokens > sequences * sampling.tokens_max:
            return Fault(FaultCode.BAD_COUNTS)
        if message.body_bytes > self._body_bytes_max:
            return Fault(FaultCode.OVERSIZE)
        checkpoint = self.checkpoint(message.version)
        if checkpoint is not None and checkpoint.digest != message.checkpoint:
            return Fault(FaultCode.WRONG_CHECKPOINT)
        if (message.slot == 0) != (message.previous == b""):
            return Fault(FaultCode.SLOT_ORDER, "slot 0 and no other has no predecessor")
        return None

    def predecessor_known(self, commit: Signed[RolloutCommit]) -> bool:
        """Tell whether the commit of the slot before is here, so that order is proven.

        It is asked before a commit is checked and not when it is taken: what a node holds must not
        depend on which of two commits came first.
        """
        return self._slots.follows(commit)

    def next_slot(self, worker: PeerId, version: int) -> tuple[int, bytes]:
        """Return the slot that ``worker`` must use next, and the digest of the one before it."""
        checkpoint = self.checkpoint(version)
        current = b"" if checkpoint is None else checkpoint.digest
        return self._slots.after_last(worker, version, current)

    def open_entries(self, worker: PeerId | None = None) -> list[Entry]:
        """Return the commits without an outcome, of ``worker`` or of all."""
        digests = (
            [digest for waiting in self._in_flight.values() for digest in waiting]
            if worker is None
            else self._in_flight.get(worker, {})
        )
        return [self.entries[digest] for digest in digests]

    def in_flight(self, worker: PeerId) -> int:
        """Return how many commits of ``worker`` wait for an outcome."""
        return len(self._in_flight.get(worker, {}))

    @property
    def in_flight_max(self) -> int:
        """The most commits of one worker that wait for an outcome."""
        return max(map(len, self._in_flight.values()), default=0)

    def slashed(self, worker: PeerId) -> bool:
        """Tell whether a rejected rollout, or two for one slot, ended a worker's standing.

        Nobody checks what it commits to then. It is still heard: another node may have heard it
        before, and what a node holds must not depend on which of two messages came first.
        """
        counts = self.workers.get(worker)
        guilty = worker in self.forks or (counts is not None and counts.rejected > 0)
        return self._manifest.credit.slash_on_reject and guilty

    # Outcomes

    def offer_certificate(self, certificate: Signed[Certificate], reason: str) -> Fault | bool:
        """Take a checked certificate of a commit that is here; ``reason`` is its verdicts'."""
        entry = self.entries[Digest(certificate.message.commit)]
        if entry.certificate is not None:
            same = entry.certificate.message.accepted == certificate.message.accepted
            return False if same else Fault(FaultCode.CONTRADICTION, "an outcome is final")
        was_expired = entry.state is CommitState.EXPIRED
        accepted = certificate.message.accepted
        entry.certificate = certificate
        entry.state = CommitState.CERTIFIED if accepted else CommitState.REJECTED
        entry.reason = reason
        self._settle(entry)
        self._file(entry)
        for counts in self._counts(entry.commit.signer):
            counts.expired -= was_expired
            counts.certified += accepted
            counts.rejected += not accepted
            counts.tokens_certified += entry.commit.message.tokens if accepted else 0
            if not accepted:
                counts.reasons[reason] += 1
                self._rejected.setdefault(entry.commit.signer, entry.commit.digest)
        version = self._trained.get(entry.commit.digest)
        if accepted and version is not None:
            self.checkpoints[version].uncertified.pop(entry.commit.digest, None)
        return True

    def offer_checkpoint(self, manifest: Signed[CheckpointManifest]) -> Fault | bool:
        """Append a version; False when it is known or its parent is not here yet."""
        message = manifest.message
        if not self._manifest.is_trainer(manifest.signer):
            return Fault(FaultCode.NOT_A_TRAINER)
        if message.term != self._manifest.term_of(manifest.signer, message.term):
            return Fault(FaultCode.OTHER_TERM, f"term {message.term} is another trainer's")
        known = self.checkpoint(message.version)
        same = known is not None and known.digest == manifest.digest
        if same or self._parent_awaited(message):
            return False
        fault = self._check_successor(message)
        if fault is not None:
            return fault
        self._supersede(message.version)
        batch = [Digest(commit) for commit in message.batch]
        self.checkpoints.append(
            CheckpointEntry(manifest, {commit: None for commit in batch if not self._ok(commit)})
        )
        for commit in batch:
            self._trained[commit] = message.version
            entry = self.entries.get(commit)
            if entry is not None:
                entry.trained_in = message.version
                self._file(entry)
                lag = message.version - 1 - entry.commit.message.version
                self.policy_lag_max = max(self.policy_lag_max, lag)
                for counts in self._counts(entry.commit.signer):
                    counts.trained += 1
        return True

    def _parent_awaited(self, message: CheckpointManifest) -> bool:
        """Tell whether the parent may still come: we have none yet, or it would supersede ours."""
        if message.version > len(self.checkpoints):
            return True
        parent = self.checkpoint(message.version - 1)
        if parent is None or parent.digest == message.parent:
            return False
        return parent.message.term < message.term

    def _check_successor(self, message: CheckpointManifest) -> Fault | None:
        """Check a version against its parent, and against the one that it would supersede.

        A version number belongs to the first trainer that published it, unless a later term claims
        it from the same parent: then the earlier trainer had been replaced and did not know yet.
        """
        known = self.checkpoint(message.version)
        if known is not None and message.term <= known.message.term:
            return Fault(FaultCode.VERSION_REUSED, f"version {message.version}")
        if message.version == 0:
            genesis = message.policy == self._manifest.genesis_policy and not message.batch
            return None if genesis and message.parent == b"" else Fault(FaultCode.WRONG_GENESIS)
        parent = self.checkpoints[message.version - 1].manifest
        if message.parent != parent.digest:
            return Fault(FaultCode.WRONG_PARENT)
        if message.term < parent.message.term:
            return Fault(FaultCode.OLD_TERM, f"term {message.term} after {parent.message.term}")
        return self._check_batch(message)

    def _check_batch(self, message: CheckpointManifest) -> Fault | None:
        if len(set(message.batch)) != len(message.batch):
            return Fault(FaultCode.TRAINED_TWICE)
        for commit in message.batch:
            if self._trained.get(Digest(commit), message.version) < message.version:
                return Fault(FaultCode.TRAINED_TWICE)
            entry = self.entries.get(Digest(commit))
            if entry is not None and entry.state is CommitState.REJECTED:
                return Fault(FaultCode.TRAINED_ON_REJECTED)
        return None

    def _supersede(self, version: int) -> None:
        """Take back ``version`` and what came after it; their commits may be learned from again."""
        gone = {superseded.manifest.digest for superseded in self.checkpoints[version:]}
        for stranded in self.entries.values():
            if stranded.commit.message.checkpoint in gone:
                self._expire(stranded)  # nobody can check it any more
        for superseded in self.checkpoints[version:]:
            for commit in superseded.manifest.message.batch:
                self._trained.pop(Digest(commit), None)
                entry = self.entries.get(Digest(commit))
                if entry is not None:
                    entry.trained_in = None
                    self._file(entry)
                    for counts in self._counts(entry.commit.signer):
                        counts.trained -= 1
        del self.checkpoints[version:]

    def _ok(self, commit: Digest) -> bool:
        entry = self.entries.get(commit)
        return entry is not None and entry.state is CommitState.CERTIFIED

    # Time and demand

    def advance(self, epoch: int) -> list[Entry]:
        """Expire commits that waited too long and forget old ones; return the expired."""
        rules = self._manifest.committee
        self._epoch = epoch
        oldest = epoch - rules.expire_after_epochs
        waiting = [entry for entry in self.open_entries() if entry.commit.message.epoch < oldest]
        expired = [entry for entry in waiting if self._expire(entry)]
        if self._tidied != (epoch, len(self.checkpoints)):
            self._forget_entries(epoch - 4 * rules.expire_after_epochs)
            self._forget_slots()
            self.kept = {key: entry for key, entry in self.kept.items() if self._is_needed(entry)}
            self._tidied = (epoch, len(self.checkpoints))
        return expired

    def _forget_entries(self, oldest_epoch: int) -> None:
        entries = self.entries.items()
        old = [digest for digest, entry in entries if entry.commit.message.epoch < oldest_epoch]
        for digest in old:
            self.kept[digest] = self.entries.pop(digest)
            self._unlearned.pop(digest, None)

    def _file(self, entry: Entry) -> None:
        """Follow a change of state or training in ``_unlearned``."""
        digest = entry.commit.digest
        hopeful = entry.state in (CommitState.COMMITTED, CommitState.CERTIFIED)
        if hopeful and entry.trained_in is None and digest in self.entries:
            self._unlearned[digest] = entry
        else:
            self._unlearned.pop(digest, None)

    def _expire(self, entry: Entry) -> bool:
        if entry.state is not CommitState.COMMITTED:
            return False
        entry.state = CommitState.EXPIRED
        self._settle(entry)
        self._file(entry)
        for counts in self._counts(entry.commit.signer):
            counts.expired += 1
        return True

    def _is_needed(self, entry: Entry) -> bool:
        """Tell whether an old commit proves a fault, or is the last link of slots still in use."""
        worker, digest = entry.commit.signer, entry.commit.digest
        guilty = digest == self._rejected.get(worker) or digest in self.forks.get(worker, ())
        return guilty or (self._is_current(entry) and self._slots.is_last(entry.commit))

    def _forget_slots(self) -> None:
        """Forget the slots of old versions, and of those that were superseded or never came."""
        oldest = max(0, self.version - 4 * self._manifest.shardcast.versions_kept)
        known = {(n, self.checkpoints[n].manifest.digest) for n in range(oldest, self.version + 1)}
        awaited = {
            (entry.commit.signer, entry.commit.message.version, entry.commit.message.checkpoint)
            for entry in self.entries.values()
            if entry.commit.message.version > self.version
        }
        self._slots.forget(lambda *key: key[1:] in known or key in awaited)

    def usable(self) -> list[Entry]:
        """Return certified commits that the next version may learn from, oldest first."""
        certified = CommitState.CERTIFIED
        entries = [
            entry
            for entry in self._unlearned.values()
            if entry.state is certified
            and self._is_current(entry)
            and entry.commit.message.version <= self.version
        ]
        return sorted(
            entries,
            key=lambda entry: (
                entry.commit.message.version,
                entry.commit.message.epoch,
                entry.commit.digest,
            ),
        )

    def backlog(self) -> int:
        """Return how many fresh commits are certified or on their way and not learned from.

        A commit counts for as long as it could wait for an outcome: one that the trainer cannot
        use for a reason that we do not see must not hold up the workers for ever. Without an
        outcome it counts as far as its worker is known to deliver: commits are free to make.
        """
        oldest = self._epoch - self._manifest.committee.expire_after_epochs
        certified, waiting = 0, Counter[PeerId]()
        for entry in self._unlearned.values():
            if entry.commit.message.epoch >= oldest and self._is_current(entry):
                if entry.state is CommitState.CERTIFIED:
                    certified += 1
                else:
                    waiting[entry.commit.signer] += 1
        standing = ((self.workers[who], n) for who, n in waiting.items() if not self.slashed(who))
        return certified + sum(min(n, counts.credit) for counts, n in standing)

    def _is_current(self, entry: Entry) -> bool:
        """Tell whether the next version, or the ones after it, may learn from such a commit."""
        message, checkpoint = entry.commit.message, self.checkpoint(entry.commit.message.version)
        young = message.version >= self.version - self._manifest.grpo.async_level
        return young and (checkpoint is None or checkpoint.digest == message.checkpoint)

    def demand(self) -> bool:
        """Tell whether workers should start another rollout: back-pressure without a queue."""
        grpo = self._manifest.grpo
        done = self.version >= grpo.steps
        return not done and self.backlog() < grpo.rollouts_per_step * grpo.rollouts_ahead

    def _settle(self, entry: Entry) -> None:
        waiting = self._in_flight.get(entry.commit.signer, {})
        waiting.pop(entry.commit.digest, None)
        if not waiting:
            self._in_flight.pop(entry.commit.signer, None)

    def _counts(self, worker: PeerId) -> tuple[Counts, Counts]:
        return self.totals, self.workers.setdefault(worker, Counts())
