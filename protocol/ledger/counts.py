"""What became of the commits of one worker, or of all of them, in numbers."""

from collections import Counter
from dataclasses import dataclass, field

from protocol.ledger.commits import CommitState, Entry

CREDIT_MAX = 8
"""Unsettled commits of one worker that hold back the others: as many as an honest one has. Half of
what a ledger takes, because the certificates of some are still on their way to others. A guess."""


@dataclass(slots=True)
class Counts:
    """Commits by outcome; ``committed`` counts all of them."""

    committed: int = 0
    certified: int = 0
    rejected: int = 0
    expired: int = 0
    trained: int = 0
    tokens_certified: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def credit(self) -> int:
        """How many unsettled commits are believed to come to something: they are free to make."""
        return max(0, min(CREDIT_MAX, self.certified - self.expired - self.rejected))

    def add_state(self, entry: Entry, sign: int = 1) -> None:
        """Count the state of a commit, or with ``sign`` -1 take it out again."""
        match entry.state:
            case CommitState.COMMITTED:
                pass
            case CommitState.EXPIRED:
                self.expired += sign
            case CommitState.CERTIFIED:
                self.certified += sign
                self.tokens_certified += sign * entry.commit.message.tokens
            case CommitState.REJECTED:
                self.rejected += sign
                self.reasons[entry.reason] += sign
