"""Forwarding of accepted messages to the mesh: at once, after a short wait, or per heartbeat.

While a message waits, mesh peers may send it to us; it is not sent back to them. A wait longer than
a round trip avoids most duplicates. Topics that are not urgent, such as members' records, wait for
the heartbeat, and one RPC per mesh peer carries all of it.

Messages of untrusted authors on such a topic share a limit per peer, round robin by author. Keys
are free, so their number has no bound of its own, and they delay everything behind them in a
stream. IHAVE does not advertise them, because requested messages precede urgent ones.

Own messages go to the mesh and to some other subscribers (``Flood``).
"""

from collections.abc import Callable, Collection, Iterable

from protocol.core.containers import BoundedDict
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.events import Effect, FlushLater, Priority, Send, send_each
from protocol.gossipsub.mesh import PeerSet
from protocol.gossipsub.message import GossipMessage
from protocol.gossipsub.message_cache import MessageCache
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import Rpc, encode_rpc

BATCH_BYTES_MAX = 64 << 10
"""Bytes waiting for one peer; more are sent at once. A guess for a slow uplink and one
heartbeat."""

FRESH_MAX = 4096
"""Messages of one batch that can be advertised after it; more are still forwarded."""


class Batches:
    """Waiting messages by peer; each message is stored once."""

    def __init__(self) -> None:
        self._fresh = BoundedDict[bytes, tuple[str, bytes]](FRESH_MAX)
        self._waiting: dict[PeerId, dict[bytes, bytes]] = {}
        self._sizes: dict[PeerId, int] = {}

    def __bool__(self) -> bool:
        """Return whether a message was added since the last ``take_fresh``."""
        return bool(self._fresh)

    def add(
        self, message_id: bytes, topic: str, encoded: bytes, peers: Iterable[PeerId]
    ) -> dict[PeerId, tuple[bytes, ...]]:
        """Queue a message for ``peers``; return the queues that exceed their limit, by peer."""
        self._fresh[message_id] = (topic, encoded)
        full: dict[PeerId, tuple[bytes, ...]] = {}
        for peer in peers:
            self._waiting.setdefault(peer, {})[message_id] = encoded
            self._sizes[peer] = self._sizes.get(peer, 0) + len(encoded)
            if self._sizes[peer] > BATCH_BYTES_MAX:
                full[peer] = tuple(self._waiting[peer].values())
                self.forget(peer)
        return full

    def drop(self, peer: PeerId, message_id: bytes) -> None:
        """Record that ``peer`` has a message."""
        waiting = self._waiting.get(peer)
        encoded = None if waiting is None else waiting.pop(message_id, None)
        if encoded is not None:
            self._sizes[peer] -= len(encoded)

    def forget(self, peer: PeerId) -> None:
        """Drop everything that waits for ``peer``."""
        self._waiting.pop(peer, None)
        self._sizes.pop(peer, None)

    def take(self) -> dict[PeerId, tuple[bytes, ...]]:
        """Remove and return all waiting messages, by peer."""
        waiting = self._waiting.items()
        taken = {peer: tuple(messages.values()) for peer, messages in waiting if messages}
        self._waiting.clear()
        self._sizes.clear()
        return taken

    def take_fresh(self) -> dict[bytes, tuple[str, bytes]]:
        """Return the messages since the last call, by id: (topic, encoded)."""
        fresh = dict(self._fresh)
        self._fresh.clear()
        return fresh


class Flood:
    """Selects the receivers of own messages; trusted (``trusted``) peers come first."""

    def __init__(self, peers_max: int, rng: Rng, trusted: PeerSet) -> None:
        self._peers_max = peers_max
        self._rng = rng
        self._trusted = trusted

    def receivers(self, mesh: Collection[PeerId], subscribers: list[PeerId]) -> list[PeerId]:
        """Return the receivers among ``subscribers``, trusted ones first.

        All, if there are at most ``peers_max``; otherwise mesh members, trusted peers, and random
        untrusted ones, in this order.
        """
        trusted = self._trusted()
        if len(subscribers) > self._peers_max:
            drawn = self._rng.shuffled(subscribers)
            drawn.sort(key=lambda peer: (peer not in mesh, peer not in trusted))
            subscribers = drawn[: self._peers_max]
        return sorted(subscribers, key=trusted.__contains__, reverse=True)


LANE_BYTES = 6 << 10
"""Sent to one peer per heartbeat. With a commit after it, it fits what a flooded node reads at once
from an untrusted peer (``READ_BYTES_MIN``)."""

LANE_WAITING_BYTES_MAX = 512 << 10
"""Bytes waiting for one peer: 80 heartbeats; a guess."""


class UntrustedForwardQueue:
    """Per peer, the newest waiting message of each author, in the order of the authors' first."""

    def __init__(self) -> None:
        self._waiting: dict[PeerId, _PeerQueue] = {}

    @property
    def size_bytes(self) -> int:
        """Largest number of bytes waiting for one peer."""
        return max((waiting.size_bytes for waiting in self._waiting.values()), default=0)

    def add(self, message: GossipMessage, peers: Collection[PeerId]) -> None:
        """Queue a message for ``peers``; it replaces the author's earlier one."""
        for peer in peers:
            self._waiting.setdefault(peer, _PeerQueue()).add(message)

    def drop(self, peer: PeerId, message: GossipMessage) -> None:
        """Record that ``peer`` has a message."""
        if (waiting := self._waiting.get(peer)) is not None:
            waiting.drop(message)

    def take(self, peers: Collection[PeerId]) -> dict[PeerId, tuple[bytes, ...]]:
        """Return the messages to send now; drop those for other peers than ``peers``."""
        if not self._waiting:
            return {}
        members = dict.fromkeys(peers)
        self._waiting = {
            peer: waiting
            for peer, waiting in self._waiting.items()
            if waiting.size_bytes and peer in members
        }
        return {peer: waiting.take() for peer, waiting in self._waiting.items()}


