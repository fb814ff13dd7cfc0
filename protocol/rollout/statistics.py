"""Statistics of the distance between a claimed rollout and a validator's recomputation.

Honest engines round differently, so a single token proves nothing. Its error is a draw from the
honest distribution that the manifest states (``HonestSection``). The audit judges sums over all
tokens of a rollout, or of many. A sum of ``n`` honest values exceeds its bound with a probability
of at most a given rate, by Bennett's inequality (1962). The inequality needs the mean, the variance
and the maximum value, and no shape of the distribution.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from protocol.messages import Verdict
from protocol.rollout.witness import WitnessValue
from protocol.run.recipe import ToplocSection
from protocol.run.sections import HonestSection, HonestValue
from protocol.toploc import ChunkResult

STATISTICS = tuple(HonestSection.model_fields)
PER_CHUNK = frozenset({"exponent_mismatches", "mantissa_error"})
"""Statistics with one value per chunk; the others have one per token."""

SCALE = 1_000_000_000
"""A verdict states numbers in billionths: errors in float32 are of the order of 1e-7."""

_SCALED_MAX = 2**53
_BISECTIONS = 60
_TESTS = len(STATISTICS) + 1  # the shift is tested on both sides


class Extremes(NamedTuple):
    """Worst values of single chunks and tokens, named after their limits."""

    exponent_mismatches_max: float
    mantissa_error_mean_max: float
    mantissa_error_median_max: float
    logprob_error_max: float
    sampling_gap_max: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of clipped values over some tokens and chunks, in the order of ``STATISTICS``."""

    tokens: int
    chunks: int
    values: tuple[float, ...] = (0.0,) * len(STATISTICS)

    def count(self, name: str) -> int:
        """Return the number of values in the sum ``name``."""
        return self.chunks if name in PER_CHUNK else self.tokens

    @property
    def means(self) -> tuple[float, ...]:
        """Mean of each statistic, 0 if it has no values."""
        pairs = zip(STATISTICS, self.values, strict=True)
        return tuple(value / max(1, self.count(name)) for name, value in pairs)


