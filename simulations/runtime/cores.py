"""What it costs a machine to handle what comes in: one core, on which all of it waits its turn.

A daemon reads the next message when the core has done with those before. So who is flooded answers
late, and its peers' windows fill. Streams that are opened wait in a queue of the socket at which
p2pd hands them over. The daemon's loop takes what is there of them and then reads again, so what is
read waits for one such queue at most; when it is full p2pd resets the stream, which takes nothing
of the daemon. Nothing else waits: timers and engines have cores of their own.
"""

from collections import deque

from simulations.runtime.loop import VirtualLoop

READ_SECONDS = 30e-6
"""One read from a stream and what follows but signatures: a new gossiped message takes 22 us in the
router (``benchmarks/handling.py``); the rest, a wake-up of the task that reads, is a guess."""

BYTE_SECONDS = 3.5e-9
"""Of what is decoded, as ids of messages are; ``benchmarks/handling.py`` found 3.4 us for 1000."""

OPEN_SECONDS = 200e-6
"""A stream that a peer opens, whatever becomes of it; ``benchmarks/opening.py`` found 190 us where
fifty come at once, 350 where each comes alone, and half as much again of p2pd, which has cores of
its own here."""

FIELD_SECONDS = 0.8e-6
"""Of gossip's control, many to a kilobyte; ``benchmarks/handling.py`` found 0.8 us."""

SIGNATURE_SECONDS = 70e-6
"""One Ed25519 check; ``benchmarks/handling.py`` found 68 us."""

OPENS_WAITING_MAX = 100
"""What asyncio asks for when it listens; a live node whose loop was held up took 101 of 300."""

LATE_SECONDS_MIN = 0.005
"""Less work than this is done at once, which spares the timers of an idle core: a guess, far below
the seconds by which a flood delays, and below the way from one machine to another."""

BULK = ("blobs",)
"""Protocols whose bytes are not decoded but hashed and written, beside the loop."""


class Core:
    """The core of one machine that handles messages."""

    __slots__ = ("_free_at", "_loop", "_opens", "spent_seconds")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self._opens: deque[float] = deque()
        """When each of the streams that wait is opened, if nothing else is to be done before."""
        self.spent_seconds = 0.0
        """Since the start."""

    def spend(self, seconds: float) -> None:
        """Have something done after all that is waiting."""
        self.spent_seconds += seconds
        now, free_at = self._loop.now, self._free_at
        begins = free_at if free_at > now else now  # noqa: FURB136 - a call for every message
        self._free_at = begins + seconds

    def open(self) -> float | None:
        """Have a stream opened; return after how many seconds it is, None when too many wait."""
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
        """For how long something to read has to wait for what came before.

        0 when that is not worth a timer.
        """
        return _worth_waiting(self._free_at - self._loop.now)

    @property
    def turn_seconds(self) -> float:
        """For how long it has to wait, once, for the streams that are being opened."""
        if not self._opens:
            return 0.0
        seconds = self._opens[-1] - max(self._loop.now, self._free_at)
        return _worth_waiting(min(seconds, OPENS_WAITING_MAX * OPEN_SECONDS))


def _worth_waiting(seconds: float) -> float:
    return seconds if seconds > LATE_SECONDS_MIN else 0.0
