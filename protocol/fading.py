"""A count of what happened, which fades."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Fading:
    """A sum whose parts count half as much after each half-life, in whatever order they come.

    Times and half-lives are in one unit, of the caller's choice.
    """

    amount: float = 0.0
    at: float = 0.0
    """As of when ``amount`` is: when the last part happened."""

    def left(self, now: float, half_life: float) -> float:
        """Return what it has faded to."""
        return self.amount * math.exp2((self.at - now) / half_life)

    def add(self, amount: float, at: float, half_life: float) -> None:
        """Add what happened at a time, also at one that is past."""
        if at > self.at:
            self.amount, self.at = self.left(at, half_life), at
        self.amount += amount * math.exp2((at - self.at) / half_life)
