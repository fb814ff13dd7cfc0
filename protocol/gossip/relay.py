"""How accepted messages go on to the mesh: at once, after a short wait, or with the heartbeat."""

from collections.abc import Callable

from protocol.gossip.batches import Batches
from protocol.gossip.cache import MessageCache
from protocol.gossip.events import Effect, FlushLater, Priority, Send
from protocol.gossip.message import Message
from protocol.gossip.newcomers import NewcomerLane
from protocol.gossip.params import Params
from protocol.gossip.rpc import Rpc, encode_rpc
from protocol.gossip.sending import send_each
from protocol.rng import Rng
from protocol.types import PeerId


class Relay:
    """Holds what waits; a message enters ``cache`` when it leaves, to be advertised from then.

    What may wait and is of an author without ``standing`` is not advertised.
    """

    def __init__(
        self, params: Params, rng: Rng, cache: MessageCache, standing: Callable[[PeerId], bool]
    ) -> None:
        self._params = params
        self._rng = rng
        self._cache = cache
        self._standing = standing
        self._lanes: dict[str, NewcomerLane] = {}
        """Of the topics that may wait."""
        self._for_heartbeat = Batches()
        self._for_flush = Batches()

    @property
    def newcomers_bytes(self) -> int:
        """What authors without standing have waiting for the peer for which most does."""
        return max((lane.size_bytes for lane in self._lanes.values()), default=0)

    def subscribe(self, topic: str) -> None:
        """Let the messages of a topic wait for the heartbeat."""
        self._lanes[topic] = NewcomerLane()

    def unsubscribe(self, topic: str) -> None:
        """Forget that a topic may wait; idempotent."""
        self._lanes.pop(topic, None)

    def forget(self, peer: PeerId) -> None:
        """Drop what waits for a peer that has gone; the lanes look who is in the mesh."""
        self._for_heartbeat.forget(peer)
        self._for_flush.forget(peer)

    def may_wait(self, topic: str) -> bool:
        """Tell whether the messages of a topic may wait."""
        return topic in self._lanes

    def drop(self, peer: PeerId, message: Message) -> None:
        """Note that a peer has a message."""
        lane = self._lanes.get(message.topic)
        if lane is not None:
            lane.drop(peer, message)
        waiting = self._for_flush if lane is None else self._for_heartbeat
        waiting.drop(peer, message.message_id)

    def add(self, message: Message, peers: list[PeerId]) -> list[Effect]:
        """Send a message to ``peers``, or let it wait."""
        effects: list[Effect] = []
        message_id, topic, encoded = message.message_id, message.topic, message.encoded
        lane = self._lanes.get(topic)
        if lane is not None and not self._standing(message.author):
            lane.add(message, peers)
        elif lane is not None:
            effects += _publishes(self._for_heartbeat.add(message_id, topic, encoded, peers))
        elif self._params.relay_wait_seconds:
            if not self._for_flush:  # else a flush is under way
                effects.append(FlushLater(self._rng.uniform() * self._params.relay_wait_seconds))
            effects += _publishes(self._for_flush.add(message_id, topic, encoded, peers))
        else:
            self._cache.put(message_id, topic, encoded)
            rpc = encode_rpc(Rpc(publish=(encoded,)))
            effects += [Send(peer, rpc, Priority.RELAY) for peer in peers]
        return effects

    def flush(self) -> list[Effect]:
        """Send what waited a little."""
        return _publishes(self._released(self._for_flush))

    def heartbeat(self, members: Callable[[str], list[PeerId]]) -> list[Effect]:
        """Send what waited for the heartbeat; ``members`` are those of the mesh of a topic."""
        batches = self._released(self._for_heartbeat)
        for topic, lane in self._lanes.items():
            for peer, messages in lane.take(members(topic)).items():
                batches[peer] = (*batches.get(peer, ()), *messages)
        return _publishes(batches)

    def _released(self, batches: Batches) -> dict[PeerId, tuple[bytes, ...]]:
        """Return what waited; only now can it be advertised, when those who get it have it soon."""
        for message_id, (topic, message) in batches.take_fresh().items():
            self._cache.put(message_id, topic, message)
        return batches.take()


def _publishes(batches: dict[PeerId, tuple[bytes, ...]]) -> list[Effect]:
    rpcs = {peer: Rpc(publish=messages) for peer, messages in batches.items()}
    return send_each(rpcs, Priority.RELAY)
