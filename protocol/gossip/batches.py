"""Messages that wait a little before they are relayed, and leave together.

While one waits, peers that have it send it to us, and those are not sent it back: a wait that is
long beside a round trip saves most duplicates. What is urgent for nobody, such as members' records,
waits for the heartbeat, and one RPC per mesh peer carries all of it.
"""

from collections.abc import Iterable

from protocol.containers import BoundedDict
from protocol.types import PeerId

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
        """Tell whether a message came since the last ``take_fresh``."""
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
