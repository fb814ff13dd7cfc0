"""Fuzzer interfaces: a target starts a session, and a session takes inputs.

An input is bytes, so one file repeats any crash. A lasting session keeps the state that earlier
inputs left: a replica, a router, a daemon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.fuzz.mutation import mutated_bytes

INPUT_BYTES_MAX = 64 * 1024
GROWTH_BYTES_MAX = 64 << 20
"""Memory growth allowed for one input, unless a documented limit allows more."""


class BrokenBoundError(AssertionError):
    """A table exceeds its limit, a response is wrong, or a task does not end."""


class Session(Protocol):
    """Takes inputs one after another."""

    def draw(self, rng: Random) -> bytes:
        """Return the next input."""

    def take(self, data: bytes) -> bool:
        """Process an input; True if it was accepted. Any exception is a crash."""

    def check(self) -> None:
        """Check the state that all inputs have left; raises ``BrokenBoundError``."""

    def close(self) -> None:
        """Release the session's resources."""


@dataclass(frozen=True, slots=True)
class Target:
    """``covers`` names message kinds (``message:…``) and stream protocols (``stream:…``)."""

    name: str
    start: Callable[[], Session]
    covers: tuple[str, ...] = ()
    lasting: int = 0
    """Inputs that share one session and are needed to repeat a crash; 0: each is independent."""
    growth_bytes_max: int = GROWTH_BYTES_MAX


@dataclass(slots=True)
class Decoder:
    """A stateless session: ``read`` returns True for accepted bytes, or raises a refusal.

    ``remake`` mutates a valid value and encodes it again, so that it passes the outer checks.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes], bool]
    refusals: tuple[type[Exception], ...] = ()
    remake: Sequence[Callable[[Random], bytes]] = ()
    bytes_max: int = field(default=INPUT_BYTES_MAX)

    def draw(self, rng: Random) -> bytes:
        """Return a seed with mutated bytes, or another value."""
        if self.remake and rng.random() < 0.6:
            data = rng.choice(self.remake)(rng)
            if rng.random() < 0.8:
                return data[: self.bytes_max]
        else:
            data = rng.choice(self.seeds)
        return mutated_bytes(data, rng, self.seeds, self.bytes_max)

    def take(self, data: bytes) -> bool:
        try:
            return self.read(data)
        except self.refusals:
            return False

    def check(self) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """Do nothing."""
