"""Peer scores: the seven parts of GossipSub v1.1's score, P1 to P7.

Per topic: P1 time in our mesh, P2 first deliveries, P3 missing deliveries of a mesh member, P3b the
same when it leaves, P4 invalid messages. Over all topics: P5 the application's score, P6 peers that
share its address, P7 protocol violations. Counters decay; the time in the mesh is updated together
with them. ``Deliveries`` attributes messages to peers: first, on time, or invalid.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId
from protocol.gossipsub.params import ScoreParams, TopicScoreParams

Opinions = Callable[[], Mapping[PeerId, float]]
"""Returns the application's score of peers (P5); absent peers have 0."""


def no_opinions() -> Mapping[PeerId, float]:
    """Return no application scores."""
    return {}


class _Factors(NamedTuple):
    """Remaining share of each counter after some seconds; a counter below ``zero`` becomes 0."""

    first_deliveries: float
    mesh_deliveries: float
    mesh_failures: float
    invalid: float
    breaches: float
    zero: float


class PeerCounts(NamedTuple):
    """Decayed counters of a peer over all topics."""

    first_deliveries: float = 0.0
    mesh_failures: float = 0.0
    invalid: float = 0.0
    breaches: float = 0.0
    neighbours: int = 0
    """Other peers at its most crowded address."""


