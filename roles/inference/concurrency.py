"""Adaptive limit of concurrent rollouts, from the measured throughput of the engine.

On a small machine a second concurrent rollout only makes both older; a large one computes dozens in
the time of one. So the limit is found by trial: it doubles while throughput rises by ``GAIN_MIN``,
and goes back otherwise. Later the controller tries half and double the limit periodically. A
rollout that outlives its policy, or an engine failure, halves the limit.
"""

from collections import deque

WINDOW_SECONDS = 20.0
"""Busy time over which tokens are counted: ten reports of an engine process."""

GAIN_MIN = 1 / 3
"""Least relative gain in tokens per second from doubling the limit: a smaller gain does not justify
rollouts that take 1.5 times as long. A guess."""

WINDOWS_COMPARED = 2
WINDOWS_BETWEEN_TRIALS = 20
"""A failed trial takes at most a tenth of the time; a guess."""

LATENCIES_KEPT = 4

LIMIT_MAX = 256


class Concurrency:
    """Controller of the limit; callers pass the time in seconds."""

    def __init__(self) -> None:
        self.limit = 1
        """Largest number of concurrent rollouts."""
        self._rates: dict[int, deque[float]] = {}
        """Latest throughput in tokens per second at each limit that was fully used."""
        self._seconds: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._from: int | None = None
        """Limit before the current trial; None between trials."""
        self._awaited = WINDOWS_COMPARED
        self._tries_less = False
        self._running = 0
        self._noted_at = 0.0
        self._busy_seconds = self._rollout_seconds = 0.0
        """Busy time in this window, and the sum over its rollouts."""
        self._tokens: int | None = None
        """Token count at the start of the window; None before it."""
        self._tokens_seen = 0

    def note(self, running: int, now: float) -> None:
        """Record the number of rollouts that run from now on."""
        seconds = now - self._noted_at
        self._rollout_seconds += self._running * seconds
        self._busy_seconds += seconds if self._running else 0.0
        self._running, self._noted_at = running, now

    def ended(self, seconds: float) -> None:
        """Record the duration of a finished rollout."""
        self._seconds.append(seconds)

    def broke(self) -> None:
        """Halve the limit after a failure: too many concurrent rollouts may have caused it."""
        self._set(self.limit // 2, WINDOWS_BETWEEN_TRIALS)

    def observe(self, tokens: int, oldest_seconds: float, seconds_max: float, now: float) -> None:
        """Update the limit from the number of tokens sampled so far.

        ``oldest_seconds`` is the age of the oldest running rollout, ``seconds_max`` its limit.
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
        elif abs(mean - self.limit) <= self.limit / 4:  # else the limit was not in use
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
            self._tries_less = not rose  # a success: continue in this direction
        self._try(may_rise=may_rise)

    def _try(self, *, may_rise: bool) -> None:
        """Begin a trial of half or double the limit."""
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
            self._seconds.clear()  # measured at a higher limit
        self.limit = max(1, limit)
        self._tokens = None

    def _open(self, tokens: int) -> None:
        self._tokens = tokens
        self._busy_seconds = self._rollout_seconds = 0.0

    def _rate(self, limit: int) -> float:
        rates = self._rates[limit]
        return sum(rates) / len(rates)
