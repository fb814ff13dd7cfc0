"""The machine's side of the network: its two lines, its place, its clock, and what it carried.

Capacity is shared without simulating packets. A write of a stream takes its turn on the sender's
line and then on the receiver's; because each stream may have one window of bytes on its way and no
more, the turns of streams that all have much to send go round, which gives each an equal share, and
a stream that is held up elsewhere leaves its share to the others: max-min fairness, to the grain of
a window. Small writes overtake large ones on both lines, as they do wherever flows are queued
fairly, and still take their capacity from them.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.types import PeerId
from simulations.runtime.loop import START, VirtualLoop

if TYPE_CHECKING:
    from simulations.network.connections import Connection

SMALL_BYTES = 4096
"""Writes up to here are control: one event, and no waiting behind bulk."""


class SimClock:
    """The ``Clock`` port: virtual time as unix seconds, off by ``skew_seconds``."""

    def __init__(self, loop: VirtualLoop, skew_seconds: float = 0.0) -> None:
        self._loop = loop
        self.skew_seconds = skew_seconds

    def now(self) -> float:
        """Return unix seconds as this machine believes them."""
        return START + self._loop.time() + self.skew_seconds


@dataclass(slots=True)
class Meter:
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
        self.small_free_at = max(self.small_free_at, now) + seconds
        self.free_at = max(self.free_at, now) + seconds
        return self.small_free_at

    def pass_bulk(self, begins: float, ends: float, size: int) -> float:
        """Queue a write that comes in between ``begins`` and ``ends``; return when it has passed.

        A line that is as fast as what feeds it adds nothing (cut-through).
        """
        self.free_at = max(ends, max(self.free_at, begins) + size / self.bytes_per_second)
        return self.free_at


@dataclass(slots=True, eq=False)
class Host:
    """A machine on the network, whether its daemon runs or not."""

    name: str
    peer_id: PeerId
    region: str
    up: Line
    down: Line
    nat: bool
    clock: SimClock
    stalled: bool = False
    meters: dict[str, Meter] = field(default_factory=dict)
    connections: "dict[PeerId, Connection]" = field(default_factory=dict)
    """By the other end, oldest first."""

    def meter(self, protocol: str) -> Meter:
        """Return the meter of a protocol."""
        return self.meters.setdefault(protocol, Meter())
