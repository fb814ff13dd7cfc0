"""Data model of ``/why``: reasons of the state and of failed rollouts."""

from dataclasses import dataclass, replace
from typing import Literal

from node.api.status import State


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """A quantity measured by a validator, and its limit for honest workers."""

    value: float
    allowed: float

    @property
    def share(self) -> float:
        """The value as a fraction of its limit."""
        return self.value / self.allowed if self.allowed else float(self.value > 0)


@dataclass(frozen=True, slots=True)
class VerdictFinding:
    """A signed verdict; ``evidence`` is its hexadecimal digest, ``validator`` its signer."""

    validator: str
    accept: bool
    reason: str
    detail: str
    evidence: str
    measured: dict[str, MeasuredValue]


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """A commit of this node that was not certified; digests are hexadecimal."""

    commit: str
    version: int
    slot: int
    epoch: int
    state: Literal["rejected", "expired"]
    reason: str
    certificate: str | None
    verdicts: tuple[VerdictFinding, ...]

    def is_named(self, which: str) -> bool:
        """Return whether ``which`` is its reason, its state or a prefix of its digest."""
        wanted = which.lower()
        return wanted in {self.reason.lower(), self.state} or self.commit.startswith(wanted)


@dataclass(frozen=True, slots=True)
class TrainedOnRejected:
    """A version trained on rejected commits; digests are hexadecimal."""

    version: int
    trainer: str
    commits: tuple[str, ...]

    def is_named(self, which: str) -> bool:
        """Return whether ``which`` is its trainer or a prefix of a commit's digest."""
        return which == self.trainer or any(
            commit.startswith(which.lower()) for commit in self.commits
        )


@dataclass(frozen=True, slots=True)
class Why:
    """Reason of the node's state, and its failed rollouts, oldest first.

    ``trained_on_rejected`` lists versions of all trainers.
    """

    state: State
    reason: str
    slashed: bool
    rollouts: tuple[FailedRollout, ...]
    trained_on_rejected: tuple[TrainedOnRejected, ...]
    forks: tuple[str, ...] = ()
    """As in ``NodeStatus``."""
    doubts: tuple[str, ...] = ()
    """As in ``JudgingStatus``."""

    def about(self, which: str) -> "Why":
        """Return the entries of a commit, a reason, a state or a trainer."""
        return replace(
            self,
            rollouts=tuple(item for item in self.rollouts if item.is_named(which)),
            trained_on_rejected=tuple(
                item for item in self.trained_on_rejected if item.is_named(which)
            ),
        )
