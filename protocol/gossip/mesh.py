"""Who is in our mesh of each topic, and who must not be grafted yet."""

from collections.abc import Callable, Iterable
from enum import Enum, auto

from protocol.gossip.params import Params
from protocol.rng import Rng
from protocol.types import PeerId

Score = Callable[[PeerId], float]
"""How well a peer behaved; below 0 it has no place in a mesh."""


def neutral(_peer: PeerId) -> float:
    """Score everybody 0: the router without peer scoring."""
    return 0.0


class GraftAnswer(Enum):
    """What a GRAFT deserves."""

    IGNORE = auto()
    ACCEPT = auto()
    REFUSE = auto()
    """PRUNE back: no room, or a bad score."""
    BREACH = auto()
    """PRUNE back and blame: it was told to wait."""


class Mesh:
    """Members per subscribed topic; a topic without members still is subscribed."""

    def __init__(self, params: Params, rng: Rng, score: Score) -> None:
        self._params = params
        self._rng = rng
        self._score = score
        self._members: dict[str, dict[PeerId, None]] = {}
        self.backoffs: dict[tuple[str, PeerId], float] = {}
        """Until when a GRAFT of (topic, peer) is a breach."""
        self._backoff_ends_at = float("inf")
        """No back-off ends before."""

    def __contains__(self, topic: str) -> bool:
        return topic in self._members

    @property
    def topics(self) -> list[str]:
        """Our subscriptions, in the order they were made."""
        return list(self._members)

    def members(self, topic: str) -> list[PeerId]:
        """Return the mesh of ``topic``; empty when we are not subscribed."""
        return list(self._members.get(topic, ()))

    def join(self, topic: str, subscribers: Iterable[PeerId], now: float) -> list[PeerId]:
        """Enter a topic and return the peers to GRAFT."""
        self._members[topic] = {}
        return self._graft_some(topic, subscribers, now)

    def leave(self, topic: str, now: float) -> list[PeerId]:
        """Leave a topic and return the peers to PRUNE."""
        pruned = list(self._members.pop(topic))
        for peer in pruned:
            self._back_off(topic, peer, now + self._params.unsubscribe_backoff_seconds)
        return pruned

    def drop(self, peer: PeerId, topics: Iterable[str]) -> None:
        """Forget a member that left these topics or the network; back-off stays."""
        for topic in topics:
            self._members.get(topic, {}).pop(peer, None)

    def grafted_by(self, topic: str, peer: PeerId, now: float) -> GraftAnswer:
        """Decide on a GRAFT from a subscribed peer."""
        members = self._members.get(topic)
        if members is None or peer in members:
            return GraftAnswer.IGNORE
        if now < self.backoffs.get((topic, peer), 0.0):
            answer = GraftAnswer.BREACH
        elif self._score(peer) < 0 or len(members) >= self._params.mesh_high:
            answer = GraftAnswer.REFUSE
        else:
            members[peer] = None
            return GraftAnswer.ACCEPT
        self._back_off(topic, peer, now + self._params.prune_backoff_seconds)
        return answer

    def pruned_by(self, topic: str, peer: PeerId, backoff_seconds: int, now: float) -> None:
        """Take a PRUNE; 0 seconds means the peer said nothing, and the default holds."""
        if topic not in self._members:
            return
        self._members[topic].pop(peer, None)
        asked = backoff_seconds or self._params.prune_backoff_seconds
        self._back_off(topic, peer, now + min(asked, self._params.backoff_seconds_max))

    def maintain(
        self, topic: str, subscribers: Iterable[PeerId], now: float
    ) -> tuple[list[PeerId], list[PeerId]]:
        """Bring a mesh back into its bounds; return the peers to GRAFT and to PRUNE.

        A full mesh is thinned at once: whoever came first must not keep everybody else out.
        """
        members = self._members[topic]
        score = self._score
        kept = [peer for peer in members if score(peer) >= 0]
        pruned: list[PeerId] = []
        if len(kept) >= self._params.mesh_high:
            kept = self._choose_kept(kept)
        if len(kept) < len(members):
            pruned = [peer for peer in members if peer not in kept]
        for peer in pruned:
            del members[peer]
            self._back_off(topic, peer, now + self._params.prune_backoff_seconds)
        if len(members) >= self._params.mesh_low:
            return [], pruned
        return self._graft_some(topic, subscribers, now), pruned

    def expire(self, now: float) -> None:
        """Forget the back-offs that are over, for our own GRAFTs too."""
        slack = self._params.backoff_slack_seconds
        if now < self._backoff_ends_at + slack:
            return
        self.backoffs = {key: until for key, until in self.backoffs.items() if now < until + slack}
        self._backoff_ends_at = min(self.backoffs.values(), default=float("inf"))

    def _graft_some(self, topic: str, subscribers: Iterable[PeerId], now: float) -> list[PeerId]:
        members = self._members[topic]
        candidates = [
            peer
            for peer in subscribers
            if peer not in members and self._may_graft(topic, peer, now) and self._score(peer) >= 0
        ]
        grafted = self._rng.sample(candidates, self._params.mesh_size - len(members))
        members.update(dict.fromkeys(grafted))
        return grafted

    def _may_graft(self, topic: str, peer: PeerId, now: float) -> bool:
        until = self.backoffs.get((topic, peer))
        return until is None or now >= until + self._params.backoff_slack_seconds

    def _choose_kept(self, members: list[PeerId]) -> list[PeerId]:
        """Keep the best by score (ties at random) and fill up at random: no eclipse by score."""
        by_score = sorted(self._rng.shuffled(members), key=self._score, reverse=True)
        best = by_score[: self._params.mesh_keep_by_score]
        others = by_score[self._params.mesh_keep_by_score :]
        return best + self._rng.sample(others, self._params.mesh_size - len(best))

    def _back_off(self, topic: str, peer: PeerId, until: float) -> None:
        until = max(until, self.backoffs.pop((topic, peer), until))
        self.backoffs[topic, peer] = until
        self._backoff_ends_at = min(self._backoff_ends_at, until)
        if len(self.backoffs) > self._params.backoffs_max:
            del self.backoffs[next(iter(self.backoffs))]