class _PeerQueue:
    """Messages waiting for one peer, by author."""

    __slots__ = ("_messages", "size_bytes")

    def __init__(self) -> None:
        self._messages: dict[bytes, GossipMessage] = {}
        self.size_bytes = 0

    def add(self, message: GossipMessage) -> None:
        before = self._messages.get(message.source)
        self._messages[message.source] = message  # keeps the author's place
        self.size_bytes += len(message.encoded) - (0 if before is None else len(before.encoded))
        while self.size_bytes > LANE_WAITING_BYTES_MAX:
            self._remove(next(iter(self._messages.values())))

    def drop(self, message: GossipMessage) -> None:
        held = self._messages.get(message.source)
        if held is not None and held.seqno == message.seqno:
            self._remove(held)

    def take(self) -> tuple[bytes, ...]:
        """Remove and return the first messages: at least one, then up to ``LANE_BYTES``."""
        taken: list[GossipMessage] = []
        size = 0
        for message in self._messages.values():
            size += len(message.encoded)
            if taken and size > LANE_BYTES:
                break
            taken.append(message)
        for message in taken:
            self._remove(message)
        return tuple(message.encoded for message in taken)

    def _remove(self, message: GossipMessage) -> None:
        del self._messages[message.source]
        self.size_bytes -= len(message.encoded)


class Forwarder:
    """Queues of waiting messages; a sent message enters ``cache`` and is advertised from then on.

    Waiting messages of untrusted authors are never advertised.
    """

    def __init__(
        self, params: Params, rng: Rng, cache: MessageCache, is_trusted: Callable[[PeerId], bool]
    ) -> None:
        self._params = params
        self._rng = rng
        self._cache = cache
        self._is_trusted = is_trusted
        self._lanes: dict[str, UntrustedForwardQueue] = {}
        """By topic, for topics that may wait."""
        self._for_heartbeat = Batches()
        self._for_flush = Batches()

    @property
    def untrusted_bytes(self) -> int:
        """Largest number of bytes of untrusted authors that wait for one peer."""
        return max((lane.size_bytes for lane in self._lanes.values()), default=0)

    def subscribe(self, topic: str) -> None:
        """Let the messages of a topic wait for the heartbeat."""
        self._lanes[topic] = UntrustedForwardQueue()

    def unsubscribe(self, topic: str) -> None:
        """Stop delaying a topic's messages; idempotent."""
        self._lanes.pop(topic, None)

    def forget(self, peer: PeerId) -> None:
        """Drop the messages for a disconnected peer; ``heartbeat`` cleans the lanes."""
        self._for_heartbeat.forget(peer)
        self._for_flush.forget(peer)

    def may_wait(self, topic: str) -> bool:
        """Return whether the messages of a topic may wait."""
        return topic in self._lanes

    def drop(self, peer: PeerId, message: GossipMessage) -> None:
        """Record that a peer has a message."""
        lane = self._lanes.get(message.topic)
        if lane is not None:
            lane.drop(peer, message)
        waiting = self._for_flush if lane is None else self._for_heartbeat
        waiting.drop(peer, message.message_id)

    def add(self, message: GossipMessage, peers: list[PeerId]) -> list[Effect]:
        """Send a message to ``peers``, or queue it."""
        effects: list[Effect] = []
        message_id, topic, encoded = message.message_id, message.topic, message.encoded
        lane = self._lanes.get(topic)
        if lane is not None and not self._is_trusted(message.author):
            lane.add(message, peers)
        elif lane is not None:
            effects += _publishes(self._for_heartbeat.add(message_id, topic, encoded, peers))
        elif self._params.relay_wait_seconds:
            if not self._for_flush:  # otherwise a flush is pending
                effects.append(FlushLater(self._rng.uniform() * self._params.relay_wait_seconds))
            effects += _publishes(self._for_flush.add(message_id, topic, encoded, peers))
        else:
            self._cache.put(message_id, topic, encoded)
            rpc = encode_rpc(Rpc(publish=(encoded,)))
            effects += [Send(peer, rpc, Priority.RELAY) for peer in peers]
        return effects

    def flush(self) -> list[Effect]:
        """Send the messages that waited for the flush."""
        return _publishes(self._released(self._for_flush))

    def heartbeat(self, members: Callable[[str], list[PeerId]]) -> list[Effect]:
        """Send the messages that waited for the heartbeat; ``members(topic)`` returns a mesh."""
        batches = self._released(self._for_heartbeat)
        for topic, lane in self._lanes.items():
            for peer, messages in lane.take(members(topic)).items():
                batches[peer] = (*batches.get(peer, ()), *messages)
        return _publishes(batches)

    def _released(self, batches: Batches) -> dict[PeerId, tuple[bytes, ...]]:
        """Return the waiting messages, and cache them to be advertised from now on."""
        for message_id, (topic, message) in batches.take_fresh().items():
            self._cache.put(message_id, topic, message)
        return batches.take()


def _publishes(batches: dict[PeerId, tuple[bytes, ...]]) -> list[Effect]:
    rpcs = {peer: Rpc(publish=messages) for peer, messages in batches.items()}
    return send_each(rpcs, Priority.RELAY)
