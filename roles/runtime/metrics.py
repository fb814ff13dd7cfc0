"""Metrics of roles: duration histograms, trainer busy time, and policy swap latency.

Policy swap latency is the time from a version's manifest to the first token of its policy. It is
the sum of the weight download, the last sequences of the old policy, the swap, and the first step
of the new policy. The first policy of an engine is excluded: it belongs to the engine's start.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from protocol.core.types import Version
from roles.ports.engines import FirstToken

GENERATION_BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0, 1800.0)
"""Seconds: a testnet rollout takes about 1 s, one with long answers on a GPU takes minutes."""

CHECK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0)
"""Seconds: a check is one prefill, many times faster than the generation."""


class Histogram:
    """Histogram of durations: ``counts`` per bucket, the last one without an upper bound.

    Bounds are inclusive; ``seconds`` is the sum of all durations.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class BusyTime:
    """Busy time of a trainer's engine."""

    began_at: float | None = None
    """Begin of the first step, in unix seconds."""
    seconds: float = 0.0

    @contextmanager
    def part(self, now: float) -> Iterator[None]:
        """Count the time of a block that begins at ``now``, unless it raises."""
        time = asyncio.get_running_loop().time
        began_at = time()
        yield
        self.seconds += time() - began_at
        if self.began_at is None:
            self.began_at = now


@dataclass(frozen=True, slots=True)
class RolloutHistograms:
    """Durations of this node's work on rollouts, since its start."""

    generations: Histogram = field(default_factory=lambda: Histogram(GENERATION_BOUNDS))
    """Own rollouts: from the start to the last token, batched with others in the engine."""
    checks: Histogram = field(default_factory=lambda: Histogram(CHECK_BOUNDS))
    """Checks of rollouts, without the fetch of the body and the wait for the engine."""
    steps: BusyTime = field(default_factory=BusyTime)


SWAPS_KEPT = 32

SWAP_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)
"""Bucket bounds of the policy swap latency, in seconds."""


@dataclass(frozen=True, slots=True)
class PolicySwap:
    """Swap latency of one version, in seconds since its manifest arrived.

    It has three points: weights downloaded, policy swapped in, first token (None until known).
    """

    version: int
    weights_seconds: float
    swapped_seconds: float
    first_token_seconds: float | None = None


class PolicySwapLatency:
    """Swap latencies of the newest ``SWAPS_KEPT`` versions, by the node's clock."""

    def __init__(self) -> None:
        self._here_at: tuple[int, float] = (-1, 0.0)
        self._last: deque[PolicySwap] = deque(maxlen=SWAPS_KEPT)
        self.durations = Histogram(SWAP_BOUNDS)
        """Seconds to the first token."""

    @property
    def newest(self) -> PolicySwap | None:
        """Newest version that was swapped in."""
        return self._last[-1] if self._last else None

    @property
    def median_seconds(self) -> float | None:
        """Median time to the first token, over the kept versions."""
        known = [
            one.first_token_seconds for one in self._last if one.first_token_seconds is not None
        ]
        return median(known) if known else None

    def arrived(self, version: int, now: float) -> None:
        """Record the newest version whose weights are complete."""
        if version > self._here_at[0]:
            self._here_at = version, now

    def swapped(self, version: int, known_at: float, now: float) -> None:
        """Record that the engine swapped to a version whose manifest arrived at ``known_at``."""
        here_version, here_at = self._here_at
        weights_at = here_at if here_version == version else now
        self._last.append(PolicySwap(version, weights_at - known_at, now - known_at))

    def sampled(self, version: int, seconds: float) -> None:
        """Record the seconds from a version's swap to its first token; idempotent."""
        newest = self.newest
        if newest is None or newest.version != version or newest.first_token_seconds is not None:
            return
        total = newest.swapped_seconds + seconds
        self._last[-1] = replace(newest, first_token_seconds=total)
        self.durations.add(total)


class FirstTokenWatch:
    """Timer, called from any thread; ``found`` is the result for the last load."""

    def __init__(self) -> None:
        self.found: FirstToken | None = None
        self._awaited: tuple[Version, float, Callable[[], float]] | None = None

    def loaded(self, version: Version, now: Callable[[], float]) -> None:
        """Record a load that ends now."""
        self.found, self._awaited = None, (version, now(), now)

    def sampled(self) -> None:
        """Record that the loaded policy has produced tokens."""
        if self._awaited is not None:
            version, loaded_at, now = self._awaited
            self.found, self._awaited = FirstToken(version, now() - loaded_at), None
