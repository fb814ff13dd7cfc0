"""Calibration of a run's thresholds: comparison of honest engines on its model and prompts."""

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
"""Longest answer that a calibration generates: a model of 135 million weights takes 1 min for 64
answers of 128 tokens on two cores. Longer ones need a GPU."""

MARGIN = 1.5
"""Margin for machines that are not measured; with it one tenth of the small lies pass
(docs/verification.md)."""

MINUTES = 8.0

Say = Callable[[str], None]
Progress = Callable[[int, int, float], None]
"""Callback with the tokens so far, the tokens required, and the seconds so far."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Options of a calibration; after an interruption it resumes from its file ``path``."""

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
    """Measure the differences of honest machines in a run with the first policy ``policy``.

    ``task`` is the directory of the run's files. With ``say_lies``, lies are measured too and
    reported, one per line. Raises ``ValueError`` when the calibration fails.
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
        raise ValueError(f"the calibration failed: {error}") from None


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
