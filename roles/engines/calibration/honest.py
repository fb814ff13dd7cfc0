"""Measure honest engine pairs on the run's prompts, in parts, until there are enough tokens."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from protocol.core.rng import Rng
from protocol.run.recipe import SamplingSection
from roles.engines.calibration.measurement import MeasurementFile
from roles.engines.calibration.workbench import Bench, pairs_of_batch
from roles.ports.engines import EngineError, Environment

BATCHES = ((64, 64), (16, 32), (1, 8))
"""(Decode batch size, sequences per part): a batch of one is an order of magnitude slower."""

ATTENTIONS = ("sdpa", "eager")

PART_TOKENS_MAX = 16_384
"""Tokens of prompts and answers of a part. Long prompts mean fewer sequences; otherwise a part
would take half an hour on a CPU."""

PART_SEQUENCES_MIN = 8

Prompts = Callable[[str, int], Awaitable[list[tuple[int, ...]]]]
"""(lot, count) -> that many prompts of the lot."""

Progress = Callable[[int, int, float], None]
"""(tokens, sufficient tokens, elapsed seconds) -> None."""


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """End of a calibration: at enough tokens, or at its time limit."""

    tokens_enough: int = 131_072
    tokens_min: int = 16_384
    """Measured regardless of time: fewer give little data on the tails."""
    seconds_max: float = 480.0

    def spent(self, tokens: int, seconds: float) -> bool:
        """Return whether to stop."""
        over = seconds >= self.seconds_max and tokens >= self.tokens_min
        return over or tokens >= self.tokens_enough


def task_prompts(environment: Environment, sampling: SamplingSection) -> Prompts:
    """Return a source of prompts of a run's task, as workers sample them."""

    async def prompts(lot: str, number: int) -> list[tuple[int, ...]]:
        draws, targets = Rng(f"calibration prompts{lot}".encode()), sampling.length_targets
        drawn = [
            (draws.bits64(), targets[draws.below(len(targets))] if targets else None)
            for _ in range(number)
        ]
        return [await environment.prompt(seed, target) for seed, target in drawn]

    return prompts


async def measure(
    bench: Bench,
    prompts: Prompts,
    file: MeasurementFile,
    budget: TimeBudget,
    progress: Progress,
    batches: Sequence[tuple[int, int]] = BATCHES,
) -> None:
    """Add parts to ``file`` until the budget is spent; ``bench`` without prompts has the settings.

    Raises ``EngineError`` if an engine fails or there is no prompt, ``OSError`` if a part cannot be
    written.
    """
    engines = asyncio.Semaphore(min(2, os.cpu_count() or 1) if bench.device == "cpu" else 1)
    began = time.monotonic()
    for number in count(file.parts):
        seconds = time.monotonic() - began
        progress(file.tokens, budget.tokens_enough, seconds)
        if budget.spent(file.tokens, seconds):
            return
        batch, sequences = batches[number % len(batches)]
        lot = f"/{number}"
        asked = await prompts(lot, sequences)
        if not asked or not all(asked):
            raise EngineError("the task has no prompt to calibrate with")
        part = replace(bench, prompts=asked[: _affordable(asked, bench.tokens_max)], lot=lot)
        file.add(await pairs_of_batch(part, batch, ATTENTIONS, engines))


def _affordable(prompts: Sequence[Sequence[int]], tokens_max: int) -> int:
    """Return how many of the prompts fit in a part."""
    tokens = 0
    for place, prompt in enumerate(prompts):
        tokens += len(prompt) + tokens_max
        if tokens > PART_TOKENS_MAX and place >= PART_SEQUENCES_MIN:
            return place
    return len(prompts)
