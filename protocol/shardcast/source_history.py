"""Reliability of a node's sources across versions.

The forest is computed anew for each version, so a peer that accepts requests and sends nothing
becomes a parent each time. A node therefore remembers the sources that failed, and requests from
them last, after the root. No agreement is needed: each node orders its candidates alone.

An honest parent looks the same if its own parent is at fault, or the root is slow. So if many were
late at once, none of them is suspected. A first suspicion is short. At most a share of the members
is suspected, so that some source before the root is almost always left.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from protocol.core.types import PeerId
from protocol.shardcast.transfer_state import RttEstimator

DOUBT_VERSIONS = 16
DOUBT_VERSIONS_MAX = 256
"""Duration of a first suspicion in versions, which doubles with each later failure; guesses."""

DOUBTED_MIN = 4
DOUBTED_SHARE = 8
"""At most one of 8 members is suspected, or four; guesses."""

LATE_TOGETHER_MAX = 2
"""If more were late in one transfer, the cause is common to them: a guess."""

BEGIN_SECONDS_MIN = 6.0
"""Minimum time for a source to begin, because it may have to find another source itself. With half
of it, the first version after a slowdown of the root took half as long again."""

UNTRUSTED_BEGIN_SECONDS_MIN = 1.0
"""The same for an untrusted source: delaying us costs a key nothing. Two such keys that sent
nothing, among eight nodes of a testnet, delayed every other version by 6 s."""


@dataclass(slots=True)
class _Suspicion:
    versions: int  # duration
    until: int


class SourceReputation:
    """Suspicions about sources, and their times to begin, over all transfers of one node."""

    def __init__(self) -> None:
        self._doubts: dict[PeerId, _Suspicion] = {}  # the newest last
        self._transfers = 0
        self._begin = RttEstimator()

    def ordered(self, candidates: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return ``candidates`` with the suspected ones last."""
        return tuple(sorted(candidates, key=self.is_doubted))

    def is_doubted(self, peer: PeerId) -> bool:
        """Return whether ``peer`` is suspected."""
        doubt = self._doubts.get(peer)
        return doubt is not None and self._transfers < doubt.until

    def begin_seconds(self, initial: float) -> float:
        """Return the time limit for a source to begin: ``initial`` at most, and before any has."""
        if self._begin.late_seconds is None:
            return initial
        return min(initial, max(BEGIN_SECONDS_MIN, self._begin.late_seconds))

    def untrusted_begin_seconds(self, initial: float) -> float:
        """Return the limit for an untrusted source: at most the usual time of the others."""
        usual_seconds = self._begin.late_seconds or BEGIN_SECONDS_MIN
        return min(initial, max(UNTRUSTED_BEGIN_SECONDS_MIN, usual_seconds))

    def begun(self, seconds: float) -> None:
        """Record the time from a request to the first chunk."""
        self._begin.measure(seconds)

    def ended(
        self,
        *,
        late: Collection[PeerId],
        bad: Iterable[PeerId],
        delivered: Iterable[PeerId],
        root: PeerId,
        members: int,
    ) -> None:
        """Record a finished transfer: peers that were late, sent bad bytes, or delivered."""
        self._transfers += 1
        for peer in delivered:
            self._doubts.pop(peer, None)
        if root not in late and len(late) <= LATE_TOGETHER_MAX:
            for peer in late:
                self._doubt(peer)
        for peer in bad:
            self._doubt(peer)
        for peer in list(self._doubts)[: -max(DOUBTED_MIN, members // DOUBTED_SHARE)]:
            del self._doubts[peer]

    def _doubt(self, peer: PeerId) -> None:
        before = self._doubts.pop(peer, None)
        versions = DOUBT_VERSIONS if before is None else before.versions
        if before is not None and self._transfers > before.until:  # failed again
            versions = min(2 * versions, DOUBT_VERSIONS_MAX)
        self._doubts[peer] = _Suspicion(versions, self._transfers + versions)
