"""What a node remembers of its sources from one version to the next.

The forest is computed anew for each version, so whoever takes requests and sends nothing feeds
others each time. A node therefore remembers who failed it, and asks those after everybody else, the
root included: whoever stands in the list may be asked in any order, without agreement.

An honest parent looks the same when its own parent is at fault, or the root is slow. So where many
were late at once, none of them is blamed for it; a first doubt is soon over; and no more than a
share of the members is doubted, so that there is practically always one to ask before the root.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from protocol.core.types import PeerId
from protocol.shardcast.transfer_state import RttEstimator

DOUBT_VERSIONS = 16
DOUBT_VERSIONS_MAX = 256
"""How long a first doubt lasts, which doubles each time that it proves right; guesses."""

DOUBTED_MIN = 4
DOUBTED_SHARE = 8
"""At most one of so many members is doubted, or four; guesses."""

LATE_TOGETHER_MAX = 2
"""When more than so many were late in one transfer, what they have in common was: a guess."""

BEGIN_SECONDS_MIN = 6.0
"""The least that a source is given to begin: it may have to find another source itself. With half
of that, the first version after the root's line had become slow took half as long again."""

STRANGER_BEGIN_SECONDS_MIN = 1.0
"""The same of a source without standing: it costs a key nothing to hold us up. Two such keys that
sent nothing, among eight nodes of a testnet, held up every other version by 6 s."""


@dataclass(slots=True)
class _Suspicion:
    versions: int  # that it lasts
    until: int


class SourceReputation:
    """Doubts about sources, and the time that they take to begin; of all transfers of one node."""

    def __init__(self) -> None:
        self._doubts: dict[PeerId, _Suspicion] = {}  # the newest last
        self._transfers = 0
        self._begin = RttEstimator()

    def ordered(self, candidates: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return ``candidates`` with those that are doubted last."""
        return tuple(sorted(candidates, key=self.is_doubted))

    def is_doubted(self, peer: PeerId) -> bool:
        """Return whether ``peer`` failed us lately."""
        doubt = self._doubts.get(peer)
        return doubt is not None and self._transfers < doubt.until

    def begin_seconds(self, initial: float) -> float:
        """Return how long a source may take to begin; ``initial`` before anyone has, at most."""
        if self._begin.late_seconds is None:
            return initial
        return min(initial, max(BEGIN_SECONDS_MIN, self._begin.late_seconds))

    def stranger_begin_seconds(self, initial: float) -> float:
        """Return how long one without standing may take: no more than others usually do."""
        usual_seconds = self._begin.late_seconds or BEGIN_SECONDS_MIN
        return min(initial, max(STRANGER_BEGIN_SECONDS_MIN, usual_seconds))

    def begun(self, seconds: float) -> None:
        """Note that a source took so long from a request to the first chunk."""
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
        """Take note of a transfer: who was late or sent bad bytes, and who delivered."""
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
        if before is not None and self._transfers > before.until:  # it was trusted, and failed
            versions = min(2 * versions, DOUBT_VERSIONS_MAX)
        self._doubts[peer] = _Suspicion(versions, self._transfers + versions)
