"""Who is in our mesh of each topic, and who must not be grafted yet."""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from protocol.core.containers import BoundedDict
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import Scores

PeerSet = Callable[[], AbstractSet[PeerId]]
"""Peers of which strangers cannot make themselves one, as they are now: those that we dialled by
our own choice, or those with standing."""

Quotas = list[tuple[int, AbstractSet[PeerId]]]
"""Of whom so many are to be in each mesh."""


def nobody() -> AbstractSet[PeerId]:
    """Return no peer: of an application that knows no such peers."""
    return frozenset()


class _Search(NamedTuple):
    """When a mesh last asked for members that a quota wants, and how long it asks for none."""

    at: float = -inf
    wait_seconds: float = 0.0

    @property
    def again_at(self) -> float:
        return self.at + self.wait_seconds

    def again(self, now: float, params: Params) -> "_Search":
        """Return the search that begins now; one that comes soon after another waits longer.

        Where all want the same few, these are full. Whoever asks them pushes others out, who ask
        then: if none waited longer and longer, that would go on for ever.
        """
        soon = now < self.at + 2 * self.wait_seconds
        seconds = 2 * self.wait_seconds if soon else params.prune_backoff_seconds
        return _Search(now, min(seconds, params.seek_seconds_max))


class GraftAnswer(Enum):
    """What a GRAFT deserves."""

    IGNORE = auto()
    ACCEPT = auto()
    REFUSE = auto()
    """PRUNE back: no room, or a bad score."""
    BREACH = auto()
    """PRUNE back and blame: it was told to wait."""
    FLOOD = auto()
    """The same, and twice as bad: it has hardly been told."""


