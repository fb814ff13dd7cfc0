"""Commits with their outcomes, the limits of a valid commit, and the slots of each worker.

For each checkpoint a worker commits to slots 0, 1, 2, … in order. When a later term supersedes a
version, its slots begin again, because the assignments change.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed, Verdict
from protocol.rollout.body import body_bytes_max
from protocol.rollout.statistics import Sums
from protocol.run.manifest import RunManifest

EPOCHS_AHEAD_MAX = 2
"""A commit's epoch may exceed ours by this much, for clock skew."""


class CommitState(StrEnum):
    """Outcome of a commit."""

    COMMITTED = "committed"
    CERTIFIED = "certified"
    REJECTED = "rejected"
    EXPIRED = "expired"


@dataclass(slots=True)
class Entry:
    """A commit and its outcome."""

    commit: Signed[RolloutCommit]
    state: CommitState = CommitState.COMMITTED
    certificate: Signed[Certificate] | None = None
    reason: str = ""
    trained_in: int | None = None
    measured: Sums | None = None
    """Statistics that the verdicts of its certificate agree on, if anything was measured."""
    timely: bool = True
    """False for a commit that arrived late or has a too recent key. Its author could have known its
    committee or its problems in advance."""
    epoch: int = field(init=False)
    version: int = field(init=False)
    """Copies of the commit's fields: reading a field of a message costs ten times as much."""

    def __post_init__(self) -> None:
        """Copy the fields that are read most."""
        message = self.commit.message
        self.epoch, self.version = message.epoch, message.version

    def is_outranked_by(self, certificate: Certificate) -> bool:
        """Return whether a valid certificate replaces the outcome held here.

        A few colluding validators can produce two that contradict each other. The larger
        committee's certificate wins, and between equal ones the rejection: the same outcome on
        every node, in any order.
        """
        known = self.certificate
        return known is None or _rank(known.message) < _rank(certificate)


def _rank(certificate: Certificate) -> tuple[bool, bool]:
    return certificate.escalated, not certificate.accepted


def window_epochs(manifest: RunManifest) -> int:
    """Return for how many epochs after its own a commit may be announced: latency and clock skew.

    The beacon of the next epoch draws its committee. A worker that could backdate a commit would
    wait for a committee that it likes.
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
        if (message.slot == 0) != (message.previous == b""):
            return Fault(FaultCode.SLOT_ORDER, "only slot 0 has no predecessor")
        return None


def agreed_reason(verdicts: Sequence[Verdict]) -> str:
    """Return the reason that most verdicts give; ties go to the first in the alphabet."""
    reasons = sorted(verdict.reason for verdict in verdicts)
    return max(reasons, key=reasons.count, default="")


_Key = tuple[PeerId, int, bytes]
"""Worker, version and checkpoint."""


def _key(commit: Signed[RolloutCommit]) -> _Key:
    return commit.signer, commit.message.version, commit.message.checkpoint


class SlotTable:
    """First commit seen for each slot."""

    def __init__(self) -> None:
        self._used: dict[_Key, dict[int, Digest]] = {}

    def take(self, commit: Signed[RolloutCommit]) -> Digest | None:
        """Record a commit; return the other commit that already uses its slot, if any."""
        slots = self._used.setdefault(_key(commit), {})
        first = slots.setdefault(commit.message.slot, commit.digest)
        return None if first == commit.digest else first

    def follows(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether the commit that this one names as predecessor is known."""
        slots, slot = self._used.get(_key(commit), {}), commit.message.slot
        return slot == 0 or slots.get(slot - 1) == commit.message.previous

    def is_last(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether no later slot is used."""
        slots = self._used.get(_key(commit), {})
        return slots.get(max(slots, default=0)) == commit.digest

    def after_last(self, worker: PeerId, version: int, checkpoint: bytes) -> tuple[int, bytes]:
        """Return the worker's next slot and the digest of the commit before it."""
        slots = self._used.get((worker, version, checkpoint), {})
        if not slots:
            return 0, b""
        last = max(slots)
        return last + 1, slots[last]

    def forget(self, is_needed: Callable[[PeerId, int, bytes], bool]) -> None:
        """Keep the slots of the checkpoints that a worker still needs, forget the others."""
        self._used = {key: slots for key, slots in self._used.items() if is_needed(*key)}
