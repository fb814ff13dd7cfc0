"""The answer to ``why``: what the daemon tells at ``/why``, typed for whoever reads it."""

from dataclasses import dataclass, replace
from typing import Literal

from node.api.status import State


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """A quantity that a validator measured, and the most that an honest worker comes to."""

    value: float
    allowed: float

    @property
    def share(self) -> float:
        """The value as a share of what is allowed."""
        return self.value / self.allowed if self.allowed else float(self.value > 0)


@dataclass(frozen=True, slots=True)
class VerdictFinding:
    """One signed verdict; ``evidence`` is its digest, hexadecimal, ``validator`` its signer."""

    validator: str
    accept: bool
    reason: str
    detail: str
    evidence: str
    measured: dict[str, MeasuredValue]


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """One of our commits that was not certified; digests are hexadecimal."""

    commit: str
    version: int
    slot: int
    epoch: int
    state: Literal["rejected", "expired"]
    reason: str
    certificate: str | None
    verdicts: tuple[VerdictFinding, ...]

    def is_named(self, which: str) -> bool:
        """Return whether ``which`` is its reason, its state or how its digest begins."""
        wanted = which.lower()
        return wanted in {self.reason.lower(), self.state} or self.commit.startswith(wanted)


@dataclass(frozen=True, slots=True)
class TrainedOnRejected:
    """A version that learned from commits although they are rejected; digests are hexadecimal."""

    version: int
    trainer: str
    commits: tuple[str, ...]

    def is_named(self, which: str) -> bool:
        """Tell whether ``which`` is its trainer or how the digest of one of the commits begins."""
        return which == self.trainer or any(
            commit.startswith(which.lower()) for commit in self.commits
        )


@dataclass(frozen=True, slots=True)
class Why:
    """Why the node is in its state, and which of its rollouts failed, oldest first.

    ``trained_on_rejected`` are versions of every trainer.
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
        """Return only what ``which`` names: a commit, a reason, a state or a trainer."""
        return replace(
            self,
            rollouts=tuple(item for item in self.rollouts if item.is_named(which)),
            trained_on_rejected=tuple(
                item for item in self.trained_on_rejected if item.is_named(which)
            ),
        )
