"""Data model of ``/why``: reasons of the state and of failed rollouts."""

from dataclasses import dataclass, replace

from node.api.v1.answers import RolloutDetail, RolloutRow, State


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
    """Reason of the node's state, and its rejected and expired rollouts, oldest first.

    The rollouts have no text. ``trained_on_rejected`` lists versions of all trainers.
    """

    state: State
    reason: str
    slashed: bool
    rollouts: tuple[RolloutDetail, ...]
    trained_on_rejected: tuple[TrainedOnRejected, ...]
    forks: tuple[str, ...] = ()
    """As in ``NodeStatus``."""
    doubts: tuple[str, ...] = ()
    """As in ``JudgingStatus``."""
    council: str = ""
    """``fault`` of ``CouncilSummary``."""
    refused: str = ""
    """As in ``CouncilSummary``."""

    def about(self, which: str) -> "Why":
        """Return the entries of a commit, a reason, a state or a trainer."""
        return replace(
            self,
            rollouts=tuple(item for item in self.rollouts if _is_named(item.row, which)),
            trained_on_rejected=tuple(
                item for item in self.trained_on_rejected if item.is_named(which)
            ),
        )


def _is_named(row: RolloutRow, which: str) -> bool:
    """Return whether ``which`` is its reason, its state or a prefix of its digest."""
    wanted = which.lower()
    return wanted in {row.reason.lower(), row.state} or row.commit.startswith(wanted)
