"""Estimate of our clock's offset from the dates of several peers' records.

A record is as old on arrival as its path took. So each peer's freshest record counts, and the
median of all peers, if at least three of them and more than half agree on it. Offsets are kept
against a monotonic clock, so a corrected clock is detected at once.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId

PEERS_MAX = 256
"""Peers with a remembered offset, the most recent ones; more than there are connections."""

AGREEING_MIN = 3
"""Peers that must agree: of two, one may be wrong."""


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """Median lead of the peers' clocks over ours, and the number of peers that agree."""

    ahead_seconds: float
    peers: int


class ClockOffsets:
    """Newest record dates of peers, against a monotonic clock.

    Two peers agree if their offsets differ by at most ``slack_seconds``. A date counts for
    ``kept_seconds``.
    """

    def __init__(self, slack_seconds: float, kept_seconds: float) -> None:
        self._slack_seconds = slack_seconds
        self._kept_seconds = kept_seconds
        self._bases = BoundedDict[PeerId, tuple[float, float]](PEERS_MAX, "clocks")
        """By peer: the date minus the monotonic time of arrival, and that time."""
        self.tables = (self._bases,)

    def __len__(self) -> int:
        return len(self._bases)

    def note(self, peer: PeerId, issued_at: float, monotonic: float) -> None:
        """Record a date that has just arrived; an earlier one counts if it was faster."""
        base = issued_at - monotonic
        known = self._bases.get(peer)
        is_fresher = known is None or base >= known[0]
        if known is not None and not is_fresher and monotonic < known[1] + self._kept_seconds:
            self._bases.move_to_end(peer)
        else:
            self._bases.set_newest(peer, (base, monotonic))

    def ahead_seconds(self, peer: PeerId, now: float, monotonic: float) -> float | None:
        """Return the lead of a peer's clock over ours, None if unknown."""
        base, noted_at = self._bases.get(peer, (0.0, -self._kept_seconds))
        if monotonic >= noted_at + self._kept_seconds:
            return None
        return base - (now - monotonic)

    def estimate(
        self, networks: Mapping[Hashable, Iterable[PeerId]], now: float, monotonic: float
    ) -> ClockEstimate | None:
        """Return the majority's estimate, or None; the peers of one network have one vote."""
        votes = []
        for peers in networks.values():
            offsets = [self.ahead_seconds(peer, now, monotonic) for peer in peers]
            known = [offset for offset in offsets if offset is not None]
            if known:
                votes.append(median_low(known))
        if not votes:
            return None
        middle = median_low(votes)
        agreeing = sum(abs(vote - middle) <= self._slack_seconds for vote in votes)
        if agreeing < AGREEING_MIN or 2 * agreeing <= len(votes):
            return None
        return ClockEstimate(middle, agreeing)
