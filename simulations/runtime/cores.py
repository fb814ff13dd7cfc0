"""CPU model of a machine: one core that handles all incoming messages in order.

A daemon reads the next message when the core has finished the earlier ones. So a flooded node
answers late, and its peers' windows fill. Opened streams wait in the accept queue of the socket to
p2pd. The daemon's loop drains that queue before it reads again, so a read waits for one queue at
most. If the queue is full p2pd resets the stream, at no cost to the daemon. Timers and engines have
cores of their own.
"""

from collections import deque

from protocol.core.faults import Fault
from protocol.gossipsub.rpc import Rpc, RpcDecoder, decode_rpc
from simulations.runtime.loop import VirtualLoop

READ_SECONDS = 30e-6
"""One read from a stream and its processing without signatures. A new gossiped message takes 22 us
in the router (``benchmarks/handling.py``); the rest, a wake-up of the reading task, is a guess."""

BYTE_SECONDS = 3.5e-9
"""Per decoded byte, such as message ids; ``benchmarks/handling.py`` measured 3.4 us for 1000."""

OPEN_SECONDS = 200e-6
"""A stream opened by a peer. ``benchmarks/opening.py`` measured 190 us in batches of fifty and 350
us one at a time. p2pd takes half as much again, on cores of its own here."""

FIELD_BYTES_MIN = 2
"""A tag and a value: a malformed RPC is charged for at most this many fields."""

FIELD_SECONDS = 0.8e-6
"""Per field of gossip control; ``benchmarks/handling.py`` measured 0.8 us."""

SIGNATURE_SECONDS = 70e-6
"""One Ed25519 check; ``benchmarks/handling.py`` measured 68 us."""

REVEAL_SECONDS = 1.6e-3
"""One check of a verifiable random output, as measured."""

OPENS_WAITING_MAX = 100
"""asyncio's listen backlog; a live node with a blocked loop accepted 101 of 300."""

LATE_SECONDS_MIN = 0.005
"""Less work runs at once, which saves the timers of an idle core. A guess, far below the seconds of
delay of a flood, and below the latency between machines."""

BULK = ("blobs",)
"""Protocols whose bytes are hashed and written beside the loop, not decoded."""


class Core:
    """The core of one machine that handles messages."""

    __slots__ = ("_free_at", "_loop", "_opens", "spent_seconds")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self._opens: deque[float] = deque()
        """Time at which each waiting stream is opened, if no other work comes first."""
        self.spent_seconds = 0.0
        """Total since the start."""

    def spend(self, seconds: float) -> None:
        """Queue work behind all that is waiting."""
        self.spent_seconds += seconds
        now, free_at = self._loop.now, self._free_at
        begins = free_at if free_at > now else now  # noqa: FURB136 - a call for every message
        self._free_at = begins + seconds

    def open(self) -> float | None:
        """Queue the opening of a stream; return its delay in seconds, None if the queue is full."""
        now, opens = self._loop.now, self._opens
        while opens and opens[0] <= now:
            opens.popleft()
        if len(opens) > OPENS_WAITING_MAX:
            return None
        self.spent_seconds += OPEN_SECONDS
        opens.append(max(now, self._free_at, opens[-1] if opens else now) + OPEN_SECONDS)
        return _worth_waiting(opens[-1] - now)

    @property
    def late_seconds(self) -> float:
        """Seconds that a read waits for earlier work; 0 below ``LATE_SECONDS_MIN``."""
        return _worth_waiting(self._free_at - self._loop.now)

    @property
    def turn_seconds(self) -> float:
        """Seconds that a read waits, once, for the streams that are being opened."""
        if not self._opens:
            return 0.0
        seconds = self._opens[-1] - max(self._loop.now, self._free_at)
        return _worth_waiting(min(seconds, OPENS_WAITING_MAX * OPEN_SECONDS))


def _worth_waiting(seconds: float) -> float:
    return seconds if seconds > LATE_SECONDS_MIN else 0.0


def charged(core: Core) -> RpcDecoder:
    """Return the RPC decoder of one node, which charges its core for each field.

    The charge falls at the time of reading, so bytes that wait in a stream cost nothing yet. The
    node's clock shows it which peers send slow RPCs.
    """

    def decode(data: bytes) -> Rpc | Fault:
        rpc = decode_rpc(data)
        fields = len(data) // FIELD_BYTES_MIN if isinstance(rpc, Fault) else rpc.fields_read
        core.spend(FIELD_SECONDS * fields)
        return rpc

    return decode
