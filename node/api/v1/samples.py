"""Bounded time series of counters over the lifetime of a node.

When it is full, every second sample is dropped and the interval doubles. Counters only grow, so the
rate between any two remaining samples stays exact.
"""

from collections import deque
from dataclasses import dataclass, fields

from node.api.status import Counters
from node.api.v1.answers import SampleHistory

SAMPLES_MAX = 720
"""About the pixel width of a chart; reached after 12 minutes at one sample a second. 0.2 MB."""

RECENT_SECONDS = 60
EARLY_SECONDS = 0.25
"""Tolerance of early samples: the next one is most of a second later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSample(Counters):
    """Counters up to ``at``; ``looks_idle`` counts the samples at which the trainer waited."""

    at: float
    looks: int
    looks_idle: int
    loop_delay_seconds: float
    rss_bytes: int


COLUMNS = tuple(field.name for field in fields(ResourceSample) if field.name != "at")


class ResourceSamples:
    """The samples of one node."""

    def __init__(self, interval_seconds: float = 1.0, samples_max: int = SAMPLES_MAX) -> None:
        self._interval_seconds = interval_seconds
        self._samples_max = samples_max
        self._kept: list[ResourceSample] = []
        self._recent: deque[ResourceSample] = deque(maxlen=RECENT_SECONDS + 1)

    def note(self, sample: ResourceSample) -> None:
        """Add a sample; it is kept if the last kept one is an interval old."""
        self._recent.append(sample)
        if self._kept and sample.at < self._kept[-1].at + self._interval_seconds - EARLY_SECONDS:
            return
        self._kept.append(sample)
        if len(self._kept) > self._samples_max:
            self._kept = self._kept[::2]
            self._interval_seconds *= 2

    @property
    def certified_per_minute(self) -> float | None:
        """Rate over the last minute; None with fewer than two samples."""
        first, last = self._ends()
        if first is None or last is None or last.at <= first.at:
            return None
        return 60 * max(0, last.certified - first.certified) / (last.at - first.at)

    @property
    def trainer_idle_share(self) -> float | None:
        """Idle fraction over all kept samples; None before the first sample of a trainer."""
        if not self._kept or self._kept[-1].looks <= self._kept[0].looks:
            return None
        first, last = self._kept[0], self._kept[-1]
        return (last.looks_idle - first.looks_idle) / (last.looks - first.looks)

    def _ends(self) -> tuple[ResourceSample | None, ResourceSample | None]:
        return (self._recent[0], self._recent[-1]) if self._recent else (None, None)

    def history(self) -> SampleHistory:
        """Return the kept samples by column."""
        kept = self._kept
        columns = {name: tuple(getattr(one, name) for one in kept) for name in COLUMNS}
        return SampleHistory(self._interval_seconds, tuple(one.at for one in kept), columns)
