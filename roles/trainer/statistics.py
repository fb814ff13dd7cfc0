"""Statistics of a training step, from its batch, the engine's metrics, and its timing."""

import asyncio
import math
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, pstdev
from typing import Any

from roles.ports.engines import Mismatch, StepMetrics
from roles.runtime.metrics import BusyTime
from roles.runtime.training_steps import TrainingStep
from roles.trainer.batching import TrainingBatch


class StepTimer:
    """Divides the time between the ends of two steps into computing and waiting."""

    def __init__(self, steps: BusyTime) -> None:
        self._steps = steps
        self.start()

    def start(self) -> None:
        """Start the timer for the first step after a pause."""
        self._since, self._busy = asyncio.get_running_loop().time(), self._steps.seconds

    def lap(self) -> tuple[float, float]:
        """Return the seconds in and outside of the engine since the last lap or start."""
        since, busy = self._since, self._busy
        self.start()
        step_seconds = self._busy - busy
        return step_seconds, max(0.0, self._since - since - step_seconds)


def training_step(
    version: int,
    ended_at: float,
    batch: TrainingBatch,
    metrics: StepMetrics,
    seconds: tuple[float, float],
) -> TrainingStep:
    """Return the record of the step that produced ``version``; ``seconds`` is a lap."""
    sequences, (step_seconds, idle_seconds) = batch.sequences, seconds
    groups = [list(group) for _, group in groupby(sequences, key=lambda one: one.group)]
    teaching = [group for group in groups if len({one.reward for one in group}) > 1]
    learned = sum(len(one.prompt) + len(one.tokens) for group in teaching for one in group)
    return TrainingStep(
        version=version,
        ended_at=ended_at,
        reward_mean=fmean(one.reward for one in sequences),
        reward_std=pstdev(one.reward for one in sequences),
        groups_teaching_fraction=len(teaching) / len(groups),
        sequences_offered=len(sequences),
        sequences_used=metrics.sequences_used,
        entropy_nats=_finite(metrics.entropy) if metrics.sequences_used else None,
        kl_nats=_finite(metrics.kl) if metrics.sequences_used else None,
        gradient_norm=_finite(metrics.gradient_norm),
        clip_low_fraction=metrics.clip_low_fraction,
        clip_high_fraction=metrics.clip_high_fraction,
        **_differences("", metrics.mismatch),
        **_differences("engine_", metrics.engine_mismatch),
        loss=_finite(metrics.loss),
        learning_rate=metrics.learning_rate,
        updates=metrics.updates,
        answer_tokens_mean=fmean(len(one.tokens) for one in sequences),
        answers_cut_fraction=fmean(not one.ended for one in sequences),
        staleness_mean_versions=fmean(batch.staleness_versions),
        staleness_max_versions=max(batch.staleness_versions),
        tokens_per_second=learned / step_seconds if step_seconds else None,
        step_seconds=round(step_seconds, 3),
        idle_seconds=round(idle_seconds, 3),
        ranks=len(metrics.memory_peak_bytes) or None,
        memory_peak_bytes=max(metrics.memory_peak_bytes, default=None),
    )


def merged(steps: Sequence[StepMetrics]) -> StepMetrics:
    """Return the metrics of several steps as those of one; the mismatches are the first one's.

    Means are weighted by the sequences of each step.
    """
    weights = [step.sequences_used for step in steps]

    def mean(name: str) -> float:
        total = sum(
            getattr(step, name) * weight for step, weight in zip(steps, weights, strict=True)
        )
        return float(total) / max(1, sum(weights))

    return StepMetrics(
        updates=sum(step.updates for step in steps),
        loss=mean("loss"),
        gradient_norm=max(step.gradient_norm for step in steps),
        entropy=mean("entropy"),
        sequences_used=sum(weights),
        clip_low_fraction=mean("clip_low_fraction"),
        clip_high_fraction=mean("clip_high_fraction"),
        kl=mean("kl"),
        learning_rate=steps[-1].learning_rate,
        mismatch=steps[0].mismatch,
        engine_mismatch=steps[0].engine_mismatch,
        memory_peak_bytes=steps[-1].memory_peak_bytes,
    )


def _differences(prefix: str, found: Mismatch | None) -> dict[str, Any]:
    """Return the statistics of a mismatch by name; none if it is unknown."""
    if found is None:
        return {}
    return {
        f"{prefix}mismatch_mean_nats": _finite(found.mean),
        f"{prefix}mismatch_p99_nats": _finite(found.p99),
        f"{prefix}mismatch_clip_fraction": found.beyond_clip,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
