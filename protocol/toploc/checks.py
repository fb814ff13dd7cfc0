"""What measurements mean: pure decisions, each with the margin that a verdict reports.

Every check returns ``None`` or a ``Finding``. A comparison with NaN never passes. The measurements
come from one prefill of the validator over the submitted tokens:

* **computation**: the statistics of the proofs, per chunk and averaged over the file, because small
  errors that no chunk shows add up there;
* **termination**: a sequence ends where the model ends it;
* **sampling**: the tokens are the ones that the assigned noise selects;
* **log-probabilities**: the only check that sees the last layer and the last token.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from protocol.toploc.layout import ProofFault
from protocol.toploc.proof import ChunkResult

EOS_PROBABILITY_MIN = 0.01
"""Honest endings clustered below 0.02 and forged cuts below 0.001; the 0.1 that INTELLECT-2 is said
to have used rejects honest ones (public sources of two later networks, GRAIL and Reliquary)."""


class Reason(StrEnum):
    """Why a rollout is rejected, as far as this package can tell."""

    PROOF_MALFORMED = "proof-malformed"
    COMPUTATION = "computation"
    TERMINATION = "termination"
    SAMPLING = "sampling"
    LOGPROBS = "logprobs"


class Measure(StrEnum):
    """What was measured; its unit is in the name or is a count."""

    EXPONENT_MISMATCHES = "exponent-mismatches"
    MANTISSA_ERROR_MEAN = "mantissa-error-mean"
    MANTISSA_ERROR_MEDIAN = "mantissa-error-median"
    LENGTH_TOKENS = "length-tokens"
    EOS_PROBABILITY = "eos-probability"
    SCORE_GAP_NATS = "score-gap-nats"
    LOGPROB_ERROR_MAX_NATS = "logprob-error-max-nats"
    LOGPROB_ERROR_MEAN_NATS = "logprob-error-mean-nats"


_STATISTICS = (
    Measure.EXPONENT_MISMATCHES,
    Measure.MANTISSA_ERROR_MEAN,
    Measure.MANTISSA_ERROR_MEDIAN,
)


@dataclass(frozen=True, slots=True)
class Margin:
    """One measurement beside its limit: a lower one for a probability of EOS, else an upper one."""

    measure: Measure
    measured: float
    limit: float
    place: int | None = None
    """The chunk or token measured, counted from 0; None for a file or the end of a sequence."""

    @property
    def passes(self) -> bool:
        """Whether the limit is kept; NaN never keeps it."""
        smaller, larger = self._ordered()
        return smaller <= larger

    @property
    def used(self) -> float:
        """The share of the limit that is used up: 1 is the edge, NaN counts as infinite."""
        smaller, larger = self._ordered()
        if 0 <= smaller < math.inf and larger > 0:
            return smaller / larger
        return 0.0 if self.passes else math.inf

    def _ordered(self) -> tuple[float, float]:
        """Return the side that should be smaller and the one that should be larger."""
        if self.measure is Measure.EOS_PROBABILITY:
            return self.limit, self.measured
        return self.measured, self.limit


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason to reject, with what shows it; a sequence cut without EOS has neither to show."""

    reason: Reason
    margin: Margin | None = None
    fault: ProofFault | None = None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Upper limits of the three statistics of proofs; calibrate per model, precision and hardware.

    The exponent limit counts positions out of top_k 128.
    """

    exponent_mismatches_max: float
    mantissa_error_mean_max: float
    mantissa_error_median_max: float


BF16_PUBLISHED = Thresholds(38, 10, 8)
"""toploc-experiments, ``vllm_validate_poly.py``: made to tell models apart; 3 % noise passes."""

BF16_REPLAY = Thresholds(16, 4, 3)
"""Honest maximum over all engines tried: 12, 1.54, 1 (measured on tiny models)."""

FP32_REPLAY = Thresholds(4, 32, 32)
"""Honest maximum 0, 2.7, 1; a policy one step of rate 1e-7 away has a mean of 39 or more (measured
with one instruction set; double the two error limits where CPUs differ, which was not measured)."""


@dataclass(frozen=True, slots=True)
class ComputationMargins:
    """How close a file came to its limits: what a verdict reports, whether it accepts or rejects.

    Both tuples hold the three statistics in the order of ``Thresholds``.
    """

    worst: tuple[Margin, ...]
    """Over all chunks; ``place`` counts through the chunks of the file in order."""

    mean: tuple[Margin, ...]
    """The averages over all chunks."""

    @property
    def tightest(self) -> Margin:
        """The margin that uses most of its limit, a failed one before any that passes."""
        margins = (*self.worst, *self.mean)
        return max(margins, key=lambda margin: (not margin.passes, margin.used))

    @property
    def finding(self) -> Finding | None:
        """The rejection that follows, or None."""
        tightest = self.tightest
        return None if tightest.passes else Finding(Reason.COMPUTATION, margin=tightest)


def malformed_finding(fault: ProofFault) -> Finding:
    """Return the rejection for proofs that must not be verified."""
    return Finding(Reason.PROOF_MALFORMED, fault=fault)


def chunk_passes(result: ChunkResult, thresholds: Thresholds) -> bool:
    """Whether all three statistics of a chunk keep their limits."""
    return sequence_passes([result], thresholds)


def sequence_passes(results: Sequence[ChunkResult], thresholds: Thresholds) -> bool:
    """Whether every chunk of a sequence passes; one without chunks proves nothing and fails."""
    if not results:
        return False
    return all(margin.passes for margin in computation_margins([results], thresholds).worst)


def computation_margins(
    sequences: Iterable[Sequence[ChunkResult]],
    thresholds: Thresholds,
    file_thresholds: Thresholds | None = None,
) -> ComputationMargins:
    """Return the margins of every chunk's worst and of the file's mean statistics.

    ``file_thresholds`` bounds the means; it may be tighter than ``thresholds``, which bounds every
    chunk and is the default for both. A file without chunks has no margins and raises
    ``ValueError``: whether sequences may be empty is decided before anything is measured.
    """
    statistics = np.array([astuple(result) for results in sequences for result in results])
    if not len(statistics):
        raise ValueError("no chunk was measured")
    places = statistics.argmax(axis=0)
    worst = statistics[places, np.arange(len(_STATISTICS))]
    means = statistics.mean(axis=0).tolist()
    return ComputationMargins(
        _margins(worst.tolist(), thresholds, places.tolist()),
        _margins(means, file_thresholds or thresholds, [None] * len(means)),
    )


def termination_finding(
    *,
    length: int,
    length_max: int,
    ended_on_eos: bool,
    eos_probability: float,
    eos_probability_min: float = EOS_PROBABILITY_MIN,
) -> Finding | None:
    """Reject a sequence that ended neither on a likely EOS nor at its limit of tokens.

    ``length`` counts output tokens, EOS included. ``eos_probability`` is the validator's own
    probability of EOS where the sequence ended; it matters only if ``ended_on_eos``. A model that
    spreads EOS thinly ends honestly below any minimum now and then: where sampling is replayed as
    well, the minimum may be 0.
    """
    if length > length_max:
        margin = Margin(Measure.LENGTH_TOKENS, length, length_max)
        return Finding(Reason.TERMINATION, margin=margin)
    if length == length_max:
        return None
    if not ended_on_eos:
        return Finding(Reason.TERMINATION)
    margin = Margin(Measure.EOS_PROBABILITY, eos_probability, eos_probability_min)
    return None if margin.passes else Finding(Reason.TERMINATION, margin=margin)


def sampling_finding(gaps_nats: NDArray[np.floating], tolerance_nats: float) -> Finding | None:
    """Reject when a token is not the one that the assigned noise selects.

    ``gaps_nats[tokens]`` is the best perturbed score minus the chosen token's, both as
    ``logits / T + noise`` of the validator; 0 where the replay picks the same token. Numerical
    differences flip near ties only, so the tolerance is of their size.
    """
    return _worst_token(Reason.SAMPLING, Measure.SCORE_GAP_NATS, gaps_nats, tolerance_nats)


def logprobs_finding(
    claimed: NDArray[np.floating],
    own: NDArray[np.floating],
    *,
    error_max_nats: float,
    error_mean_max_nats: float,
) -> Finding | None:
    """Reject when claimed log-probabilities differ from the validator's own, both ``[tokens]``.

    In fp32 an honest difference is at most 3e-6 nats, and a policy 50 steps old has 0.02 on average
    and 0.6 at most (measured on tiny models). Raises ``ValueError`` for unequal lengths, which a
    validator refuses before its prefill.
    """
    if claimed.shape != own.shape:
        raise ValueError(f"log-probabilities of {claimed.shape} and {own.shape} tokens")
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(claimed.astype(np.float64) - own.astype(np.float64))
    finding = _worst_token(Reason.LOGPROBS, Measure.LOGPROB_ERROR_MAX_NATS, errors, error_max_nats)
    if finding is not None or not len(errors):
        return finding
    margin = Margin(Measure.LOGPROB_ERROR_MEAN_NATS, float(errors.mean()), error_mean_max_nats)
    return None if margin.passes else Finding(Reason.LOGPROBS, margin=margin)


def _worst_token(
    reason: Reason, measure: Measure, errors: NDArray[np.floating], limit: float
) -> Finding | None:
    """Return the finding for the largest error, or None; ``argmax`` takes NaN for the largest."""
    if not len(errors):
        return None
    token = int(errors.argmax())
    margin = Margin(measure, float(errors[token]), limit, token)
    return None if margin.passes else Finding(reason, margin=margin)


def _margins(
    measured: Sequence[float], thresholds: Thresholds, places: Sequence[int | None]
) -> tuple[Margin, ...]:
    rows = zip(_STATISTICS, measured, astuple(thresholds), places, strict=True)
    return tuple(Margin(*row) for row in rows)
