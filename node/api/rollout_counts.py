"""Rollout counts of a ledger as a status, and as monotonic counters."""

from node.api.status import RolloutCounts
from protocol.ledger.worker_stats import WorkerStats

_NUMBERS = ("committed", "certified", "rejected", "expired", "trained")


def counted(counts: WorkerStats) -> RolloutCounts:
    """Return a ledger's counts as a ``RolloutCounts``."""
    return RolloutCounts(
        committed=counts.committed,
        certified=counts.certified,
        rejected=counts.rejected,
        expired=counts.expired,
        trained=counts.trained,
        rejected_reasons=dict(sorted(counts.reasons.items())),
    )


class MonotonicCounts:
    """Monotonic counters from a ledger's counts, starting at 0.

    A ledger's counts can fall: an expired commit is certified late, a branch of versions loses, or
    a restart drops old entries. Prometheus takes a fall for a reset to 0 and would count the whole
    value as an increase.
    """

    def __init__(self) -> None:
        self._last: RolloutCounts | None = None
        self._risen = RolloutCounts()

    def look(self, counts: RolloutCounts) -> RolloutCounts:
        """Return the sums of all increases up to ``counts``, all 0 at the first call."""
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
