"""How many rollouts an engine should compute at once, learned from what it delivers.

A small machine gains nothing from a second rollout beside the first but older rollouts; a large one
computes dozens in the time of one. What it is nobody can tell beforehand, so it is tried: the limit
doubles while that brings enough more tokens per second, and goes back when it does not. Afterwards
both neighbours are tried again from time to time. A rollout must be finished while its policy is
young enough, and what breaks an engine may be too many at once: both halve the limit.
"""

from collections import deque

WINDOW_SECONDS = 20.0
"""Of computing, over which tokens are counted: ten reports of an engine process."""

GAIN_MIN = 1 / 3
"""Of tokens per second, for twice as many rollouts: less is not worth rollouts that are half as
old again. A guess."""

WINDOWS_COMPARED = 2
WINDOWS_BETWEEN_TRIALS = 20
"""A trial that fails costs a tenth of the time at most what its limit is worse by; a guess."""

LATENCIES_KEPT = 4

LIMIT_MAX = 256
"""Of rollouts at once; a bound, so that nothing grows for ever."""


class Concurrency:
    """The limit, and what it follows from; time is an argument, in seconds."""

    def __init__(self) -> None:
        self.limit = 1
        """Rollouts that may be computed at once."""
        self._rates: dict[int, deque[float]] = {}
        """The last tokens per second at a limit that was used up."""
        self._seconds: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._from: int | None = None
        """The limit that a trial compares the present one with; None between trials."""
        self._awaited = WINDOWS_COMPARED
        self._tries_less = False
        self._running = 0
        self._noted_at = 0.0
        self._busy_seconds = self._rollout_seconds = 0.0
        """In this window: with anything to compute, and of all rollouts together."""
        self._tokens: int | None = None
        """At the beginning of the window; None before it."""
        self._tokens_seen = 0

    def note(self, running: int, now: float) -> None:
        """Note how many rollouts are computed from now on."""
        seconds = now - self._noted_at
        self._rollout_seconds += self._running * seconds
        self._busy_seconds += seconds if self._running else 0.0
        self._running, self._noted_at = running, now

    def ended(self, seconds: float) -> None:
        """Note how long a rollout was computed."""
        self._seconds.append(seconds)

    def broke(self) -> None:
        """Note that what was computed is lost, perhaps because it was too much at once."""
        self._set(self.limit // 2, WINDOWS_BETWEEN_TRIALS)

    def observe(self, tokens: int, oldest_seconds: float, seconds_max: float, now: float) -> None:
        """Learn from the tokens that were sampled until now.

        ``oldest_seconds`` is for how long the oldest rollout has been computed, ``seconds_max``
        how long one may be.
        """
        self.note(self._running, now)
        if self._tokens is None or tokens < self._tokens_seen:
            self._open(tokens)
        self._tokens_seen, seconds = tokens, self._busy_seconds
        if self._tokens is None or seconds < WINDOW_SECONDS:
            return
        rate, mean = (tokens - self._tokens) / seconds, self._rollout_seconds / seconds
        self._open(tokens)
        latency = max([oldest_seconds, *self._seconds])
        if latency > seconds_max and self.limit > 1:
            self._set(self.limit // 2, WINDOWS_BETWEEN_TRIALS)
        elif abs(mean - self.limit) <= self.limit / 4:  # else this says nothing of the limit
            self._rates.setdefault(self.limit, deque(maxlen=WINDOWS_COMPARED)).append(rate)
            self._awaited -= 1
            if self._awaited <= 0:
                self._decide(may_rise=2 * latency <= seconds_max)

    def _decide(self, *, may_rise: bool) -> None:
        if self._from is not None:
            low, high = sorted((self._from, self.limit))
            gained = self._rate(high) >= (1 + GAIN_MIN) * self._rate(low)
            rose, better = self._from == low, high if gained else low
            if better == self._from:
                self._set(better, WINDOWS_BETWEEN_TRIALS)
                self._tries_less = rose
                return
            self._tries_less = not rose  # it was worth it, so it goes on
        self._try(may_rise=may_rise)

    def _try(self, *, may_rise: bool) -> None:
        """Begin to compare the limit with a neighbour."""
        less = self._tries_less and self.limit > 1
        if not less and (not may_rise or self.limit >= LIMIT_MAX):
            self._set(self.limit, WINDOWS_BETWEEN_TRIALS)
            self._tries_less = True
            return
        before = self.limit
        self._set(self.limit // 2 if less else self.limit * 2, WINDOWS_COMPARED)
        self._from = before

    def _set(self, limit: int, awaited: int) -> None:
        self._from, self._awaited = None, awaited
        if limit < self.limit:
            self._seconds.clear()  # they were those of more at once
        self.limit = max(1, limit)
        self._tokens = None

    def _open(self, tokens: int) -> None:
        self._tokens = tokens
        self._busy_seconds = self._rollout_seconds = 0.0

    def _rate(self, limit: int) -> float:
        rates = self._rates[limit]
        return sum(rates) / len(rates)
