"""Thresholds of a recipe from honest recordings.

A statistic's clip is chosen where a doubling of all errors is most visible, in units of the bound
at ``TYPICAL_TOKENS``. Its mean is the largest over honest pairs plus three standard errors. Its
variance is that of a sequence's sum per value, because errors within a sequence are correlated. It
is at least the variance of one value at the clip in all recordings. Pairs with too few tokens for a
mean of their own are joined.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.rollout.statistics import PER_CHUNK, STATISTICS, bound, surprise
from protocol.run.recipe import ToplocSection
from protocol.run.sections import HonestSection, HonestValue
from protocol.toploc import ChunkResult
from roles.engines.calibration.measurement import ClaimRecording

EXTREME_MARGIN = 2.0
"""Factor on the worst single values: these limits are loose, the statistics detect lies."""

UNRELATED_SHARE = 0.75
"""Share of the covered values; another model differs in nearly all (127 of 128 measured)."""

CLIP_MIN = {"exponent_mismatches": 1.0, "mantissa_error": 1.0, "sampling_surprise": 1.0}
"""Minimum clips: one mismatch, one unit in the last place, one nat."""

SHARES = frozenset({"logprob_outliers", "replay_mismatches"})
COUNTED = SHARES | {"sampling_surprise"}
"""On another machine these errors are more frequent, not larger."""

TYPICAL_TOKENS = 1024
CLIP_QUANTILES = (0.9, 0.99, 0.999, 0.9999, 1.0)
TAU_QUANTILE = 0.99
STANDARD_ERRORS = 3.0
RATE = 1e-6

Values = list[NDArray[np.float64]]
"""One array for each sequence."""


def propose(
    recordings: Sequence[ClaimRecording], layout: dict[str, object], measured_on: str, margin: float
) -> ToplocSection:
    """Return thresholds from honest ``recordings``; ``layout`` is the layout of the proofs.

    Errors and their frequency are multiplied by ``margin`` for machines that were not measured.
    Raises ``ValueError`` for too few tokens.
    """
    recordings = _large_enough(recordings)
    errors = [_errors(recording) for recording in recordings]
    every = np.concatenate([values for part in errors for values in part])
    if len(every) < TYPICAL_TOKENS:
        raise ValueError(f"{len(every)} honest tokens are too few to calibrate with")
    tau = _positive(float(np.quantile(np.abs(every), TAU_QUANTILE)))
    sigma = _positive(float(np.sqrt(np.mean(every**2))))
    gaps = [_gaps(recording) for recording in recordings]
    chunks = [chunk for part in recordings for own in part.recomputed for chunk in own.chunks]

    def surprises(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([surprise(float(gap), sigma) if gap > 0 else 0.0 for gap in values])

    def of_chunks(read: Callable[[ChunkResult], float]) -> list[Values]:
        return [
            [np.array([read(chunk) for chunk in own.chunks]) for own in part.recomputed]
            for part in recordings
        ]

    values: dict[str, list[Values]] = {
        "logprob_error": _mapped(errors, np.abs),
        "logprob_shift": errors,
        "logprob_outliers": _mapped(errors, lambda one: (np.abs(one) > tau).astype(float)),
        "replay_mismatches": _mapped(gaps, lambda one: (one > 0).astype(float)),
        "sampling_gap": gaps,
        "sampling_surprise": _mapped(gaps, surprises),
        "exponent_mismatches": of_chunks(lambda chunk: float(chunk.exponent_mismatches)),
        "mantissa_error": of_chunks(lambda chunk: chunk.mantissa_error_mean),
    }

    def loose(found: Iterable[float]) -> float:
        return EXTREME_MARGIN * margin * _positive(float(max(found)))

    worst_gap = max(float(one.max()) for part in gaps for one in part)
    return ToplocSection.model_validate(
        {
            **layout,
            "exponent_mismatches_max": min(
                int(4 + loose(c.exponent_mismatches for c in chunks)),
                int(UNRELATED_SHARE * int(str(layout["top_k"]))),
            ),
            "mantissa_error_mean_max": _rounded(1 + loose(c.mantissa_error_mean for c in chunks)),
            "mantissa_error_median_max": _rounded(
                1 + loose(c.mantissa_error_median for c in chunks)
            ),
            "logprob_error_max": _rounded(loose(np.abs(every))),
            "sampling_gap_max": _rounded(loose((worst_gap, tau))),
            "logprob_tau": _rounded(margin * tau),
            "gap_sigma": _rounded(margin * sigma),
            "measured_on": measured_on,
            "measured_tokens": len(every),
            "honest": HonestSection(
                **{name: _honest(values[name], name, margin) for name in STATISTICS}
            ),
        }
    )


def _honest(pairs: Sequence[Values], name: str, margin: float) -> HonestValue:
    every = np.concatenate([values for part in pairs for values in part])
    sizes = np.abs(every)
    quantiles = (
        [1.0] if name in SHARES else sorted({float(np.quantile(sizes, q)) for q in CLIP_QUANTILES})
    )
    least = CLIP_MIN.get(name, _positive(0.0))
    clips = sorted({max(one, least) for one in quantiles})
    fitted = [_fitted(pairs, clip, margin, counted=name in COUNTED) for clip in clips]
    count = TYPICAL_TOKENS // 32 if name in PER_CHUNK else TYPICAL_TOKENS

    def visible(honest: HonestValue) -> float:
        scaled = sizes if name in COUNTED else margin * sizes
        cut = np.minimum(scaled, honest.clip).mean()
        doubled = np.minimum(2 * scaled, honest.clip).mean()
        return float(doubled - cut) / (bound(honest, count, RATE) / count)

    return max(fitted, key=visible)


def _fitted(pairs: Sequence[Values], clip: float, margin: float, *, counted: bool) -> HonestValue:
    """Return the largest mean and variance over pairs of the values clipped at ``clip``.

    The margin raises the frequency of a ``counted`` statistic, and the size of any other.
    """
    means, variances = [], []
    least = clip**2 / sum(len(values) for part in pairs for values in part)
    for part in pairs:
        sequences = [np.clip(values, -clip, clip) for values in part]
        every = np.concatenate(sequences)
        mean = float(every.mean())
        lengths = np.array([len(values) for values in sequences], dtype=float)
        sums = np.array([values.sum() for values in sequences])
        spread = float(np.mean((sums - mean * lengths) ** 2 / lengths))
        variance = max(spread, float(every.var()), least)
        variances.append(variance)
        means.append(abs(mean) + STANDARD_ERRORS * (variance / len(every)) ** 0.5)
    return HonestValue(
        mean=_rounded(margin * max(means)),
        variance=_rounded((margin if counted else margin**2) * max(variances)),
        clip=_rounded(clip if counted else margin * clip),
    )


def _large_enough(recordings: Sequence[ClaimRecording]) -> list[ClaimRecording]:
    large = [recording for recording in recordings if recording.tokens >= TYPICAL_TOKENS]
    small = [recording for recording in recordings if recording.tokens < TYPICAL_TOKENS]
    if not small:
        return large
    claimed = [one for recording in small for one in recording.claimed]
    recomputed = [one for recording in small for one in recording.recomputed]
    return [*large, ClaimRecording("small pairs", claimed, recomputed)]


def _errors(recording: ClaimRecording) -> Values:
    pairs = zip(recording.claimed, recording.recomputed, strict=True)
    return [np.array(claimed) - np.array(own.logprobs) for claimed, own in pairs]


def _gaps(recording: ClaimRecording) -> Values:
    return [np.maximum(np.array(own.gaps, dtype=float), 0) for own in recording.recomputed]


def _mapped(
    pairs: Sequence[Values], function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> list[Values]:
    return [[function(values) for values in part] for part in pairs]


def _positive(value: float) -> float:
    """Return ``value``; where honest engines agree to the bit, the least possible difference."""
    return max(value, float(np.finfo(np.float32).eps))


def _rounded(value: float) -> float:
    """Round ``value`` up to three digits, for readable recipes."""
    if value <= 0:
        return 0.0
    step = 10.0 ** (np.floor(np.log10(value)) - 2)
    return float(f"{np.ceil(value / step - 1e-9) * step:.3g}")
