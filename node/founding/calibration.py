"""Thresholds that fit the run: honest engines are compared on its own model and prompts."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.local.config import runtime_directories
from protocol.core.types import Digest, Version
from protocol.run.manifest import RunManifest
from protocol.run.recipe import Recipe
from roles.ports.background import Background
from roles.ports.engines import EngineError, Policy

if TYPE_CHECKING:
    from roles.engines.calibration.calibrate import Calibration
    from roles.engines.calibration.workbench import Bench

ANSWER_TOKENS = 128
"""Longest answer that a calibration generates: on two cores 64 answers of 128 tokens by a model of
135 million weights take a minute. Longer ones ask for a GPU."""

MARGIN = 1.5
"""Room for machines that are not measured; one tenth of the lies that are small pass with it
(docs/verification.md)."""

MINUTES = 8.0

Say = Callable[[str], None]
Progress = Callable[[int, int, float], None]
"""Is given tokens, tokens that are enough, and the seconds so far."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Options of a calibration; an interrupted one resumes from its file ``path``."""

    path: Path
    device: str = "cpu"
    minutes: float = MINUTES
    tokens_max: int = ANSWER_TOKENS
    margin: float = MARGIN


def calibrate_run(
    manifest: RunManifest,
    policy: Path,
    task: Path,
    plan: CalibrationPlan,
    background: Background,
    progress: Progress,
    say_lies: Say | None = None,
) -> "Calibration":
    """Measure what honest machines differ by in a run whose first policy is the file ``policy``.

    ``task`` is the directory of the run's files. With ``say_lies`` lies are recorded, too, and each
    is reported by a line. Raises ``ValueError`` when this cannot be measured.
    """
    from roles.engines.calibration.calibrate import (  # noqa: PLC0415 - torch takes seconds
        calibrate,
        with_lies,
    )
    from roles.engines.calibration.honest import TimeBudget, task_prompts  # noqa: PLC0415 - the same
    from roles.engines.task_loader import task_of  # noqa: PLC0415 - tasks may be heavy

    bench = _bench(manifest, policy, plan)

    async def measured() -> "Calibration":
        environment = task_of(manifest, task, background, runtime_directories(os.environ))
        await environment.open()
        prompts = task_prompts(environment, manifest.sampling)
        budget = TimeBudget(seconds_max=60 * plan.minutes)
        found = await calibrate(bench, prompts, plan.path, budget, plan.margin, progress)
        if say_lies is not None:
            found = await with_lies(found, bench, prompts, say_lies)
        return found

    try:
        return asyncio.run(measured())
    except OSError as error:
        raise ValueError(f"{plan.path}: {error.strerror}") from None
    except EngineError as error:
        raise ValueError(f"the calibration broke: {error}") from None


def _bench(manifest: RunManifest, policy: Path, plan: CalibrationPlan) -> "Bench":
    from roles.engines.calibration.workbench import Bench  # noqa: PLC0415 - torch takes seconds

    values = manifest.model_dump(exclude={"genesis"})
    return Bench(
        model=manifest.model,
        policy=Policy(Version(0), Digest(manifest.genesis_policy), policy),
        recipe=Recipe.model_validate(values),
        prompts=(),
        tokens_max=min(plan.tokens_max, manifest.sampling.tokens_max),
        device=plan.device,
        directory=policy.parent,
    )
