"""How accepted messages go on to the mesh: at once, after a short wait, or with the heartbeat.

Messages that wait a little before they are relayed, and leave together.

While one waits, peers that have it send it to us, and those are not sent it back: a wait that is
long beside a round trip saves most duplicates. What is urgent for nobody, such as members' records,
waits for the heartbeat, and one RPC per mesh peer carries all of it.

To whom a node sends its own messages: its mesh, and some of the others.

What authors without standing say on a topic that may wait: so much per peer, by author in turns.

Keys are free, so what all of them say together has no bound of its own, and whatever follows it in
a stream waits until it is read. For the same reason nobody is told of it by IHAVE: who asks for it
has it in front of what is urgent.
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
"""What waits for one peer; more does not wait. A guess: what a thin line carries in a heartbeat."""

FRESH_MAX = 4096
"""Messages of one batch that can be advertised after it; more are still relayed."""


class Batches:
    """What waits, by peer, and the messages themselves, each once."""

    def __init__(self) -> None:
        self._fresh = BoundedDict[bytes, tuple[str, bytes]](FRESH_MAX)
        self._waiting: dict[PeerId, dict[bytes, bytes]] = {}
        self._sizes: dict[PeerId, int] = {}

    def __bool__(self) -> bool:
        """Return whether a message came since the last ``take_fresh``."""
        return bool(self._fresh)

    def add(
        self, message_id: bytes, topic: str, encoded: bytes, peers: Iterable[PeerId]
    ) -> dict[PeerId, tuple[bytes, ...]]:
        """Let a message wait for ``peers``; return what has become too much to wait, by peer."""
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
        """Note that ``peer`` has a message."""
        waiting = self._waiting.get(peer)
        encoded = None if waiting is None else waiting.pop(message_id, None)
        if encoded is not None:
            self._sizes[peer] -= len(encoded)

    def forget(self, peer: PeerId) -> None:
        """Drop everything that waits for ``peer``."""
        self._waiting.pop(peer, None)
        self._sizes.pop(peer, None)

    def take(self) -> dict[PeerId, tuple[bytes, ...]]:
        """Return what waits, by peer, which waits no longer."""
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
    """Chooses the receivers of own messages; whoever is ``trusted`` comes before strangers."""

    def __init__(self, peers_max: int, rng: Rng, trusted: PeerSet) -> None:
        self._peers_max = peers_max
        self._rng = rng
        self._proven = trusted

    def receivers(self, mesh: Collection[PeerId], subscribers: list[PeerId]) -> list[PeerId]:
        """Return those of ``subscribers`` to send to, the proven first.

        All, if there are no more than ``peers_max``; else the mesh, proven ones, and strangers at
        random, in this order.
        """
        trusted = self._proven()
        if len(subscribers) > self._peers_max:
            drawn = self._rng.shuffled(subscribers)
            drawn.sort(key=lambda peer: (peer not in mesh, peer not in trusted))
            subscribers = drawn[: self._peers_max]
        return sorted(subscribers, key=trusted.__contains__, reverse=True)


LANE_BYTES = 6 << 10
"""Sent to one peer with a heartbeat. With a commit after it that is what a peer of no standing is
read at once by whoever reads too much of such peers (``READ_BYTES_MIN``)."""

LANE_WAITING_BYTES_MAX = 512 << 10
"""Waits for one peer; a guess: what 80 heartbeats carry."""


class UntrustedForwardQueue:
    """The newest message of each author that waits for a peer; an author keeps its turn."""

    def __init__(self) -> None:
        self._waiting: dict[PeerId, _Waiting] = {}

    @property
    def size_bytes(self) -> int:
        """What waits for the peer for which most does."""
        return max((waiting.size_bytes for waiting in self._waiting.values()), default=0)

    def add(self, message: GossipMessage, peers: Collection[PeerId]) -> None:
        """Let a message wait for ``peers``; what its author said before waits no longer."""
        for peer in peers:
            self._waiting.setdefault(peer, _Waiting()).add(message)

    def drop(self, peer: PeerId, message: GossipMessage) -> None:
        """Note that ``peer`` has a message."""
        if (waiting := self._waiting.get(peer)) is not None:
            waiting.drop(message)

    def take(self, peers: Collection[PeerId]) -> dict[PeerId, tuple[bytes, ...]]:
        """Return what is sent now; what waits for others than ``peers`` is forgotten."""
        if not self._waiting:
            return {}
        members = dict.fromkeys(peers)
        self._waiting = {
            peer: waiting
            for peer, waiting in self._waiting.items()
            if waiting.size_bytes and peer in members
        }
        return {peer: waiting.take() for peer, waiting in self._waiting.items()}


class _Waiting:
    """What waits for one peer, by author."""

    __slots__ = ("_messages", "size_bytes")

    def __init__(self) -> None:
        self._messages: dict[bytes, GossipMessage] = {}
        self.size_bytes = 0

    def add(self, message: GossipMessage) -> None:
        before = self._messages.get(message.source)
        self._messages[message.source] = message  # in the place of the one before
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
        self._lanes: dict[str, UntrustedForwardQueue] = {}
        """Of the topics that may wait."""
        self._for_heartbeat = Batches()
        self._for_flush = Batches()

    @property
    def newcomers_bytes(self) -> int:
        """What authors without standing have waiting for the peer for which most does."""
        return max((lane.size_bytes for lane in self._lanes.values()), default=0)

    def subscribe(self, topic: str) -> None:
        """Let the messages of a topic wait for the heartbeat."""
        self._lanes[topic] = UntrustedForwardQueue()

    def unsubscribe(self, topic: str) -> None:
        """Forget that a topic may wait; idempotent."""
        self._lanes.pop(topic, None)

    def forget(self, peer: PeerId) -> None:
        """Drop what waits for a peer that has gone; the lanes look who is in the mesh."""
        self._for_heartbeat.forget(peer)
        self._for_flush.forget(peer)

    def may_wait(self, topic: str) -> bool:
        """Return whether the messages of a topic may wait."""
        return topic in self._lanes

    def drop(self, peer: PeerId, message: GossipMessage) -> None:
        """Note that a peer has a message."""
        lane = self._lanes.get(message.topic)
        if lane is not None:
            lane.drop(peer, message)
        waiting = self._for_flush if lane is None else self._for_heartbeat
        waiting.drop(peer, message.message_id)

    def add(self, message: GossipMessage, peers: list[PeerId]) -> list[Effect]:
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