def added(parts: Iterable[Sums]) -> Sums:
    """Return the statistics of all ``parts`` together."""
    known = list(parts)
    columns = zip(*(part.values for part in known), strict=True)
    tokens, chunks = sum(part.tokens for part in known), sum(part.chunks for part in known)
    return Sums(tokens, chunks, tuple(map(math.fsum, columns))) if known else Sums(0, 0)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A validator's recomputation of a claimed sequence of ``n`` tokens.

    ``chunks`` compare the proofs with its states. ``logprobs[n]`` are the log-probabilities of the
    claimed tokens in nats, ``gaps[n]`` the distances of their scores below the best ones.
    """

    chunks: Sequence[ChunkResult]
    logprobs: Sequence[float]
    gaps: Sequence[float]
    witness: tuple[WitnessValue, ...] = ()
    """Results at the points of the request."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one prefill for a claimed sequence, or for several.

    ``proof_fault`` is None if the proofs are well formed. Values that could not be computed are
    infinite in ``extremes``, and so beyond their limit.
    """

    proof_fault: str | None
    sums: Sums
    extremes: Extremes
    witness: tuple[WitnessValue, ...] = ()
    """Results at the points of the request, none with a ``proof_fault``."""


def measured(rules: ToplocSection, claimed: Sequence[float], own: Recomputed) -> Measurement:
    """Return the statistics of a sequence with the log-probabilities ``claimed``, in nats.

    Raises ``ValueError`` if there is nothing to measure.
    """
    chunks, honest = own.chunks, rules.honest
    if not chunks or not claimed:
        raise ValueError("nothing was measured")
    errors = [_number(ours - theirs) for ours, theirs in zip(own.logprobs, claimed, strict=True)]
    sizes = [abs(error) for error in errors]
    lost = [_number(gap) for gap in own.gaps if not gap <= 0]
    shift, tau = honest.logprob_shift.clip, rules.logprob_tau
    values = (
        _clipped(sizes, honest.logprob_error),
        math.fsum(max(-shift, min(shift, -error)) for error in errors),
        float(sum(size > tau for size in sizes)),
        float(len(lost)),
        _clipped(lost, honest.sampling_gap),
        _clipped([surprise(gap, rules.gap_sigma) for gap in lost], honest.sampling_surprise),
        _clipped([chunk.exponent_mismatches for chunk in chunks], honest.exponent_mismatches),
        _clipped([_number(chunk.mantissa_error_mean) for chunk in chunks], honest.mantissa_error),
    )
    extremes = Extremes(
        float(max(chunk.exponent_mismatches for chunk in chunks)),
        max(_number(chunk.mantissa_error_mean) for chunk in chunks),
        max(_number(chunk.mantissa_error_median) for chunk in chunks),
        max(sizes),
        max(lost, default=0.0),
    )
    return Measurement(None, Sums(len(errors), len(chunks), values), extremes, own.witness)


def of_rollout(measurements: Sequence[Measurement], claims: Sequence[Hashable]) -> Sums:
    """Return the statistics of a rollout; sequences with equal ``claims`` have equal states.

    Their chunks count as those of one sequence, with the mean over their proofs. Where two values
    are nearly equal, another one may be among the largest in every such sequence. That is one draw
    and not sixteen, which would exceed every bound of independent values.
    """
    times = Counter(claims)
    found = list(zip((one.sums for one in measurements), claims, strict=True))
    values = tuple(
        math.fsum(
            sums.values[place] / (times[claim] if name in PER_CHUNK else 1) for sums, claim in found
        )
        for place, name in enumerate(STATISTICS)
    )
    chunks = sum({claim: sums.chunks for sums, claim in found}.values())
    return Sums(sum(sums.tokens for sums, _ in found), chunks, values)


def unmeasured(fault: str) -> Measurement:
    """Return the measurement of a sequence that could not be computed."""
    return Measurement(fault, Sums(0, 0), Extremes(*[math.inf] * len(Extremes._fields)))


def surprise(gap: float, sigma: float) -> float:
    """Return ``-log P`` that two scores so far apart swap their order, 0 for a gap of 0, in nats.

    Each score has a Gaussian error of ``sigma``, so their difference has one of ``sqrt(2) sigma``.
    """
    probability = math.erfc(gap / (2 * sigma))
    return -math.log(probability) if probability > 0 else math.inf


def bound(honest: HonestValue, count: int, rate: float) -> float:
    """Return the bound on a sum of ``count`` honest values, exceeded with at most ``rate``.

    Bennett: with ``a = count * variance / clip^2``, a sum is ``u * a * clip`` above its mean with a
    probability of ``exp(-a h(u))`` at most, where ``h(u) = (1 + u) log(1 + u) - u``.
    """
    if count == 0:
        return 0.0
    scale = count * honest.variance / honest.clip**2
    needed = -math.log(rate) / scale
    low, high = 0.0, needed / 3 + math.sqrt((needed / 3) ** 2 + 2 * needed)  # Bernstein's
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if (1 + middle) * math.log1p(middle) - middle < needed:
            low = middle
        else:
            high = middle
    return count * honest.mean + high * scale * honest.clip


@lru_cache(maxsize=4096)
def disagreements_max(share: float, count: int, rate: float) -> int:
    """Return the maximum of ``count`` rollouts in which an honest worker's rewards may differ.

    They differ between honest machines in a ``share`` of all rollouts. A higher number has a
    probability of at most ``rate``. The arithmetic is exact, so every machine gets the same number.
    """
    if share == 1:
        return count
    chance, tail = Fraction(share), Fraction(1)
    term = (1 - chance) ** count
    for known in range(count + 1):
        tail -= term
        if tail <= Fraction(rate):
            return known
        term *= chance * (count - known) / ((1 - chance) * (known + 1))
    return count


class Compared(NamedTuple):
    """A measured value and its limit."""

    name: str
    value: float
    allowed: float

    @property
    def outside(self) -> bool:
        """True if the value is beyond its limit; a NaN is."""
        return not self.value <= self.allowed

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g}, honest up to {self.allowed:.4g}"


def compared_extremes(rules: ToplocSection, extremes: Extremes) -> list[Compared]:
    """Return every extreme with its limit."""
    pairs = zip(Extremes._fields, extremes, strict=True)
    return [Compared(name, value, getattr(rules, name)) for name, value in pairs]


def compared(rules: ToplocSection, sums: Sums, rate: float) -> list[Compared]:
    """Return the mean of every statistic with the bound of honest ones.

    Any honest one exceeds its bound with a probability of at most ``rate``, divided evenly.
    """
    found = []
    for name, mean in zip(STATISTICS, sums.means, strict=True):
        count = max(1, sums.count(name))
        allowed = bound(getattr(rules.honest, name), count, rate / _TESTS) / count
        found.append(Compared(name, abs(mean), allowed))
    return found


def beyond(rules: ToplocSection, sums: Sums, rate: float) -> Compared | None:
    """Return the statistic furthest beyond its bound at ``rate``, if any."""
    outside = [one for one in compared(rules, sums, rate) if one.outside]
    return max(outside, key=lambda one: one.value / one.allowed, default=None)


def directions(rules: ToplocSection, sums: Sums, rate: float) -> frozenset[str]:
    """Return every statistic beyond its bound at ``rate``; a negative shift has a minus sign."""
    means = zip(STATISTICS, sums.means, strict=True)
    if all(abs(mean) <= getattr(rules.honest, name).mean for name, mean in means):
        return frozenset()  # most end here; every bound is above the mean and costs far more
    found = zip(compared(rules, sums, rate), sums.means, strict=True)
    return frozenset(f"-{one.name}" if mean < 0 else one.name for one, mean in found if one.outside)


def stated(numbers: Iterable[float]) -> tuple[int, ...]:
    """Return numbers in the units of a verdict, clamped to its range."""
    return tuple(round(max(-_SCALED_MAX, min(_SCALED_MAX, one * SCALE))) for one in numbers)


def explained(rules: ToplocSection, verdict: Verdict, tokens: int) -> list[Compared]:
    """Return the values of a verdict on ``tokens`` tokens with their limits."""
    sums = agreed([verdict], tokens)
    if sums is None or len(verdict.extremes) != len(Extremes._fields):
        return []
    extremes = Extremes(*(value / SCALE for value in verdict.extremes))
    return [
        *compared(rules, sums, rules.false_reject_rate),
        *compared_extremes(rules, extremes),
    ]


def agreed(verdicts: Sequence[Verdict], tokens: int) -> Sums | None:
    """Return the statistics that the verdicts on one commit of ``tokens`` tokens agree on, if any.

    Each is the lower median by magnitude: a minority can neither incriminate a worker nor clear it.
    """
    told = [verdict for verdict in verdicts if len(verdict.means) == len(STATISTICS)]
    if not told:
        return None
    middle = (len(told) - 1) // 2
    chunks = sorted(verdict.chunks for verdict in told)[middle]
    counts = Sums(tokens, chunks)
    values = (
        sorted(column, key=abs)[middle] / SCALE * counts.count(name)
        for name, column in zip(STATISTICS, zip(*(v.means for v in told), strict=True), strict=True)
    )
    return Sums(tokens, chunks, tuple(values))


def _number(value: float) -> float:
    """Return ``value``, or infinity for a NaN, which would pass every limit."""
    return math.inf if math.isnan(value) else value


def _clipped(values: Iterable[float], honest: HonestValue) -> float:
    clip = honest.clip
    return math.fsum(min(value, clip) for value in values)
