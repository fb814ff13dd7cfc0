"""Access lines, what passed over them, and one direction of a connection between two.

Capacity is shared without simulating packets: a write takes its turn on the sender's line and then
on the receiver's. Each stream may have one window of bytes on its way, so streams that all have
much to send get equal shares, and one that is held up elsewhere leaves its share to the others:
max-min fairness, to the grain of a window. Small writes overtake large ones on both lines, as where
flows are queued fairly, and still take their capacity from them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from roles.ports.clock import Clock
from simulations.runtime.cores import Core
from simulations.runtime.loop import START, VirtualLoop

SMALL_BYTES = 4096
"""Writes up to here are control: one event, and no waiting behind bulk."""


class SimClock(Clock):
    """The ``Clock`` port: unix seconds of virtual time, off by ``skew_seconds``."""

    def __init__(self, loop: VirtualLoop, core: Core, skew_seconds: float = 0.0) -> None:
        self._loop = loop
        self._core = core
        self.skew_seconds = skew_seconds

    @override
    def now(self) -> float:
        return START + self._loop.now + self.skew_seconds

    @override
    def core_seconds(self) -> float:
        return self._core.spent_seconds


@dataclass(slots=True)
class LineMeter:
    """Bytes of one protocol through one machine."""

    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class Line:
    """One direction of a machine's access line."""

    bytes_per_second: float
    free_at: float = 0.0
    """When what is queued will have passed."""
    small_free_at: float = 0.0

    def pass_small(self, now: float, size: int) -> float:
        """Queue a small write; return when it has passed."""
        seconds = size / self.bytes_per_second
        small_free_at, free_at = self.small_free_at, self.free_at
        # Not by ``max``, which costs several times as much: this is done for every write.
        begins = small_free_at if small_free_at > now else now  # noqa: FURB136 - see above
        self.small_free_at = passed = begins + seconds
        begins = free_at if free_at > now else now  # noqa: FURB136 - see above
        self.free_at = begins + seconds
        return passed

    def pass_bulk(self, begins: float, ends: float, size: int) -> float:
        """Queue a write that comes in between ``begins`` and ``ends``; return when it has passed.

        A line that is as fast as what feeds it adds nothing (cut-through).
        """
        self.free_at = max(ends, max(self.free_at, begins) + size / self.bytes_per_second)
        return self.free_at


@dataclass(slots=True, eq=False)
class LinkPath:
    """One direction of a connection, as the streams on it see it."""

    source: str
    target: str
    """The names of the two machines."""
    up: Line
    """The sender's."""
    down: Line
    """The receiver's."""
    delay: Callable[[], float]
    """Draws the seconds that a write is under way."""
    pace_bytes_per_second: float
    """The most that a stream can send; 0 where only the lines limit it."""
    cut: bool = False
    """Whether bytes have to wait."""
