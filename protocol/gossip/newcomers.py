"""What authors without standing say on a topic that may wait: so much per peer, by author in turns.

Keys are free, so what all of them say together has no bound of its own, and whatever follows it in
a stream waits until it is read. For the same reason nobody is told of it by IHAVE: who asks for it
has it in front of what is urgent.
"""

from collections.abc import Collection

from protocol.gossip.message import Message
from protocol.types import PeerId

LANE_BYTES = 6 << 10
"""Sent to one peer with a heartbeat. With a commit after it that is what a peer of no standing is
read at once by whoever reads too much of such peers (``READ_BYTES_MIN``)."""

LANE_WAITING_BYTES_MAX = 512 << 10
"""Waits for one peer; a guess: what 80 heartbeats carry."""


class NewcomerLane:
    """The newest message of each author that waits for a peer; an author keeps its turn."""

    def __init__(self) -> None:
        self._waiting: dict[PeerId, _Waiting] = {}

    @property
    def size_bytes(self) -> int:
        """What waits for the peer for which most does."""
        return max((waiting.size_bytes for waiting in self._waiting.values()), default=0)

    def add(self, message: Message, peers: Collection[PeerId]) -> None:
        """Let a message wait for ``peers``; what its author said before waits no longer."""
        for peer in peers:
            self._waiting.setdefault(peer, _Waiting()).add(message)

    def drop(self, peer: PeerId, message: Message) -> None:
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
        self._messages: dict[bytes, Message] = {}
        self.size_bytes = 0

    def add(self, message: Message) -> None:
        before = self._messages.get(message.source)
        self._messages[message.source] = message  # in the place of the one before
        self.size_bytes += len(message.encoded) - (0 if before is None else len(before.encoded))
        while self.size_bytes > LANE_WAITING_BYTES_MAX:
            self._remove(next(iter(self._messages.values())))

    def drop(self, message: Message) -> None:
        held = self._messages.get(message.source)
        if held is not None and held.seqno == message.seqno:
            self._remove(held)

    def take(self) -> tuple[bytes, ...]:
        """Remove and return the first messages: at least one, then up to ``LANE_BYTES``."""
        taken: list[Message] = []
        size = 0
        for message in self._messages.values():
            size += len(message.encoded)
            if taken and size > LANE_BYTES:
                break
            taken.append(message)
        for message in taken:
            self._remove(message)
        return tuple(message.encoded for message in taken)

    def _remove(self, message: Message) -> None:
        del self._messages[message.source]
        self.size_bytes -= len(message.encoded)
