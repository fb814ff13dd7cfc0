"""Caches of seen message ids (deduplication) and of servable messages (IHAVE and IWANT)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId


class SeenCache:
    """Message ids of the last ``ttl_seconds``, at most ``entries_max``; the oldest are evicted."""

    def __init__(self, ttl_seconds: float, entries_max: int) -> None:
        self._ttl_seconds = ttl_seconds
        self._expires_at = BoundedDict[bytes, float](entries_max, "seen")
        self.tables = (self._expires_at,)

    def __len__(self) -> int:
        return len(self._expires_at)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._expires_at

    def unseen(self, message_ids: Iterable[bytes]) -> list[bytes]:
        """Return the ids that are not in the cache."""
        seen = self._expires_at
        return [message_id for message_id in message_ids if message_id not in seen]

    def add(self, message_id: bytes, now: float) -> None:
        """Add a new id; a repeat does not extend its lifetime."""
        self._expires_at.setdefault(message_id, now + self._ttl_seconds)

    def expire(self, now: float) -> None:
        """Remove expired ids, oldest first."""
        for message_id, _ in list(takewhile(lambda item: item[1] <= now, self._expires_at.items())):
            del self._expires_at[message_id]


@dataclass(slots=True)
class _Entry:
    topic: str
    encoded: bytes
    serves: dict[PeerId, int] = field(default_factory=dict)


class MessageCache:
    """Encoded messages of the last heartbeats, in windows; bounded in bytes."""

    def __init__(self, history_windows: int, gossip_windows: int, bytes_max: int) -> None:
        self._gossip_windows = gossip_windows
        self._bytes_max = bytes_max
        self.size_bytes = 0
        """Bytes of the stored messages."""
        self._entries: dict[bytes, _Entry] = {}
        self._windows: list[list[bytes]] = [[] for _ in range(history_windows)]
        """Newest first; an evicted id stays until its window ends."""

    def put(self, message_id: bytes, topic: str, encoded: bytes) -> None:
        """Store a message in the newest window; evict the oldest if there is no room."""
        if message_id in self._entries or len(encoded) > self._bytes_max:
            return
        self._entries[message_id] = _Entry(topic, encoded)
        self._windows[0].append(message_id)
        self.size_bytes += len(encoded)
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def serve(self, message_id: bytes, peer: PeerId, serves_max: int) -> bytes | None:
        """Return an encoded message; None if it is gone or ``peer`` had it ``serves_max`` times."""
        entry = self._entries.get(message_id)
        if entry is None or entry.serves.get(peer, 0) >= serves_max:
            return None
        entry.serves[peer] = entry.serves.get(peer, 0) + 1
        return entry.encoded

    def gossip_ids(self) -> dict[str, list[bytes]]:
        """Return the ids to advertise, by topic."""
        by_topic: dict[str, list[bytes]] = {}
        for window in self._windows[: self._gossip_windows]:
            for message_id in window:
                entry = self._entries.get(message_id)
                if entry is not None:
                    by_topic.setdefault(entry.topic, []).append(message_id)
        return by_topic

    def shift(self) -> None:
        """Open a new window and forget the oldest."""
        for message_id in self._windows.pop():
            self._drop(message_id)
        self._windows.insert(0, [])

    def _drop(self, message_id: bytes) -> None:
        entry = self._entries.pop(message_id, None)
        if entry is not None:
            self.size_bytes -= len(entry.encoded)
