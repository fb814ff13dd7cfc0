"""How long to wait for what usually takes a while: mean and deviation, RFC 6298 section 2."""

from dataclasses import dataclass


@dataclass(slots=True)
class Timer:
    """Follows a duration, and says from when on it is unusual."""

    _mean_seconds: float | None = None
    _deviation_seconds: float = 0.0

    def measure(self, seconds: float) -> None:
        """Note that it took so long this time."""
        if self._mean_seconds is None:
            self._mean_seconds, self._deviation_seconds = seconds, seconds / 2
            return
        deviation = abs(seconds - self._mean_seconds)
        self._deviation_seconds += (deviation - self._deviation_seconds) / 4
        self._mean_seconds += (seconds - self._mean_seconds) / 8

    @property
    def late_seconds(self) -> float | None:
        """From when on it is late; None before the first measurement."""
        if self._mean_seconds is None:
            return None
        return self._mean_seconds + 4 * self._deviation_seconds
