"""Bounded outbound queue of a peer: a push never blocks, and drops by priority."""

from collections import deque

from protocol.gossipsub.events import Priority


class SendQueue:
    """Frames by priority; over a limit the oldest of the least important class is dropped."""

    def __init__(self, frames_max: int, bytes_max: int) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._lanes: dict[Priority, deque[bytes]] = {priority: deque() for priority in Priority}
        self._frames = 0
        self.size_bytes = 0
        """Bytes of the queued frames."""

    def __len__(self) -> int:
        return self._frames

    @property
    def crowded(self) -> bool:
        """True if the queue is at least half full, so that senders which can wait should."""
        return 2 * self._frames >= self._frames_max or 2 * self.size_bytes >= self._bytes_max

    def push(self, frame: bytes, priority: Priority) -> int:
        """Queue ``frame`` and return the number of dropped frames, possibly including it."""
        self._lanes[priority].append(frame)
        self._frames += 1
        self.size_bytes += len(frame)
        dropped = 0
        while self._frames > self._frames_max or self.size_bytes > self._bytes_max:
            least = next(lane for lane in reversed(self._lanes.values()) if lane)
            self._forget(least.popleft())
            dropped += 1
        return dropped

    def take(self, bytes_max: int) -> list[bytes]:
        """Remove frames, most important first: at least one if any, then up to ``bytes_max``."""
        taken: list[bytes] = []
        size = 0
        for lane in self._lanes.values():
            while lane and (not taken or size + len(lane[0]) <= bytes_max):
                frame = lane.popleft()
                self._forget(frame)
                taken.append(frame)
                size += len(frame)
            if lane:
                break
        return taken

    def _forget(self, frame: bytes) -> None:
        self._frames -= 1
        self.size_bytes -= len(frame)
