"""What became of the commits of one worker, or of all of them, in numbers."""

from collections import Counter
from dataclasses import dataclass, field

from protocol.containers import DecayingSum
from protocol.ledger.commits import CommitState, Entry

CREDIT_MAX = 8
"""Unsettled commits of one worker that hold back the others: as many as an honest one has. Half of
what a ledger takes, because the certificates of some are still on their way to others. A guess."""


HALF_LIFE_EPOCHS = 1440
"""After which work counts half as much, in standing: a day of epochs of a minute. A guess: a worker
that was away for a night comes back to its place, one that was away for a week does not."""

EARNED_MAX = 64.0
"""Rollouts that speak for a worker, however many were certified: else who has done a lot could
waste as much before it counts. A guess: some hundred of its commits may come to nothing."""

EXPIRED_COST, REJECTED_COST = 0.5, 1.0
"""Of a certified rollout. A commit expires when its body is withheld, and at times because nobody
found the time to check it."""


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
    # The last digits of these two depend on the order in which outcomes came.
    earned: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)
    wasted: DecayingSum = field(default_factory=DecayingSum, repr=False, compare=False)

    @property
    def credit(self) -> int:
        """How many unsettled commits are believed to come to something: they are free to make."""
        return max(0, min(CREDIT_MAX, self.certified - self.expired - self.rejected))

    def worth(self, epoch: int) -> float:
        """Return what speaks for a worker, in certified rollouts of this epoch."""
        earned = self.earned.value_at(epoch, HALF_LIFE_EPOCHS)
        return min(EARNED_MAX, earned) - self.wasted.value_at(epoch, HALF_LIFE_EPOCHS)

    def add_state(self, entry: Entry, sign: int = 1) -> None:
        """Count the state of a commit, or with ``sign`` -1 take it out again."""
        epoch = entry.epoch
        match entry.state:
            case CommitState.COMMITTED:
                pass
            case CommitState.EXPIRED:
                self.expired += sign
                self.wasted.add(sign * EXPIRED_COST, epoch, HALF_LIFE_EPOCHS)
            case CommitState.CERTIFIED:
                self.certified += sign
                self.earned.add(sign, epoch, HALF_LIFE_EPOCHS)
                self.tokens_certified += sign * entry.commit.message.tokens
            case CommitState.REJECTED:
                self.rejected += sign
                self.wasted.add(sign * REJECTED_COST, epoch, HALF_LIFE_EPOCHS)
                self.reasons[entry.reason] += sign
