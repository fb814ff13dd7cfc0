"""What it costs a machine to handle what comes in: one core, on which all of it waits its turn.

A daemon reads the next message when the core has done with those before. So who is flooded answers
late, and its peers' windows fill. Nothing else waits: timers and engines have cores of their own.
"""

from simulations.runtime.loop import VirtualLoop

READ_SECONDS = 30e-6
"""One read from a stream and what follows but signatures: a new gossiped message takes 22 us in the
router (``benchmarks/handling.py``); the rest, a wake-up of the task that reads, is a guess."""

BYTE_SECONDS = 3.5e-9
"""Of what is decoded, as ids of messages are; ``benchmarks/handling.py`` found 3.4 us for 1000."""

OPEN_SECONDS = 300e-6
"""A stream that a peer opens, whatever becomes of it; ``benchmarks/opening.py``: 200 to 400 us,
and 300 to 500 of p2pd, which has cores of its own here."""

FIELD_SECONDS = 0.8e-6
"""Of gossip's control, many to a kilobyte; ``benchmarks/handling.py`` found 0.8 us."""

SIGNATURE_SECONDS = 70e-6
"""One Ed25519 check; ``benchmarks/handling.py`` found 68 us."""

LATE_SECONDS_MIN = 0.005
"""Less work than this is done at once, which spares the timers of an idle core: a guess, far below
the seconds by which a flood delays, and below the way from one machine to another."""

BULK = ("blobs",)
"""Protocols whose bytes are not decoded but hashed and written, beside the loop."""


class Core:
    """The core of one machine that handles messages."""

    __slots__ = ("_free_at", "_loop", "spent_seconds")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self.spent_seconds = 0.0
        """Since the start."""

    def spend(self, seconds: float) -> None:
        """Have something done after all that is waiting."""
        self.spent_seconds += seconds
        now, free_at = self._loop.now, self._free_at
        begins = free_at if free_at > now else now  # noqa: FURB136 - a call for every message
        self._free_at = begins + seconds

    @property
    def late_seconds(self) -> float:
        """For how long something that comes now has to wait; 0 when that is not worth a timer."""
        seconds = self._free_at - self._loop.now
        return seconds if seconds > LATE_SECONDS_MIN else 0.0
