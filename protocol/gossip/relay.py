"""How accepted messages go on to the mesh: at once, after a short wait, or with the heartbeat."""

from protocol.gossip.batches import Batches
from protocol.gossip.cache import MessageCache
from protocol.gossip.events import Effect, FlushLater, Priority, Send
from protocol.gossip.params import Params
from protocol.gossip.rpc import Rpc, encode_rpc
from protocol.rng import Rng
from protocol.types import PeerId


class Relay:
    """Holds what waits; a message enters ``cache`` when it leaves, to be advertised from then."""

    def __init__(self, params: Params, rng: Rng, cache: MessageCache) -> None:
        self._params = params
        self._rng = rng
        self._cache = cache
        self._may_wait: dict[str, None] = {}
        self._for_heartbeat = Batches()
        self._for_flush = Batches()

    def subscribe(self, topic: str) -> None:
        """Let the messages of a topic wait for the heartbeat."""
        self._may_wait[topic] = None

    def unsubscribe(self, topic: str) -> None:
        """Forget that a topic may wait; idempotent."""
        self._may_wait.pop(topic, None)

    def forget(self, peer: PeerId) -> None:
        """Drop everything that waits for a peer."""
        self._for_heartbeat.forget(peer)
        self._for_flush.forget(peer)

    def drop(self, topic: str, peer: PeerId, message_id: bytes) -> None:
        """Note that a peer has a message."""
        waiting = self._for_heartbeat if topic in self._may_wait else self._for_flush
        waiting.drop(peer, message_id)

    def add(
        self, message_id: bytes, topic: str, encoded: bytes, peers: list[PeerId]
    ) -> list[Effect]:
        """Send a message to ``peers``, or let it wait."""
        effects: list[Effect] = []
        if topic in self._may_wait:
            effects += _sends(self._for_heartbeat.add(message_id, topic, encoded, peers))
        elif self._params.relay_wait_seconds:
            if not self._for_flush:  # else a flush is under way
                effects.append(FlushLater(self._rng.uniform() * self._params.relay_wait_seconds))
            effects += _sends(self._for_flush.add(message_id, topic, encoded, peers))
        else:
            self._cache.put(message_id, topic, encoded)
            rpc = encode_rpc(Rpc(publish=(encoded,)))
            effects += [Send(peer, rpc, Priority.RELAY) for peer in peers]
        return effects

    def flush(self) -> list[Effect]:
        """Send what waited a little."""
        return self._release(self._for_flush)

    def heartbeat(self) -> list[Effect]:
        """Send what waited for the heartbeat."""
        return self._release(self._for_heartbeat)

    def _release(self, batches: Batches) -> list[Effect]:
        """Send what waited; only now can it be advertised, when those who get it have it soon."""
        for message_id, (topic, message) in batches.take_fresh().items():
            self._cache.put(message_id, topic, message)
        return _sends(batches.take())


def _sends(batches: dict[PeerId, tuple[bytes, ...]]) -> list[Effect]:
    encoded: dict[tuple[bytes, ...], bytes] = {}  # many peers are sent the same
    effects: list[Effect] = []
    priority = Priority.RELAY
    for peer, messages in batches.items():
        if messages not in encoded:
            encoded[messages] = encode_rpc(Rpc(publish=messages))
        effects.append(Send(peer, encoded[messages], priority))
    return effects
