"""How long things took, told apart by bounds: what a histogram is made of.

How soon a new version is in use here: from its manifest to the first token of its policy.

Where the time goes: weights on their way, sequences of the old policy that end first, the swap, and
the first step of the new one. The first policy of an engine is not counted: that is its start.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

GENERATION_BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0, 1800.0)
"""Seconds: a rollout of a testnet takes about one, one of long answers on a GPU minutes."""

CHECK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0)
"""Seconds: a check is one prefill, many times faster than the generation that it repeats."""


class Histogram:
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
class BusyTime:
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
class RolloutHistograms:
    """What one node did with rollouts, since its start."""

    generations: Histogram = field(default_factory=lambda: Histogram(GENERATION_BOUNDS))
    """Of own rollouts: from their beginning to their last token, beside others in the engine."""
    checks: Histogram = field(default_factory=lambda: Histogram(CHECK_BOUNDS))
    """Of what was judged: without the fetch of the body, and without the wait for our turn."""
    steps: BusyTime = field(default_factory=BusyTime)
    """Of a trainer: what it learned from them."""


UPTAKES_KEPT = 32

UPTAKE_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)
"""Seconds by which uptakes are told apart."""


@dataclass(frozen=True, slots=True)
class PolicySwap:
    """One version, in seconds since its manifest was known: weights here, swapped in, first token.

    The last is None until it is known.
    """

    version: int
    weights_seconds: float
    swapped_seconds: float
    first_token_seconds: float | None = None


class PolicySwapLatency:
    """The last versions that this node went over to; times are those of the node's clock."""

    def __init__(self) -> None:
        self._here_at: tuple[int, float] = (-1, 0.0)
        self._last: deque[PolicySwap] = deque(maxlen=UPTAKES_KEPT)
        self.durations = Histogram(UPTAKE_BOUNDS)
        """Until first tokens."""

    @property
    def newest(self) -> PolicySwap | None:
        """The newest version that was swapped in."""
        return self._last[-1] if self._last else None

    @property
    def median_seconds(self) -> float | None:
        """Until the first token, over those that are kept."""
        known = [
            one.first_token_seconds for one in self._last if one.first_token_seconds is not None
        ]
        return median(known) if known else None

    def arrived(self, version: int, now: float) -> None:
        """Note the newest version whose weights are here."""
        if version > self._here_at[0]:
            self._here_at = version, now

    def swapped(self, version: int, known_at: float, now: float) -> None:
        """Note that the engine has gone over to a version whose manifest was known at a time."""
        here_version, here_at = self._here_at
        weights_at = here_at if here_version == version else now
        self._last.append(PolicySwap(version, weights_at - known_at, now - known_at))

    def sampled(self, version: int, seconds: float) -> None:
        """Note for how long a version had been swapped in at its first token; idempotent."""
        newest = self.newest
        if newest is None or newest.version != version or newest.first_token_seconds is not None:
            return
        total = newest.swapped_seconds + seconds
        self._last[-1] = replace(newest, first_token_seconds=total)
        self.durations.add(total)
