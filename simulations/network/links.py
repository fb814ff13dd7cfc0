"""Access lines, their traffic meters, and one direction of a connection between two lines.

Capacity is shared without simulating packets: a write queues on the sender's line and then on the
receiver's. A stream may have one window of bytes in flight, so streams with much to send get equal
shares. A stream that is blocked elsewhere leaves its share to the others: max-min fairness with the
granularity of a window. Small writes overtake large ones on both lines, as under fair queueing, and
still use their capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from roles.ports.clock import Clock
from simulations.runtime.cores import Core
from simulations.runtime.loop import START, VirtualLoop

SMALL_BYTES = 4096
"""Writes up to this size are control messages: one event, and no queueing behind bulk."""


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
    """Byte counts of one protocol on one machine."""

    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class Line:
    """One direction of a machine's access line."""

    bytes_per_second: float
    free_at: float = 0.0
    """Time at which the present queue has passed."""
    small_free_at: float = 0.0

    def pass_small(self, now: float, size: int) -> float:
        """Queue a small write; return when it has passed."""
        seconds = size / self.bytes_per_second
        small_free_at, free_at = self.small_free_at, self.free_at
        # ``max`` costs several times as much, and this runs for every write.
        begins = small_free_at if small_free_at > now else now  # noqa: FURB136 - see above
        self.small_free_at = passed = begins + seconds
        begins = free_at if free_at > now else now  # noqa: FURB136 - see above
        self.free_at = begins + seconds
        return passed

    def pass_bulk(self, begins: float, ends: float, size: int) -> float:
        """Queue a write that arrives between ``begins`` and ``ends``; return when it has passed.

        A line at least as fast as its source adds no delay (cut-through).
        """
        self.free_at = max(ends, max(self.free_at, begins) + size / self.bytes_per_second)
        return self.free_at


@dataclass(slots=True, eq=False)
class LinkPath:
    """One direction of a connection, as its streams see it."""

    source: str
    target: str
    up: Line
    down: Line
    delay: Callable[[], float]
    """Draws the one-way delay of a write, in seconds."""
    pace_bytes_per_second: float
    """Maximum rate of a stream; 0 if only the lines limit it."""
    cut: bool = False
    """True while bytes have to wait."""