@dataclass(slots=True)
class TopicStats:
    """Counters of one peer in one topic; they decay."""

    grafted_at: float | None = None
    """None: not in our mesh."""
    mesh_seconds: float = 0.0
    mesh_active: bool = False
    """True if it has been in the mesh long enough for P3."""
    first_deliveries: float = 0.0
    mesh_deliveries: float = 0.0
    mesh_failures: float = 0.0
    invalid: float = 0.0

    def score(self, params: TopicScoreParams) -> float:
        """Return the score of the topic, before the topic's weight."""
        score = params.first_deliveries_weight * self.first_deliveries
        if self.grafted_at is not None:
            quanta = float(self.mesh_seconds // params.mesh_seconds_quantum)
            score += params.mesh_time_weight * min(quanta, params.mesh_quanta_max)
        score += params.mesh_deliveries_weight * self.deficit(params) ** 2
        score += params.mesh_failure_weight * self.mesh_failures
        return score + params.invalid_weight * self.invalid**2

    def deficit(self, params: TopicScoreParams) -> float:
        """Return the missing mesh deliveries; 0 until P3 counts."""
        if not self.mesh_active:
            return 0.0
        return max(0.0, params.mesh_deliveries_threshold - self.mesh_deliveries)

    def age(self, params: TopicScoreParams, factors: _Factors, now: float) -> bool:
        """Decay the counters and update the time in the mesh; False if nothing is left."""
        zero = factors.zero
        if self.first_deliveries:  # most are 0, and there are many
            self.first_deliveries = _decayed(self.first_deliveries, factors.first_deliveries, zero)
        if self.mesh_deliveries:
            self.mesh_deliveries = _decayed(self.mesh_deliveries, factors.mesh_deliveries, zero)
        if self.mesh_failures:
            self.mesh_failures = _decayed(self.mesh_failures, factors.mesh_failures, zero)
        if self.invalid:
            self.invalid = _decayed(self.invalid, factors.invalid, zero)
        if self.grafted_at is not None:
            self.mesh_seconds = max(self.mesh_seconds, now - self.grafted_at)
            active = self.mesh_seconds > params.mesh_deliveries_activation_seconds
            self.mesh_active = active and params.withholding_counts
            return True
        counters = self.first_deliveries + self.mesh_deliveries + self.mesh_failures + self.invalid
        return counters > 0


@dataclass(slots=True)
class _PeerStats:
    """Score data of one peer."""

    topics: dict[str, TopicStats] = field(default_factory=dict)
    breaches: float = 0.0
    addresses: tuple[str, ...] = ()
    application: float = 0.0
    """P5 at the last heartbeat."""
    score: float | None = None
    """Sum of all parts; None: to be recomputed."""


@dataclass(frozen=True, slots=True)
class _Retained:
    peer_stats: _PeerStats
    score: float
    until: float


class Scores:
    """Scores of the connected peers, and of disconnected ones with penalties.

    Calls for a peer that is not connected have no effect.
    """

    def __init__(self, params: ScoreParams, opinions: Opinions = no_opinions) -> None:
        self._params = params
        self._opinions = opinions
        self.withholding_counts = params.topic.withholding_counts
        """True if mesh deliveries are counted."""
        self._stats_by_peer: dict[PeerId, _PeerStats] = {}
        self._retained: dict[PeerId, _Retained] = {}
        self._at_address: dict[str, int] = {}
        self._aged_at: float | None = None
        self._suspects: dict[PeerId, None] = {}
        """All connected peers with a score below 0, and some that may have got one."""
        self._judged: dict[PeerId, None] = {}
        """Peers with an application score at the last heartbeat."""
        self._lowest = 0.0
        """Lower bound of all connected peers' scores; it answers most queries without a lookup."""

    def __call__(self, peer: PeerId) -> float:
        """Return the score of a peer; if it is not connected, its application score."""
        peer_stats = self._stats_by_peer.get(peer)
        if peer_stats is None:
            return self._opinions().get(peer, 0.0)
        score = peer_stats.score
        if score is None:
            behaviour, colocation = self._behaviour(peer_stats), self._colocation(peer_stats)
            score = peer_stats.score = peer_stats.application + behaviour + colocation
        return score

    def below(self, peer: PeerId, bound: float) -> bool:
        """Return whether the score of a connected peer is below a bound, which is 0 at most."""
        return self._lowest < bound and self(peer) < bound

    def any_below(self, bound: float) -> bool:
        """Return whether any score may be below a bound, which is 0 at most."""
        return self._lowest < bound

    def at_least(self, bound: float, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return the connected peers among these with scores not below a bound (0 at most)."""
        if self._lowest >= bound:
            return list(peers)
        return [peer for peer in peers if self(peer) >= bound]

    @property
    def retained(self) -> int:
        """Number of remembered disconnected peers."""
        return len(self._retained)

    def counts(self, peer: PeerId) -> PeerCounts:
        """Return the counters behind a peer's score; all 0 if it is not connected."""
        peer_stats = self._stats_by_peer.get(peer)
        if peer_stats is None:
            return PeerCounts()
        stats = peer_stats.topics.values()
        return PeerCounts(
            sum(each.first_deliveries for each in stats),
            sum(each.mesh_failures for each in stats),
            sum(each.invalid for each in stats),
            peer_stats.breaches,
            max((self._at_address[each] for each in peer_stats.addresses), default=1) - 1,
        )

    def _behaviour(self, peer_stats: _PeerStats) -> float:
        """Return P1 to P4 and P7."""
        topic = self._params.topic
        score = 0.0
        for stats in peer_stats.topics.values():  # a generator costs as much as the sum
            score += topic.weight * stats.score(topic)
        score = min(score, self._params.topics_score_max)
        excess = max(0.0, peer_stats.breaches - self._params.behaviour_threshold)
        return score + self._params.behaviour_weight * excess**2

    def _colocation(self, peer_stats: _PeerStats) -> float:
        """Return P6."""
        score = 0.0
        for address in peer_stats.addresses:
            surplus = max(0, self._at_address[address] - self._params.colocated_peers_max)
            score += self._params.colocation_weight * surplus**2
        return score

    # Connections

    def connect(self, peer: PeerId, now: float) -> None:
        """Add a peer, with its retained score if there is one; idempotent."""
        if peer in self._stats_by_peer:
            return
        retained = self._retained.pop(peer, None)
        fits = retained is not None and now < retained.until
        peer_stats = self._stats_by_peer[peer] = (
            retained.peer_stats if retained and fits else _PeerStats()
        )
        peer_stats.application = self._opinions().get(peer, 0.0)
        self._changed(peer, peer_stats)

    def disconnect(self, peer: PeerId, now: float) -> None:
        """Forget a peer, unless it has penalties; idempotent."""
        peer_stats = self._stats_by_peer.get(peer)
        if peer_stats is None:
            return
        self.place(peer, ())
        for topic in peer_stats.topics:
            self.pruned(peer, topic)
        del self._stats_by_peer[peer]
        self._suspects.pop(peer, None)
        if not _to_answer_for(peer_stats):
            return
        for stats in peer_stats.topics.values():
            stats.first_deliveries = 0.0
        peer_stats.score = None
        until = now + self._params.retain_seconds
        self._retained[peer] = _Retained(peer_stats, self._behaviour(peer_stats), until)
        if len(self._retained) > self._params.retained_max:
            del self._retained[max(self._retained, key=lambda each: self._retained[each].score)]

    def place(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Set the addresses of a connected peer, without those that may be shared."""
        peer_stats = self._stats_by_peer.get(peer)
        some = tuple(dict.fromkeys(addresses))[: self._params.addresses_per_peer_max]
        if peer_stats is None or some == peer_stats.addresses:
            return
        touched = {*peer_stats.addresses, *some}
        for address in peer_stats.addresses:
            self._at_address[address] -= 1
            if self._at_address[address] == 0:
                del self._at_address[address]
        peer_stats.addresses = some
        for address in some:
            self._at_address[address] = self._at_address.get(address, 0) + 1
        for each, other in self._stats_by_peer.items():
            if not touched.isdisjoint(other.addresses):
                self._changed(each, other)
        peer_stats.score = None

    # Behaviour

    def grafted(self, peer: PeerId, topic: str, now: float) -> None:
        """Record that a peer has entered our mesh."""
        stats = self._stats(peer, topic)
        if stats is not None:
            stats.grafted_at = now
            stats.mesh_seconds = 0.0
            stats.mesh_active = False
            self._changed(peer, self._stats_by_peer[peer])

    def pruned(self, peer: PeerId, topic: str) -> None:
        """Record that a peer has left our mesh; its deficit becomes P3b."""
        peer_stats = self._stats_by_peer.get(peer)
        stats = None if peer_stats is None else peer_stats.topics.get(topic)
        if peer_stats is not None and stats is not None and stats.grafted_at is not None:
            stats.mesh_failures += stats.deficit(self._params.topic) ** 2
            stats.grafted_at = None
            stats.mesh_active = False
            self._changed(peer, peer_stats)

    def first_delivery(self, peer: PeerId, topic: str) -> None:
        """Record that a peer was the first to deliver a message that we accepted."""
        stats = self._stats(peer, topic)
        if stats is not None:
            most = self._params.topic.first_deliveries_max
            stats.first_deliveries = min(most, stats.first_deliveries + 1)
            self.mesh_delivery(peer, topic)

    def mesh_delivery(self, peer: PeerId, topic: str) -> None:
        """Record a delivery on time; counts for mesh members."""
        if not self.withholding_counts:
            return
        stats = self._stats(peer, topic)
        if stats is not None and stats.grafted_at is not None:
            most = self._params.topic.mesh_deliveries_max
            stats.mesh_deliveries = min(most, stats.mesh_deliveries + 1)

    def invalid(self, peer: PeerId, topic: str) -> None:
        """Record that a peer delivered an invalid message."""
        stats = self._stats(peer, topic)
        if stats is not None:
            stats.invalid += 1
            self._changed(peer, self._stats_by_peer[peer])

    def breach(self, peer: PeerId, count: int = 1) -> None:
        """Record violations of the protocol."""
        peer_stats = self._stats_by_peer.get(peer)
        if peer_stats is not None:
            peer_stats.breaches += count
            self._changed(peer, peer_stats)

    # Time

    def heartbeat(self, now: float) -> None:
        """Update the application scores; decay the counters once per interval."""
        opinions = self._opinions()
        for peer in {**self._judged, **opinions}:
            peer_stats, opinion = self._stats_by_peer.get(peer), opinions.get(peer, 0.0)
            if peer_stats is not None and opinion != peer_stats.application:
                peer_stats.application = opinion
                self._changed(peer, peer_stats)
        self._judged = dict.fromkeys(opinions)
        self._age_all(now)
        self._suspects = {peer: None for peer in self._suspects if self(peer) < 0}
        self._lowest = min(map(self, self._suspects), default=0.0)

    def _age_all(self, now: float) -> None:
        """Decay the counters, and forget peers that left long ago."""
        last = self._aged_at
        if last is None or now < last:  # the clock was set back: continue from there
            self._aged_at = now
            return
        if now < last + self._params.decay_seconds:
            return
        self._aged_at = now
        factors = _factors(self._params, now - last)
        for peer, peer_stats in self._stats_by_peer.items():
            if peer_stats.topics or peer_stats.breaches:
                self._age(peer_stats, factors, now)
                self._changed(peer, peer_stats)
        self._retained = {peer: kept for peer, kept in self._retained.items() if now < kept.until}

    def _age(self, peer_stats: _PeerStats, factors: _Factors, now: float) -> None:
        params = self._params.topic
        peer_stats.topics = {
            topic: stats
            for topic, stats in peer_stats.topics.items()
            if stats.age(params, factors, now)
        }
        if peer_stats.breaches:
            peer_stats.breaches = _decayed(peer_stats.breaches, factors.breaches, factors.zero)

    def _may_be_low(self, peer_stats: _PeerStats) -> bool:
        """Return whether a peer has any penalty; credit decays to 0."""
        burdened = peer_stats.application < 0 or _to_answer_for(peer_stats)
        return burdened or self._colocation(peer_stats) < 0

    def _changed(self, peer: PeerId, peer_stats: _PeerStats) -> None:
        """Mark a score for recomputation; it may be lower."""
        peer_stats.score = None
        if self._may_be_low(peer_stats):
            self._suspects[peer] = None
            self._lowest = -math.inf

    def _stats(self, peer: PeerId, topic: str) -> TopicStats | None:
        """Return counters to be changed, and mark the score for recomputation."""
        peer_stats = self._stats_by_peer.get(peer)
        if peer_stats is None:
            return None
        peer_stats.score = None
        stats = peer_stats.topics.get(topic)
        if stats is None:
            stats = peer_stats.topics[topic] = TopicStats()
        return stats


def _factors(params: ScoreParams, seconds: float) -> _Factors:
    topic = params.topic
    return _Factors(
        topic.first_deliveries_decay**seconds,
        topic.mesh_deliveries_decay**seconds,
        topic.mesh_failure_decay**seconds,
        topic.invalid_decay**seconds,
        params.behaviour_decay**seconds,
        params.decay_to_zero,
    )


def _decayed(counter: float, factor: float, zero: float) -> float:
    counter *= factor
    return counter if counter >= zero else 0.0


def _to_answer_for(peer_stats: _PeerStats) -> bool:
    if peer_stats.breaches > 0:
        return True
    for stats in peer_stats.topics.values():  # ``any`` takes twice as long
        if stats.invalid or stats.mesh_failures or stats.mesh_active:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Judged:
    valid: bool
    at: float
    senders: dict[PeerId, None]


class Deliveries:
    """Judged messages with their senders, so that each peer's late first copy counts too."""

    def __init__(self, params: ScoreParams, scores: Scores) -> None:
        self._params = params
        self._scores = scores
        self._judged = BoundedDict[bytes, _Judged](params.judged_max, "delivery_records")
        self.tables = (self._judged,)

    def accepted(
        self, message_id: bytes, topic: str, senders: Iterable[PeerId], now: float
    ) -> None:
        """Record a valid message and its senders so far, in order; none for our own."""
        known = dict.fromkeys(senders)
        for number, peer in enumerate(known):
            if number == 0:
                self._scores.first_delivery(peer, topic)
            else:
                self._scores.mesh_delivery(peer, topic)
        if self._scores.withholding_counts:  # otherwise a late copy has no effect
            self._judged[message_id] = _Judged(True, now, known)

    def rejected(
        self, message_id: bytes, topic: str, senders: Iterable[PeerId], now: float
    ) -> None:
        """Record an invalid message and its senders so far."""
        known = dict.fromkeys(senders)
        for peer in known:
            self._scores.invalid(peer, topic)
        self._judged[message_id] = _Judged(False, now, known)

    def repeated(self, message_id: bytes, topic: str, peer: PeerId, now: float) -> None:
        """Record a copy of a message that may have been judged."""
        judged = self._judged.get(message_id)
        if judged is None or peer in judged.senders:
            return
        judged.senders[peer] = None
        if not judged.valid:
            self._scores.invalid(peer, topic)
        elif now - judged.at <= self._params.topic.mesh_deliveries_window_seconds:
            self._scores.mesh_delivery(peer, topic)
