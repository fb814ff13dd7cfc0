"""Comparison of our clock with those of several peers, by the dates of their records.

A record that arrives is as old as its way took. So of one peer the freshest record counts, and of
all peers the median, when at least three of them and more than half agree on it. Offsets are kept
against a monotonic clock, so a clock that is set right is seen at once.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId

PEERS_MAX = 256
"""Peers whose offsets are kept, those heard of last; connections are fewer."""

AGREEING_MIN = 3
"""Peers that must agree: of two, one may lie."""


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """By how much the clocks of most peers are ahead of ours, and of how many."""

    ahead_seconds: float
    peers: int


class ClockOffsets:
    """The newest dates of peers, against a monotonic clock.

    Two peers agree when their offsets differ by at most ``slack_seconds``; a date counts for
    ``kept_seconds``.
    """

    def __init__(self, slack_seconds: float, kept_seconds: float) -> None:
        self._slack_seconds = slack_seconds
        self._kept_seconds = kept_seconds
        self._bases = BoundedDict[PeerId, tuple[float, float]](PEERS_MAX, "clocks")
        """By peer the date less the monotonic time when it came, and that time."""
        self.tables = (self._bases,)

    def __len__(self) -> int:
        return len(self._bases)

    def note(self, peer: PeerId, issued_at: float, monotonic: float) -> None:
        """Note a date that has just come; an earlier one counts if it took less time to come."""
        base = issued_at - monotonic
        known = self._bases.get(peer)
        is_fresher = known is None or base >= known[0]
        if known is not None and not is_fresher and monotonic < known[1] + self._kept_seconds:
            self._bases.move_to_end(peer)
        else:
            self._bases.set_newest(peer, (base, monotonic))

    def ahead_seconds(self, peer: PeerId, now: float, monotonic: float) -> float | None:
        """Return by how much a peer's clock is ahead of ours, None when nothing is known."""
        base, noted_at = self._bases.get(peer, (0.0, -self._kept_seconds))
        if monotonic >= noted_at + self._kept_seconds:
            return None
        return base - (now - monotonic)

    def estimate(
        self, networks: Mapping[Hashable, Iterable[PeerId]], now: float, monotonic: float
    ) -> ClockEstimate | None:
        """Return what most peers agree on, None without a majority; peers of a network are one."""
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
