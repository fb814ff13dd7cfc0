"""Connected peers: their subscriptions, and their budgets in this heartbeat."""

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.core.types import PeerId
from protocol.gossipsub.params import Params


@dataclass(slots=True)
class PeerState:
    """One connected peer; the counters are of one heartbeat."""

    heartbeat: int = 0
    topics: dict[str, None] = field(default_factory=dict)
    ihave_messages: int = 0
    ids_asked: int = 0
    bytes_served: int = 0
    fields_read: int = 0


class PeerStates:
    """Peers, and the subscribers of each topic; both bounded."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._states: dict[PeerId, PeerState] = {}
        self._subscribers: dict[str, dict[PeerId, None]] = {}
        self._heartbeat = 0

    def get(self, peer: PeerId) -> PeerState | None:
        """Return the state of a connected peer, with the counters of this heartbeat."""
        state = self._states.get(peer)
        if state is not None and state.heartbeat != self._heartbeat:
            state.heartbeat = self._heartbeat
            state.ihave_messages = state.ids_asked = state.bytes_served = state.fields_read = 0
        return state

    def all(self) -> list[PeerId]:
        """Return the connected peers, in the order of connection."""
        return list(self._states)

    def subscribers(self, topic: str) -> Collection[PeerId]:
        """Return the connected peers that subscribe to ``topic``: a view, not to be kept."""
        return self._subscribers.get(topic, {}).keys()

    def add(self, peer: PeerId) -> bool:
        """Add a peer; False if the table is full."""
        if peer not in self._states and len(self._states) >= self._params.peers_max:
            return False
        self._states.setdefault(peer, PeerState())
        return True

    def remove(self, peer: PeerId) -> list[str]:
        """Remove a peer and return its topics."""
        state = self._states.get(peer)
        topics = list(state.topics) if state else []
        for topic in topics:
            self.unsubscribe(peer, topic)
        self._states.pop(peer, None)
        return topics

    def subscribe(self, peer: PeerId, topic: str) -> bool:
        """Record a subscription of a connected peer; False if it has too many."""
        topics = self._states[peer].topics
        if topic not in topics and len(topics) >= self._params.topics_per_peer_max:
            return False
        topics[topic] = None
        self._subscribers.setdefault(topic, {})[peer] = None
        return True

    def unsubscribe(self, peer: PeerId, topic: str) -> None:
        """Record that a connected peer left a topic; idempotent."""
        self._states[peer].topics.pop(topic, None)
        subscribers = self._subscribers.get(topic, {})
        subscribers.pop(peer, None)
        if not subscribers:
            self._subscribers.pop(topic, None)

    def start_heartbeat(self) -> None:
        """Reset the budgets of every peer, at its next access."""
        self._heartbeat += 1
