"""A machine shared by jobs: each of ``n`` jobs gets ``1 / n`` of the rate for ``n`` jobs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from node.network.streams.deadline import loop_time

_DUST = 1e-9
"""Rounding tolerance for the rest of a job."""


@dataclass(eq=False, slots=True)
class _Job:
    left: float
    done: "asyncio.Future[None]"


class SharedThroughput:
    """Concurrent jobs, measured in units; ``rate`` is the total per second, by number of jobs."""

    def __init__(self, rate: Callable[[int], float]) -> None:
        self._rate = rate
        self._jobs: list[_Job] = []
        self._reckoned_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._done = 0.0

    @property
    def done(self) -> float:
        """Units finished so far."""
        self._reckon()
        return self._done

    async def work(self, amount: float) -> None:
        """Return when a job of ``amount`` units is finished.

        Concurrent jobs share the rate; a cancelled job frees its share.
        """
        self._reckon()
        job = _Job(amount, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._schedule()
        try:
            await job.done
        finally:
            self._reckon()
            self._jobs.remove(job)
            self._schedule()

    def _reckon(self) -> None:
        """Credit every job with its units since the last call."""
        now = loop_time()
        seconds, self._reckoned_at = now - self._reckoned_at, now
        for job in self._jobs:
            share = min(job.left, seconds * self._rate(len(self._jobs)) / len(self._jobs))
            job.left -= share
            self._done += share

    def _schedule(self) -> None:
        """Set a timer for the next job to finish, valid until the set of jobs changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            rate = self._rate(len(self._jobs)) / len(self._jobs)
            seconds = min(job.left for job in self._jobs) / rate
            self._timer = asyncio.get_running_loop().call_later(seconds, self._finish)

    def _finish(self) -> None:
        self._reckon()
        least = min(job.left for job in self._jobs)
        for job in self._jobs:
            if job.left <= least + _DUST and not job.done.done():
                job.done.set_result(None)
