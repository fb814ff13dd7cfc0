"""The rows of the ledger: a commit with its outcome, and a version with what it learned from."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.messages import Certificate, CheckpointManifest, RolloutCommit, Signed
from protocol.types import Digest


class CommitState(StrEnum):
    """Where a commit stands."""

    COMMITTED = "committed"
    CERTIFIED = "certified"
    REJECTED = "rejected"
    EXPIRED = "expired"


@dataclass(slots=True)
class Entry:
    """A commit and what became of it."""

    commit: Signed[RolloutCommit]
    state: CommitState = CommitState.COMMITTED
    certificate: Signed[Certificate] | None = None
    reason: str = ""
    trained_in: int | None = None


@dataclass(slots=True)
class CheckpointEntry:
    """A published version, and which of its commits are not certified as far as we know."""

    manifest: Signed[CheckpointManifest]
    uncertified: dict[Digest, None]