class Mesh:
    """Members per subscribed topic; a topic without members still is subscribed."""

    def __init__(
        self,
        params: Params,
        rng: Rng,
        scores: Scores,
        chosen: PeerSet,
        trusted: PeerSet,
    ) -> None:
        self._params = params
        self._rng = rng
        self._scores = scores
        self.chosen = chosen
        self.trusted = trusted
        self._opportunity_at: float | None = None
        self._sought: dict[tuple[str, int], _Search] = {}
        """When a topic's mesh last asked for what one of its quotas lacked."""
        self._wanted: Quotas = []
        """The quotas as they were at the last heartbeat."""
        self._due_at: dict[str, float] = {}
        """When a mesh is looked at again that has enough members, if it and the quotas stay so."""
        self._members: dict[str, dict[PeerId, None]] = {}
        self.backoffs = BoundedDict[tuple[str, PeerId], float](params.backoffs_max, "backoffs")
        """Until when a GRAFT of (topic, peer) is a breach."""
        self._backoff_ends_at = inf
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

    def holds(self, peer: PeerId) -> bool:
        """Return whether a peer is a member of any."""
        return any(peer in members for members in self._members.values())

    def waiting(self, now: float) -> dict[PeerId, dict[str, float]]:
        """Return for how many seconds peers that must not GRAFT are to wait, by topic."""
        waiting: dict[PeerId, dict[str, float]] = {}
        for (topic, peer), until in self.backoffs.items():
            if now < until:
                waiting.setdefault(peer, {})[topic] = until - now
        return waiting

    def join(self, topic: str, subscribers: Collection[PeerId], now: float) -> list[PeerId]:
        """Enter a topic and return the peers to GRAFT."""
        self._members[topic] = {}
        return self._graft_missing(topic, subscribers, now, self._quotas())

    def leave(self, topic: str, now: float) -> list[PeerId]:
        """Leave a topic and return the peers to PRUNE."""
        pruned = list(self._members[topic])
        for peer in pruned:
            self._remove(topic, peer)
            self._back_off(topic, peer, now + self._params.unsubscribe_backoff_seconds)
        del self._members[topic]
        return pruned

    def drop(self, peer: PeerId, topics: Iterable[str]) -> list[str]:
        """Forget a member that left these topics or the network; back-off stays.

        Returns the topics of which it was the last member.
        """
        return [topic for topic in topics if self._remove(topic, peer)]

    def refill(
        self, topics: Iterable[str], subscribers: Callable[[str], Collection[PeerId]], now: float
    ) -> dict[PeerId, list[str]]:
        """Find members for empty meshes at once; return whom to GRAFT, and in which topics.

        When all of a mesh go together, what is published before the next heartbeat would be lost.
        """
        grafts: dict[PeerId, list[str]] = {}
        for topic in topics:
            for peer in self._graft_missing(topic, subscribers(topic), now, self._quotas()):
                grafts.setdefault(peer, []).append(topic)
        return grafts

    def grafted_by(self, topic: str, peer: PeerId, now: float) -> GraftAnswer:
        """Decide on a GRAFT from a subscribed peer."""
        members = self._members.get(topic)
        if members is None or peer in members:
            return GraftAnswer.IGNORE
        if now < self.backoffs.get((topic, peer), 0.0):
            pruned_at = self.backoffs[topic, peer] - self._params.prune_backoff_seconds
            soon = now < pruned_at + self._params.graft_flood_seconds
            answer = GraftAnswer.FLOOD if soon else GraftAnswer.BREACH
        elif self._scores.below(peer, 0) or self._full(members, peer):
            answer = GraftAnswer.REFUSE
        else:
            self._add(topic, [peer], now)
            return GraftAnswer.ACCEPT
        self._back_off(topic, peer, now + self._params.prune_backoff_seconds)
        return answer

    def pruned_by(self, topic: str, peer: PeerId, backoff_seconds: int, now: float) -> None:
        """Take a PRUNE; 0 seconds means the peer said nothing, and the default holds."""
        if topic not in self._members:
            return
        self._remove(topic, peer)
        asked = backoff_seconds or self._params.prune_backoff_seconds
        self._back_off(topic, peer, now + min(asked, self._params.backoff_seconds_max))

    def maintain_all(
        self, subscribers: Callable[[str], Collection[PeerId]], now: float
    ) -> tuple[dict[PeerId, list[str]], dict[PeerId, list[str]]]:
        """Bring every mesh back into its bounds; return whom to GRAFT and to PRUNE, and where."""
        grafts: dict[PeerId, list[str]] = {}
        prunes: dict[PeerId, list[str]] = {}
        opportune, quotas = self._opportune(now), self._quotas()
        if opportune or quotas != self._wanted or self._scores.any_below(0):
            self._wanted = quotas
            self._due_at.clear()
        for topic in self.topics:
            if now < self._due_at.get(topic, -inf):
                continue
            some = subscribers(topic)
            pruned = self._thin(topic, now, quotas)
            grafted = self._graft_missing(topic, some, now, quotas)
            if opportune:
                grafted += self._graft_better(topic, some, now)
            for peer in grafted:
                grafts.setdefault(peer, []).append(topic)
            for peer in pruned:
                prunes.setdefault(peer, []).append(topic)
        return grafts, prunes

    def expire(self, now: float) -> None:
        """Forget the back-offs that are over, for our own GRAFTs too."""
        slack = self._params.backoff_slack_seconds
        if now < self._backoff_ends_at + slack:
            return
        self.backoffs.retain(lambda _key, until: now < until + slack)
        self._backoff_ends_at = min(self.backoffs.values(), default=inf)

    def _opportune(self, now: float) -> bool:
        """Tell, once in a while, that it is time for opportunistic grafts."""
        if self._opportunity_at is not None and now < self._opportunity_at:
            return False
        first = self._opportunity_at is None
        self._opportunity_at = now + self._params.opportunistic_graft_seconds
        return not first

    def _thin(self, topic: str, now: float, quotas: Quotas) -> list[PeerId]:
        """Leave out bad members, and of too many some; return the peers to PRUNE.

        A full mesh is thinned at once: whoever came first must not keep everybody else out.
        """
        members = self._members[topic]
        scores, params = self._scores, self._params
        if len(members) < params.mesh_high and not scores.any_below(0):
            return []
        kept = [peer for peer in members if not scores.below(peer, 0)]
        if len(kept) >= params.mesh_high:
            kept = self._choose_kept(kept, quotas)
        pruned = [peer for peer in members if peer not in kept]
        for peer in pruned:
            self._remove(topic, peer)
            self._back_off(topic, peer, now + params.prune_backoff_seconds)
        return pruned

    def _graft_missing(
        self, topic: str, subscribers: Collection[PeerId], now: float, quotas: Quotas
    ) -> list[PeerId]:
        """Keep what the quotas are for, whatever strangers do; then enough of any."""
        members, params, grafted = self._members[topic], self._params, list[PeerId]()
        due_at = inf
        for kind, (quota, some) in enumerate(quotas):
            missing = min(quota, len(some)) - sum(map(some.__contains__, members))
            if missing <= 0:
                continue
            search = self._sought.get((topic, kind), _Search())
            if now >= search.again_at:
                those = filter(some.__contains__, subscribers)
                candidates = self._candidates(topic, those, now)
                if candidates:
                    self._sought[topic, kind] = search.again(now, params)
                grafted += self._add(topic, self._rng.sample(candidates, missing), now)
            due_at = min(due_at, search.again_at)
        if len(members) < params.mesh_low:
            candidates = self._candidates(topic, subscribers, now)
            room = params.mesh_size - len(members)
            grafted += self._add(topic, self._rng.sample(candidates, room), now)
        if not grafted and len(members) >= params.mesh_low:
            self._due_at[topic] = due_at
        return grafted

    def _graft_better(self, topic: str, subscribers: Iterable[PeerId], now: float) -> list[PeerId]:
        """Take a few good peers into a mesh whose median is poor: it may withhold messages."""
        ranked = sorted(map(self._scores, self._members[topic]))
        good = self._params.opportunistic_score_min
        if len(ranked) < 2 or ranked[len(ranked) // 2] >= good:
            return []
        candidates = self._candidates(topic, subscribers, now)
        better = [peer for peer in candidates if self._scores(peer) >= good]
        some = self._rng.sample(better, self._params.opportunistic_graft_peers)
        return self._add(topic, some, now)

    def _candidates(self, topic: str, peers: Iterable[PeerId], now: float) -> list[PeerId]:
        members, scores, backoffs = self._members[topic], self._scores, self.backoffs
        slack = self._params.backoff_slack_seconds
        return [
            peer
            for peer in peers
            if peer not in members
            and backoffs.get((topic, peer), -inf) + slack <= now
            and not scores.below(peer, 0)
        ]

    def _quotas(self) -> Quotas:
        trusted, chosen = frozenset(self.trusted()), frozenset(self.chosen())  # as they are now
        return [(self._params.mesh_standing, trusted), (self._params.mesh_outbound, chosen)]

    def _full(self, members: Mapping[PeerId, None], peer: PeerId) -> bool:
        if len(members) < self._params.mesh_high or peer in self.chosen():
            return False
        trusted = self.trusted()
        return peer not in trusted or len(trusted & members.keys()) >= self._params.mesh_standing

    def _add(self, topic: str, peers: list[PeerId], now: float) -> list[PeerId]:
        for peer in peers:
            self._members[topic][peer] = None
            self._scores.grafted(peer, topic, now)
            self._due_at.pop(topic, None)
        return peers

    def _remove(self, topic: str, peer: PeerId) -> bool:
        """Take a member out; True when that leaves nobody."""
        members = self._members.get(topic, {})
        if peer not in members:
            return False
        del members[peer]
        self._due_at.pop(topic, None)
        self._scores.pruned(peer, topic)
        return not members

    def _choose_kept(self, members: list[PeerId], quotas: Quotas) -> list[PeerId]:
        """Keep the best by score (of equals the older members), others at random: no eclipse by it.

        Of those drawn at random, some make room for those that the quotas are for.
        """
        by_score = sorted(members, key=self._scores, reverse=True)
        best = by_score[: self._params.mesh_keep_by_score]
        others = by_score[self._params.mesh_keep_by_score :]
        drawn = self._rng.sample(others, self._params.mesh_size - len(best))
        for quota, some in reversed(quotas):  # the first has the last word
            missing = quota - len(some & {*best, *drawn})
            if missing > 0:
                spare = [peer for peer in others if peer not in drawn and peer in some][:missing]
                drawn.sort(key=some.__contains__)  # the others leave first
                drawn = drawn[len(spare) :] + spare
        return best + drawn

    def _back_off(self, topic: str, peer: PeerId, until: float) -> None:
        until = max(until, self.backoffs.get((topic, peer), until))
        self.backoffs.set_newest((topic, peer), until)
        self._backoff_ends_at = min(self._backoff_ends_at, until)
