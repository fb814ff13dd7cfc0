"""Counts of rollouts: a ledger's as a status has them, and those that never fall."""

from node.api.status import RolloutCounts
from protocol.ledger.worker_stats import WorkerStats

_NUMBERS = ("committed", "certified", "rejected", "expired", "trained")


def counted(counts: WorkerStats) -> RolloutCounts:
    """Return a ledger's counts as a status has them."""
    return RolloutCounts(
        committed=counts.committed,
        certified=counts.certified,
        rejected=counts.rejected,
        expired=counts.expired,
        trained=counts.trained,
        rejected_reasons=dict(sorted(counts.reasons.items())),
    )


class MonotonicCounts:
    """What was added to a ledger's counts since they were first looked at here.

    Theirs fall: a commit that has expired is certified late, a branch of versions gives way, and a
    restart forgets what is old. Prometheus takes a fall for a start from 0, and an increase over it
    would be the whole count.
    """

    def __init__(self) -> None:
        self._last: RolloutCounts | None = None
        self._risen = RolloutCounts()

    def look(self, counts: RolloutCounts) -> RolloutCounts:
        """Return the sums of all rises up to ``counts``; 0 of everything at the first look."""
        last, risen = self._last or counts, self._risen
        numbers = {
            name: getattr(risen, name) + max(0, getattr(counts, name) - getattr(last, name))
            for name in _NUMBERS
        }
        reasons = {
            reason: risen.rejected_reasons.get(reason, 0)
            + max(0, counts.rejected_reasons.get(reason, 0) - last.rejected_reasons.get(reason, 0))
            for reason in {**risen.rejected_reasons, **counts.rejected_reasons}
        }
        self._last, self._risen = counts, RolloutCounts(**numbers, rejected_reasons=reasons)
        return self._risen
