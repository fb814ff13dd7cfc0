"""How long things took, told apart by bounds: what a histogram is made of."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

GENERATION_BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0, 1800.0)
"""Seconds: a rollout of a testnet takes about one, one of long answers on a GPU minutes."""

CHECK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0)
"""Seconds: a check is one prefill, many times faster than the generation that it repeats."""


class Durations:
    """How long something took: ``counts`` up to each of ``bounds``, and the longer ones last.

    A duration that equals a bound belongs to it; ``seconds`` are the sum of all.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class Steps:
    """For how long a trainer's engine was in steps."""

    began_at: float | None = None
    """When the first one began, in unix seconds."""
    seconds: float = 0.0

    @contextmanager
    def part(self, now: float) -> Iterator[None]:
        """Count what the engine does meanwhile, from ``now`` on; not what fails."""
        time = asyncio.get_running_loop().time
        began_at = time()
        yield
        self.seconds += time() - began_at
        if self.began_at is None:
            self.began_at = now


@dataclass(frozen=True, slots=True)
class RolloutDurations:
    """What one node did with rollouts, since its start."""

    generations: Durations = field(default_factory=lambda: Durations(GENERATION_BOUNDS))
    """Of own rollouts: from their beginning to their last token, beside others in the engine."""
    checks: Durations = field(default_factory=lambda: Durations(CHECK_BOUNDS))
    """Of what was judged: without the fetch of the body, and without the wait for our turn."""
    steps: Steps = field(default_factory=Steps)
    """Of a trainer: what it learned from them."""
