"""Tokens until an audit catches a lie, and false rejections of honest rollouts.

Rollouts are resampled from the chunks of recorded sequences (bootstrap).
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.rollout.statistics import (
    STATISTICS,
    Extremes,
    Measurement,
    Sums,
    compared,
    compared_extremes,
)
from protocol.run.recipe import ToplocSection
from roles.engines.calibration.measurement import ClaimRecording

TOKENS = tuple(32 << doubling for doubling in range(14))
"""Tested rollout lengths: 32 to 262,144 tokens."""

ROLLOUTS = 200
"""Rollouts per length; the resolution of a rate is 1 in 200."""


@dataclass(frozen=True, slots=True)
class Power:
    """The share of rollouts rejected, by number of tokens in ``TOKENS``."""

    name: str
    tokens: int
    rejected: tuple[float, ...]
    reasons: tuple[str, ...]
    """The most frequent reason of rejection at each length."""

    def tokens_until(self, share: float) -> int | None:
        """Return the rollout length at which this share is caught; None beyond all tested."""
        for tokens, rejected in zip(TOKENS, self.rejected, strict=True):
            if rejected >= share:
                return tokens
        return None

    def summary(self) -> dict[str, object]:
        """Return the numbers for a table."""
        return {
            "name": self.name,
            "tokens": self.tokens,
            "rejected_max": max(self.rejected),
            "tokens_until_half": self.tokens_until(0.5),
            "tokens_until_99_percent": self.tokens_until(0.99),
            "caught_by": self.reasons[-1],
        }


def power(rules: ToplocSection, recording: ClaimRecording, rng: np.random.Generator) -> Power:
    """Return the rejection rates of a recording's rollouts under ``rules``."""
    chunks = [chunk for sequence in recording.by_chunk(rules) for chunk in sequence]
    table = np.array([one.sums.values for one in chunks])
    tokens = np.array([one.sums.tokens for one in chunks])
    outside = np.array([_outside(rules, one) for one in chunks])
    shares, reasons = [], []
    for length in TOKENS:
        needed = max(1, round(length / float(tokens.mean())))
        allowed = _allowed(rules, length, needed)
        found: Counter[str] = Counter()
        for _ in range(ROLLOUTS):
            chosen = rng.integers(len(chunks), size=needed)
            excess = np.abs(table[chosen].sum(axis=0)) / allowed
            if outside[chosen].max() >= 0:
                found[Extremes._fields[int(outside[chosen].max())]] += 1
            elif excess.max() > 1:
                found[STATISTICS[int(excess.argmax())]] += 1
        shares.append(found.total() / ROLLOUTS)
        reasons.append(max(found, key=lambda name: found[name], default=""))
    return Power(recording.name, recording.tokens, tuple(shares), tuple(reasons))


def _allowed(rules: ToplocSection, tokens: int, chunks: int) -> NDArray[np.float64]:
    """Return the bounds on the sums of a rollout of ``tokens`` tokens."""
    nothing = Sums(tokens, chunks)
    found = compared(rules, nothing, rules.false_reject_rate)
    return np.array([one.allowed * nothing.count(one.name) for one in found])


def _outside(rules: ToplocSection, measurement: Measurement) -> int:
    """Return the index of an extreme that exceeds its limit; -1 if there is none."""
    limits = compared_extremes(rules, measurement.extremes)
    return max((place for place, one in enumerate(limits) if one.outside), default=-1)
