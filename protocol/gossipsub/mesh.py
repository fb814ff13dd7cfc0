"""Mesh of each topic: members, quotas and backoffs."""

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
"""Returns a set of peers that an untrusted peer cannot join: outbound or trusted ones."""

Quotas = list[tuple[int, AbstractSet[PeerId]]]
"""Minimum number of mesh members from each set."""


def nobody() -> AbstractSet[PeerId]:
    """Return no peer, for an application without such a set."""
    return frozenset()


class _Search(NamedTuple):
    """Time of the last search for quota members, and the wait until the next."""

    at: float = -inf
    wait_seconds: float = 0.0

    @property
    def again_at(self) -> float:
        return self.at + self.wait_seconds

    def again(self, now: float, params: Params) -> "_Search":
        """Return the search that begins now; the wait doubles if the last search was recent.

        If all nodes want the same few peers, these are full. A graft there evicts another node,
        which then searches itself: without exponential backoff that would go on forever.
        """
        soon = now < self.at + 2 * self.wait_seconds
        seconds = 2 * self.wait_seconds if soon else params.prune_backoff_seconds
        return _Search(now, min(seconds, params.seek_seconds_max))


class GraftAnswer(Enum):
    """Decision on a GRAFT."""

    IGNORE = auto()
    ACCEPT = auto()
    REFUSE = auto()
    """PRUNE back: no slot, or a bad score."""
    BREACH = auto()
    """PRUNE back and penalise: the GRAFT was in its backoff."""
    FLOOD = auto()
    """PRUNE back and penalise twice: the backoff has just begun."""


class Mesh:
    """Members per subscribed topic; a topic without members remains subscribed."""

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
        """Last search per topic and quota."""
        self._wanted: Quotas = []
        """Quotas at the last heartbeat."""
        self._due_at: dict[str, float] = {}
        """Next check of a mesh with enough members, if it and the quotas do not change."""
        self._members: dict[str, dict[PeerId, None]] = {}
        self.backoffs = BoundedDict[tuple[str, PeerId], float](params.backoffs_max, "backoffs")
        """End of the backoff of each (topic, peer)."""
        self._backoff_ends_at = inf
        """Lower bound of all backoff ends."""

    def __contains__(self, topic: str) -> bool:
        return topic in self._members

    @property
    def topics(self) -> list[str]:
        """Our subscriptions, in the order they were made."""
        return list(self._members)

    def members(self, topic: str) -> list[PeerId]:
        """Return the mesh of ``topic``; empty if we are not subscribed."""
        return list(self._members.get(topic, ()))

    def holds(self, peer: PeerId) -> bool:
        """Return whether a peer is in any mesh."""
        return any(peer in members for members in self._members.values())

    def waiting(self, now: float) -> dict[PeerId, dict[str, float]]:
        """Return the remaining backoffs in seconds, by peer and topic."""
        waiting: dict[PeerId, dict[str, float]] = {}
        for (topic, peer), until in self.backoffs.items():
            if now < until:
                waiting.setdefault(peer, {})[topic] = until - now
        return waiting

    def join(self, topic: str, subscribers: Collection[PeerId], now: float) -> list[PeerId]:
        """Subscribe to a topic and return the peers to GRAFT."""
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
        """Remove a peer that left these topics or the network; its backoff stays.

        Returns the topics of which it was the last member.
        """
        return [topic for topic in topics if self._remove(topic, peer)]

    def refill(
        self, topics: Iterable[str], subscribers: Callable[[str], Collection[PeerId]], now: float
    ) -> dict[PeerId, list[str]]:
        """Fill empty meshes at once; return the topics to GRAFT by peer.

        If all members of a mesh leave together, messages before the next heartbeat would be lost.
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
        """Process a PRUNE; 0 seconds means that it names no backoff, and the default holds."""
        if topic not in self._members:
            return
        self._remove(topic, peer)
        asked = backoff_seconds or self._params.prune_backoff_seconds
        self._back_off(topic, peer, now + min(asked, self._params.backoff_seconds_max))

    def maintain_all(
        self, subscribers: Callable[[str], Collection[PeerId]], now: float
    ) -> tuple[dict[PeerId, list[str]], dict[PeerId, list[str]]]:
        """Bring every mesh back into its bounds; return the topics to GRAFT and PRUNE by peer."""
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
        """Forget the backoffs that are over, for our own GRAFTs too."""
        slack = self._params.backoff_slack_seconds
        if now < self._backoff_ends_at + slack:
            return
        self.backoffs.retain(lambda _key, until: now < until + slack)
        self._backoff_ends_at = min(self.backoffs.values(), default=inf)

    def _opportune(self, now: float) -> bool:
        """Return whether opportunistic grafts are due."""
        if self._opportunity_at is not None and now < self._opportunity_at:
            return False
        first = self._opportunity_at is None
        self._opportunity_at = now + self._params.opportunistic_graft_seconds
        return not first

    def _thin(self, topic: str, now: float, quotas: Quotas) -> list[PeerId]:
        """Remove members with bad scores, and surplus ones; return the peers to PRUNE.

        A full mesh is reduced at once: its first members must not block later peers forever.
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
        """Fill the quotas, which untrusted peers cannot displace; then the mesh with any peers."""
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
        """Add a few good peers to a mesh with a low median score: it may withhold messages."""
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
        trusted, chosen = frozenset(self.trusted()), frozenset(self.chosen())  # copies
        return [(self._params.mesh_trusted_min, trusted), (self._params.mesh_outbound, chosen)]

    def _full(self, members: Mapping[PeerId, None], peer: PeerId) -> bool:
        if len(members) < self._params.mesh_high or peer in self.chosen():
            return False
        trusted = self.trusted()
        return peer not in trusted or len(trusted & members.keys()) >= self._params.mesh_trusted_min

    def _add(self, topic: str, peers: list[PeerId], now: float) -> list[PeerId]:
        for peer in peers:
            self._members[topic][peer] = None
            self._scores.grafted(peer, topic, now)
            self._due_at.pop(topic, None)
        return peers

    def _remove(self, topic: str, peer: PeerId) -> bool:
        """Remove a member; True if the mesh is empty then."""
        members = self._members.get(topic, {})
        if peer not in members:
            return False
        del members[peer]
        self._due_at.pop(topic, None)
        self._scores.pruned(peer, topic)
        return not members

    def _choose_kept(self, members: list[PeerId], quotas: Quotas) -> list[PeerId]:
        """Keep the best by score (ties: older ones), the others at random, against eclipse.

        Some of the random ones are replaced by members that fill a quota.
        """
        by_score = sorted(members, key=self._scores, reverse=True)
        best = by_score[: self._params.mesh_keep_by_score]
        others = by_score[self._params.mesh_keep_by_score :]
        drawn = self._rng.sample(others, self._params.mesh_size - len(best))
        for quota, some in reversed(quotas):  # the first quota has precedence
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
