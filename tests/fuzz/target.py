"""What is fuzzed: a target makes a session, and a session takes inputs.

An input is bytes, whatever the target makes of them, so that one file repeats any crash. A session
that lasts keeps what earlier inputs left: a replica, a router, a daemon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.fuzz.mutation import mutated_bytes

INPUT_BYTES_MAX = 64 * 1024
GROWTH_BYTES_MAX = 64 << 20
"""What one input may make a process grow by, unless a limit that is written down allows more."""


class BrokenBoundError(AssertionError):
    """A table is fuller than its limit, an answer is wrong, or something does not end."""


class Session(Protocol):
    """Takes inputs one after another."""

    def draw(self, rng: Random) -> bytes:
        """Return the next input."""

    def take(self, data: bytes) -> bool:
        """Handle an input; True when it was accepted. Whatever it raises is a crash."""

    def check(self) -> None:
        """Look at what all the inputs have left; raises ``BrokenBoundError``."""

    def close(self) -> None:
        """Let go of what the session holds."""


@dataclass(frozen=True, slots=True)
class Target:
    """``covers`` names message kinds (``message:…``) and stream protocols (``stream:…``)."""

    name: str
    start: Callable[[], Session]
    covers: tuple[str, ...] = ()
    lasting: int = 0
    """So many inputs share one session, and are needed to repeat a crash; 0: each stands alone."""
    growth_bytes_max: int = GROWTH_BYTES_MAX


@dataclass(slots=True)
class Decoder:
    """A session without a state: ``read`` tells whether it accepts, or raises a refusal.

    ``remake`` changes a valid value and encodes it again, so that it passes the outer checks.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], bool]
    refusals: tuple[type[Exception], ...] = ()
    remake: Sequence[Callable[[Random], bytes]] = ()
    bytes_max: int = field(default=INPUT_BYTES_MAX)

    def draw(self, rng: Random) -> bytes:
        """Return a seed with other bytes, or another value."""
        if self.remake and rng.random() < 0.6:
            data = rng.choice(self.remake)(rng)
            if rng.random() < 0.8:
                return data[: self.bytes_max]
        else:
            data = rng.choice(self.seeds)
        return mutated_bytes(data, rng, self.seeds, self.bytes_max)

    def take(self, data: bytes) -> bool:
        """Read an input."""
        try:
            return self.read(data)
        except self.refusals:
            return False

    def check(self) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """Do nothing."""
